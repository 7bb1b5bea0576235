// Decode of heads of more than 256 elements, up to 576 with values of up to 512. 16 rows of so many sums are more than
// a warp's registers: here a block's four warps go through the same keys together, 16 at a time. Of scores each
// multiplies a quarter of the elements, and all add the quarters up, in one order, so that they hold the same weights;
// of the outputs each has a quarter of the columns.
//
// Latent attention (MLA): the values are the first elements of the keys, and lie in memory once. Then they are read
// once.
#pragma once

#include "kernels/attention/cuda/sm80_decode_part.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"

namespace attention::gpu {

// kOne: values are the keys' first elements. kStages: chunks in shared memory. kChunks: so many are computed at a time,
// of which one waits for another's scores once.
template <class Number, bool kOne_, int kStages_, int kChunks_>
struct DecodeWideTraits {
  using T = Number;
  static constexpr bool kOne = kOne_;
  static constexpr int kBlocks = 2;  // a multiprocessor: what one waits for, the other hides
  static constexpr int kStages = kStages_, kChunks = kChunks_, kAhead = kStages - kChunks, kDim = 576, kValueDim = 512,
                       kThreads = 32 * kDecodeWarps;
  static constexpr int kSteps = kDim / 16 / kDecodeWarps, kColumns = kValueDim / kDecodeWarps;  // of a warp
};

template <class D>
struct DecodeWideMemory {
  struct Stage {
    uint16_t k[kDecodeKeys][D::kDim];
    uint16_t v[D::kOne ? 1 : kDecodeKeys][D::kOne ? 8 : D::kValueDim];
  } stages[D::kStages];
  float4 scores[kDecodeWarps][2 * D::kChunks][32];  // a quarter of the sums each, as its lanes hold them
};

template <class D>
struct DecodeWideBlock {
  using T = typename D::T;
  const DecodeArguments& a;
  const DecodePart& part;
  DecodeWideMemory<D>& m;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t q[D::kSteps][4];
  float out[D::kColumns / 2] = {};

  __device__ __forceinline__ void start_loads(int stage, int chunk, int end, int& page) const {
    if (chunk < end) {
      start_chunk<T, D::kThreads, D::kDim / 64, D::kDim, 64>(a, part, a.k, m.stages[stage].k[0], chunk, page,
                                                             threadIdx.x);
      if constexpr (!D::kOne)
        start_chunk<T, D::kThreads, D::kValueDim / 64, D::kValueDim, 64>(a, part, a.v, m.stages[stage].v[0], chunk,
                                                                         page, threadIdx.x);
      if (chunk + 1 < end) page = part.page_of(a, chunk + 1);
    }
    cp_async_commit();
  }

  // kChunks chunks from this one on, the first of which is in this stage.
  __device__ __forceinline__ void add_chunks(RowSoftmax& softmax, int stage, int chunk, const DecodeRows<>& rows) {
    constexpr int kChunks = D::kChunks;
    const typename DecodeWideMemory<D>::Stage* stages[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) stages[c] = &m.stages[after(stage, c)];
    float s[8 * kChunks] = {};
    const int key_row = lane / 16 * 8 + lane % 8, value_row = lane % 16;
#pragma unroll
    for (int i = 0; i < D::kSteps; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint32_t b[4];
        ldmatrix_x4(b, &stages[c]->k[key_row][((2 * (warp * D::kSteps + i) + lane / 8 % 2) ^ key_row % 8) * 8]);
        mma_m16n8k16<T>(s + 8 * c, q[i], b[0], b[1]);
        mma_m16n8k16<T>(s + 8 * c + 4, q[i], b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kChunks; ++i)
      m.scores[warp][i][lane] = make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * kChunks; ++i) {
      float4 sum = m.scores[0][i][lane];
#pragma unroll
      for (int w = 1; w < kDecodeWarps; ++w) {
        const float4 more = m.scores[w][i][lane];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      s[4 * i] = sum.x, s[4 * i + 1] = sum.y, s[4 * i + 2] = sum.z, s[4 * i + 3] = sum.w;
    }
    rows.finish(s, a, chunk * kDecodeKeys + lane % 4 * 2);
    float shrink[2];
    softmax.add(s, shrink);
    if (__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < D::kColumns / 2; ++i) out[i] *= shrink[i / 2 % 2];
    }
    uint32_t p[kChunks][4];
#pragma unroll
    for (int i = 0; i < 4 * kChunks; ++i) p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint16_t* values;
      if constexpr (D::kOne)
        values = stages[c]->k[value_row];
      else
        values = stages[c]->v[value_row];
#pragma unroll
      for (int i = 0; i < D::kColumns / 16; ++i) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, values + ((warp * (D::kColumns / 8) + 2 * i + lane / 16) ^ value_row % 8) * 8);
        mma_m16n8k16<T>(out + 8 * i, p[c], b[0], b[1]);
        mma_m16n8k16<T>(out + 8 * i + 4, p[c], b[2], b[3]);
      }
    }
  }

  static __device__ __forceinline__ int after(int stage, int by) {
    return stage + by < D::kStages ? stage + by : stage + by - D::kStages;
  }

  // Chunks [first, end), and what is missing of the last kChunks: that is in shared memory and is not seen.
  __device__ __forceinline__ void run(RowSoftmax& softmax, int first, int end) {
    const int seen_end = end * kDecodeKeys;
    end = first + (max(0, end - first) + D::kChunks - 1) / D::kChunks * D::kChunks;
    uint16_t* queries = m.stages[D::kStages - 1].k[0];  // until the first loads into that stage
    start_queries<T, D::kDim / 64, D::kDim, 64>(a, part, queries);
    cp_async_commit();
    int page = first < end ? part.page_of(a, first) : 0;
#pragma unroll 1
    for (int i = 0; i < D::kAhead; ++i) start_loads(i, first + i, end, page);
    cp_async_wait<D::kAhead>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < D::kSteps; ++i)
      ldmatrix_x4(q[i], queries + lane % 16 * D::kDim + (2 * (warp * D::kSteps + i) + lane / 16 ^ lane % 8) * 8);
    DecodeRows<> mine(a, part);
    for (Span& seen : mine.seen) seen.end = min(seen.end, seen_end);
    int stage = 0;
    for (int chunk = first; chunk < end; chunk += D::kChunks) {
      cp_async_wait<D::kAhead - D::kChunks>();
      __syncthreads();  // everybody's copies; and the stages of the last chunks have been read
#pragma unroll
      for (int c = 0; c < D::kChunks; ++c) start_loads(after(stage, D::kAhead + c), chunk + D::kAhead + c, end, page);
      add_chunks(softmax, stage, chunk, mine);
      stage = after(stage, D::kChunks);
    }
    cp_async_wait<0>();
  }

  // Every warp has the sums of all weights, and its columns of the outputs.
  __device__ __forceinline__ void store(const RowSoftmax& softmax) const {
    store_columns<T, D::kColumns>(a, part, softmax, out, part.row_tile * kDecodeRows, warp, lane);
  }
};

template <class D>
__global__ void __launch_bounds__(D::kThreads, D::kBlocks)
    decode_wide_kernel(const __grid_constant__ DecodeArguments a) {
#if __CUDA_ARCH__ >= 800  // elsewhere it is never launched
  extern __shared__ __align__(16) uint8_t raw[];
  DecodePart part(a);
  part.begin(a);
  if (part.total > 0 && a.k.fresh != nullptr && part.row_tile == 0 && part.split == 0) {
    append<typename D::T>(a, part, a.k);
    if constexpr (!D::kOne) append<typename D::T>(a, part, a.v);
  }
  const Span chunks = part.chunks<>(a);
  RowSoftmax softmax(a.score_scale);
  DecodeWideBlock<D> block{a, part, *reinterpret_cast<DecodeWideMemory<D>*>(raw)};
  block.run(softmax, chunks.first, chunks.end);
  block.store(softmax);
#endif
}

}  // namespace attention::gpu
