// Attention of a few new rows over a long cache of keys, which is read once: limited by memory. A block has a part of
// the keys of one key head, and 16 rows: a query row for each head of the group, and so on. Its warps read 16 keys at a
// time each, ahead of their work and without waiting for each other, and put their results together at the end.
#pragma once

#include "kernels/attention/decode_part.cuh"

namespace attention::gpu {

template <class T, int kDim, int kStages>
struct DecodeWarp {
  using Rows = uint16_t[kDecodeKeys][kDim];

  const DecodeArguments& a;
  const DecodePart& part;
  Rows (*stages)[2];  // keys and values
  const int lane = threadIdx.x % 32;
  uint32_t q[kDim / 16][4];
  float out[kDim / 2] = {};

  __device__ __forceinline__ void start_loads(int stage, int chunk, int end, int& page) const {
    if (chunk < end) {
      start_chunk<T, 32>(a, part, a.k, stages[stage][0], chunk, page, lane);
      start_chunk<T, 32>(a, part, a.v, stages[stage][1], chunk, page, lane);
      if (chunk + kDecodeWarps < end) page = part.page_of(a, chunk + kDecodeWarps);
    }
    commit_copies();
  }

  // 16 keys.
  __device__ __forceinline__ void add_chunk(RowSoftmax& softmax, int stage, int chunk, const DecodeRows<>& rows) {
    float s[8] = {};
    const auto& keys = stages[stage][0];
    const int key_row = lane / 16 * 8 + lane % 8, value_row = lane % 16;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      load_matrices(b, &keys[key_row][((2 * i + lane / 8 % 2) ^ key_row % 8) * 8]);
      multiply_16x8<T>(s, q[i], b[0], b[1]);
      multiply_16x8<T>(s + 4, q[i], b[2], b[3]);
    }
    rows.finish(s, a, chunk * kDecodeKeys + lane % 4 * 2);
    float shrink[2];
    softmax.add(s, shrink);
    if (__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) out[i] *= shrink[i / 2 % 2];
    }
    const uint32_t p[4] = {pack_pair<T>(s[0], s[1]), pack_pair<T>(s[2], s[3]), pack_pair<T>(s[4], s[5]),
                           pack_pair<T>(s[6], s[7])};
    const auto& values = stages[stage][1];
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      load_matrices_transposed(b, &values[value_row][((2 * i + lane / 16) ^ value_row % 8) * 8]);
      multiply_16x8<T>(out + 8 * i, p, b[0], b[1]);
      multiply_16x8<T>(out + 8 * i + 4, p, b[2], b[3]);
    }
  }

  // Every fourth chunk of [begin, end), from this warp's on.
  __device__ __forceinline__ void run(RowSoftmax& softmax, int begin, int end) {
    const int first = begin + int(threadIdx.x / 32);
    int page = first < end ? part.page_of(a, first) : 0;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) start_loads(i, first + i * kDecodeWarps, end, page);
    load_queries<T>(a, part, 0, q);
    const DecodeRows<> mine(a, part);
    int stage = 0;
    for (int chunk = first; chunk < end; chunk += kDecodeWarps) {
      wait_copies<kStages - 2>();
      __syncwarp();  // everybody's copies; and the stage of the last chunk has been read
      start_loads(stage == 0 ? kStages - 1 : stage - 1, chunk + (kStages - 1) * kDecodeWarps, end, page);
      add_chunk(softmax, stage, chunk, mine);
      if (++stage == kStages) stage = 0;
    }
    wait_copies<0>();
  }
};

template <class T, int kDim, int kStages>
__global__ void __launch_bounds__(32 * kDecodeWarps) decode_kernel(const __grid_constant__ DecodeArguments a) {
#if __CUDA_ARCH__ >= 800        // elsewhere it is never launched
  if constexpr (kDim <= 128) {  // of 256 a block has a multiprocessor for itself: nothing is set up beside it
    wait_for_launch_before();
    next_launch_may_begin();
  }
  using Warp = DecodeWarp<T, kDim, kStages>;
  extern __shared__ __align__(16) uint8_t raw[];
  const DecodePart part(a);
  const int rows = a.group * a.query_rows, row = part.row_tile * kDecodeRows, warp = threadIdx.x / 32;
  if (part.total > 0 && a.k.fresh != nullptr && part.row_tile == 0 && part.split == 0)
    append<T>(a, part, a.k), append<T>(a, part, a.v);
  const Span chunks = part.chunks<>(a);
  RowSoftmax softmax(a.score_scale);
  Warp w{a, part, reinterpret_cast<typename Warp::Rows(*)[2]>(raw) + warp * kStages};
  w.run(softmax, chunks.first, chunks.end);

  // The warps' results together. Rows of a little more than kDim numbers: without bank conflicts.
  __shared__ float most[kDecodeWarps][kDecodeRows], sums[kDecodeWarps][kDecodeRows];
  using Sums = float[kDecodeRows][kDim + 8];
  __syncthreads();
  auto* out = reinterpret_cast<Sums*>(raw);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(softmax.sum[r]);
    const int at = w.lane / 4 + 8 * r;
    if (w.lane % 4 == 0) most[warp][at] = softmax.most[r] * a.score_scale, sums[warp][at] = sum;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
      *reinterpret_cast<float2*>(&out[warp][at][8 * i + w.lane % 4 * 2]) =
          make_float2(w.out[4 * i + 2 * r], w.out[4 * i + 2 * r + 1]);
  }
  __syncthreads();
  for (int r = warp; r < kDecodeRows && row + r < rows; r += kDecodeWarps) {
    float largest = most[0][r], sum = 0.f, factor[kDecodeWarps];
#pragma unroll
    for (int i = 1; i < kDecodeWarps; ++i) largest = fmaxf(largest, most[i][r]);
#pragma unroll
    for (int i = 0; i < kDecodeWarps; ++i) {
      factor[i] = most[i][r] == -INFINITY ? 0.f : exp2_fast(most[i][r] - largest);
      sum += factor[i] * sums[i][r];
    }
    const OutRow to(a, part.batch, part.key_head, row + r);
    float lse, divide;
    if (a.part_out != nullptr) {  // without the sink: that is the whole row's
      divide = sum == 0.f ? 0.f : reciprocal(sum);
      if (w.lane == 0) a.part_lse[to.lse * a.splits + part.split] = sum == 0.f ? -INFINITY : largest + log2f(sum);
    } else {
      divide = finish_row(a, to.head, largest, sum, lse);
      if (w.lane == 0 && a.lse != nullptr) a.lse[to.lse] = lse;
    }
    for (int c = 4 * w.lane; c < a.v.dim; c += 128) {
      float total[4] = {};
#pragma unroll
      for (int i = 0; i < kDecodeWarps; ++i) {
        if (factor[i] == 0.f) continue;
        const float4 v = *reinterpret_cast<const float4*>(&out[i][r][c]);
        total[0] += factor[i] * v.x, total[1] += factor[i] * v.y;
        total[2] += factor[i] * v.z, total[3] += factor[i] * v.w;
      }
#pragma unroll
      for (float& f : total) f = divide == 0.f ? 0.f : f * divide;
      if (a.part_out != nullptr)
        *reinterpret_cast<float4*>(a.part_out + (to.lse * a.splits + part.split) * a.v.dim + c) =
            make_float4(total[0], total[1], total[2], total[3]);
      else
        *reinterpret_cast<uint2*>(static_cast<T*>(a.out) + to.out + c) =
            make_uint2(pack_pair<T>(total[0], total[1]), pack_pair<T>(total[2], total[3]));
    }
  }
#endif
}

// What a row's parts come to: their largest exponent, and the sum of all weights. The same in all lanes of a warp.
struct PartsOfRow {
  float most = -INFINITY, base, sum = 0.f;

  __device__ __forceinline__ PartsOfRow(const float* lses, int splits) {
    const int lane = threadIdx.x % 32;
    for (int s = lane; s < splits; s += 32) most = fmaxf(most, lses[s]);
#pragma unroll
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, o));
    base = most == -INFINITY ? 0.f : most;
    for (int s = lane; s < splits; s += 32) sum += exp2_fast(lses[s] - base);
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
  }
};

// The parts of a row together: a block for each kColumns numbers of a row, of whose threads kSlots go through the parts
// side by side. Few columns where there are many parts: then many blocks read them.
template <class T, int kColumns, int kEach>  // kEach: numbers of a thread
__global__ void __launch_bounds__(32 * kDecodeWarps) combine_kernel(const __grid_constant__ DecodeArguments a) {
  wait_for_launch_before();
  next_launch_may_begin();
  constexpr int kAcross = kColumns / kEach, kSlots = 32 * kDecodeWarps / kAcross;
  const int dim = a.v.dim, blocks = (dim + kColumns - 1) / kColumns;
  const int64_t index = blockIdx.x / blocks;  // of [batch, head, row]
  const int first = int(blockIdx.x % blocks) * kColumns, slot = threadIdx.x / kAcross;
  const int within = threadIdx.x % kAcross * kEach, head = int(index / a.query_rows % a.heads);
  const float* lses = a.part_lse + index * a.splits;
  const PartsOfRow parts(lses, a.splits);
  __shared__ float totals[kSlots][kColumns];
  float total[kEach] = {};
  if (first + within < dim) {
#pragma unroll 4
    for (int s = slot; s < a.splits; s += kSlots) {
      const float weight = exp2_fast(lses[s] - parts.base);
      float part[kEach];
      unpack<float>(load<kEach>(a.part_out + (index * a.splits + s) * dim + first + within), part);
#pragma unroll
      for (int i = 0; i < kEach; ++i) total[i] += weight * part[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) totals[slot][within + i] = total[i];
  __syncthreads();
  float lse;
  const float divide = finish_row(a, head, parts.most, parts.sum, lse);
  if (threadIdx.x == 0 && first == 0 && a.lse != nullptr) a.lse[index] = lse;
  const int64_t batch = index / a.query_rows / a.heads, row = batch * a.query_rows + index % a.query_rows;
  T* out = static_cast<T*>(a.out) + (row * a.heads + head) * dim + first;
  for (int c = threadIdx.x; c < min(kColumns, dim - first); c += 32 * kDecodeWarps) {
    float f = 0.f;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) f += totals[i][c];
    out[c] = from_float<T>(f * divide);
  }
}

}  // namespace attention::gpu
