// Attention of a few new rows over a long cache of keys, which is read once: limited by memory. A block has a part of
// the keys of one key head, and 16 rows: a query row for each head of the group, and so on. Its warps read 16 keys at a
// time each, ahead of their work and without waiting for each other, and put their results together at the end.
#pragma once

#include "kernels/attention/cuda/sm80_decode_part.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/common/gpu/reduce/max.cuh"

namespace attention::gpu {

template <int kDim, int kStages>
struct DecodeMemory {
  using Rows = uint16_t[kDim / 64][kDecodeKeys][64];  // 64 elements of each row, then the next 64
  Rows stages[kDecodeWarps][kStages][2];              // of each warp, keys and values
  alignas(16) float max[kDecodeWarps][kDecodeRows], sums[kDecodeWarps][kDecodeRows];

  // Queries of wide heads, which registers have no room for. Others are here until the first loads into the last stage.
  struct Nothing {};
  alignas(16) std::conditional_t<(kDim > 128), Rows, Nothing> wide_q;
  __device__ __forceinline__ Rows& q() {
    if constexpr (kDim > 128)
      return wide_q;
    else
      return stages[0][kStages - 1][0];
  }
};

template <class T, int kDim, int kStages>
struct DecodeWarp {
  using Memory = DecodeMemory<kDim, kStages>;
  static constexpr int kPanels = kDim / 64, kPanel = kDecodeKeys * 64;

  const DecodeArguments& a;
  const DecodePart& part;
  Memory& m;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  static constexpr int kHeld = kDim > 128 ? 0 : kDim / 16;  // of the queries' operands, in registers
  uint32_t q[kHeld + 1][4];
  float out[kDim / 2] = {};

  __device__ __forceinline__ void start_loads(int stage, int chunk, int end, int& page) const {
    if (chunk < end) {
      auto& to = m.stages[warp][stage];
      start_chunk<T, 32, kPanels, 64, kPanel>(a, part, a.k, to[0][0][0], chunk, page, lane);
      start_chunk<T, 32, kPanels, 64, kPanel>(a, part, a.v, to[1][0][0], chunk, page, lane);
      if (chunk + kDecodeWarps < end) page = part.page_of(a, chunk + kDecodeWarps);
    }
    cp_async_commit();
  }

  __device__ __forceinline__ void take_queries(uint32_t (&to)[4], int i) const {
    const int row = lane % 16;
    ldmatrix_x4(to, &m.q()[i / 4][row][(i % 4 * 2 + lane / 16 ^ row % 8) * 8]);
  }

  // 16 keys.
  __device__ __forceinline__ void add_chunk(RowSoftmax& softmax, int stage, int chunk, const DecodeRows<>& rows) {
    float s[8] = {};
    const auto& keys = m.stages[warp][stage][0];
    const int key_row = lane / 16 * 8 + lane % 8, value_row = lane % 16;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      auto& queries = q[i < kHeld ? i : kHeld];
      if (i >= kHeld) take_queries(queries, i);
      ldmatrix_x4(b, &keys[i / 4][key_row][(i % 4 * 2 + lane / 8 % 2 ^ key_row % 8) * 8]);
      mma_m16n8k16<T>(s, queries, b[0], b[1]);
      mma_m16n8k16<T>(s + 4, queries, b[2], b[3]);
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
    const auto& values = m.stages[warp][stage][1];
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, &values[i / 4][value_row][(i % 4 * 2 + lane / 16 ^ value_row % 8) * 8]);
      mma_m16n8k16<T>(out + 8 * i, p, b[0], b[1]);
      mma_m16n8k16<T>(out + 8 * i + 4, p, b[2], b[3]);
    }
  }

  // Every fourth chunk of [begin, end), from this warp's on.
  __device__ __forceinline__ void run(RowSoftmax& softmax, int begin, int end) {
    const int first = begin + warp;
    int page = first < end ? part.page_of(a, first) : 0;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) start_loads(i, first + i * kDecodeWarps, end, page);
    cp_async_wait<kStages - 1>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) take_queries(q[i], i);
    if constexpr (kHeld > 0) __syncthreads();
    const DecodeRows<> mine(a, part);
    int stage = 0;
    for (int chunk = first; chunk < end; chunk += kDecodeWarps) {
      cp_async_wait<kStages - 2>();
      __syncwarp();  // everybody's copies; and the stage of the last chunk has been read
      start_loads(stage == 0 ? kStages - 1 : stage - 1, chunk + (kStages - 1) * kDecodeWarps, end, page);
      add_chunk(softmax, stage, chunk, mine);
      if (++stage == kStages) stage = 0;
    }
    cp_async_wait<0>();
  }
};

template <class T, int kDim, int kStages>
__global__ void __launch_bounds__(32 * kDecodeWarps, kDim <= 64    ? 3
                                                     : kDim <= 128 ? 2
                                                                   : 1)
    decode_kernel(const __grid_constant__ DecodeArguments a) {
#if __CUDA_ARCH__ >= 800  // elsewhere it is never launched
  using Warp = DecodeWarp<T, kDim, kStages>;
  extern __shared__ __align__(16) uint8_t raw[];
  auto& m = *reinterpret_cast<typename Warp::Memory*>(raw);
  DecodePart part(a);
  Warp w{a, part, m};
  part.begin(a);
  start_queries<T, Warp::kPanels, 64, Warp::kPanel>(a, part, m.q()[0][0]);
  cp_async_commit();
  const int rows = a.group * a.query_rows, row = part.row_tile * kDecodeRows, warp = threadIdx.x / 32;
  if (part.total > 0 && a.k.fresh != nullptr && part.row_tile == 0 && part.split == 0)
    append<T>(a, part, a.k), append<T>(a, part, a.v);
  const Span chunks = part.chunks<>(a);
  RowSoftmax softmax(a.score_scale);
  w.run(softmax, chunks.first, chunks.end);
  // The warps' results together. Rows of a little more than kDim elements: without bank conflicts.
  auto &max = m.max, &sums = m.sums;
  using Sums = float[kDecodeRows][kDim + 8];
  __syncthreads();
  auto* out = reinterpret_cast<Sums*>(raw);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(softmax.state[r].sum);
    const int at = w.lane / 4 + 8 * r;
    if (w.lane % 4 == 0) max[warp][at] = softmax.state[r].max * a.score_scale, sums[warp][at] = sum;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
      *reinterpret_cast<float2*>(&out[warp][at][8 * i + w.lane % 4 * 2]) =
          make_float2(w.out[4 * i + 2 * r], w.out[4 * i + 2 * r + 1]);
  }
  __syncthreads();
  // Eight threads a row.
  const int r = threadIdx.x / 8;
  if (row + r < rows) {
    float row_max = max[0][r], sum = 0.f, factor[kDecodeWarps];
#pragma unroll
    for (int i = 1; i < kDecodeWarps; ++i) row_max = fmaxf(row_max, max[i][r]);
#pragma unroll
    for (int i = 0; i < kDecodeWarps; ++i) {
      factor[i] = max[i][r] == -INFINITY ? 0.f : exp2_approx(max[i][r] - row_max);
      sum += factor[i] * sums[i][r];
    }
    const OutRow to(a, part.batch, part.key_head, row + r);
    const int first = threadIdx.x % 8 * 4;
    float lse, divide;
    if (a.part_out != nullptr) {  // without the sink: that is the whole row's
      divide = sum == 0.f ? 0.f : rcp_approx(sum);
      if (first == 0) a.part_lse[to.lse * a.splits + part.split] = sum == 0.f ? -INFINITY : row_max + log2f(sum);
    } else {
      divide = finish_row(a, to.head, row_max, sum, lse);
      if (first == 0 && a.lse != nullptr) a.lse[to.lse] = lse;
    }
#pragma unroll
    for (float& f : factor) f *= divide;
    float* part_out = a.part_out + (to.lse * a.splits + part.split) * a.v.dim;
    T* whole_out = static_cast<T*>(a.out) + to.out;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      const int c = first + 32 * j;
      float total[4] = {};
#pragma unroll
      for (int i = 0; i < kDecodeWarps; ++i) {
        const float4 v = *reinterpret_cast<const float4*>(&out[i][r][c]);
        if (factor[i] == 0.f) continue;  // what was summed there may be anything
        total[0] += factor[i] * v.x, total[1] += factor[i] * v.y;
        total[2] += factor[i] * v.z, total[3] += factor[i] * v.w;
      }
      if (c >= a.v.dim) continue;
      if (a.part_out != nullptr)
        *reinterpret_cast<float4*>(part_out + c) = make_float4(total[0], total[1], total[2], total[3]);
      else
        *reinterpret_cast<uint2*>(whole_out + c) =
            make_uint2(pack_pair<T>(total[0], total[1]), pack_pair<T>(total[2], total[3]));
    }
  }
#endif
}

// A row's parts added, where there are fewer than 32: a warp for each 128 elements of a row, four of a lane.
constexpr int kCombineWarps = 8;

template <class T>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine_kernel(const __grid_constant__ DecodeArguments a, int rows) {
  const int dim = a.v.dim, lane = threadIdx.x % 32;
  const unsigned warp = blockIdx.x * kCombineWarps + threadIdx.x / 32, of_row = (unsigned(dim) + 127) / 128;
  const int index = warp / of_row, first = int(warp % of_row) * 128 + 4 * lane;  // index: of [batch, head, row]
  grid_dependency_wait();
  launch_dependents();
  if (index >= rows) return;
  constexpr int kEach = 4, kFirst = 16;  // so many parts are asked for before their weights are known
  const float* part_out = a.part_out + int64_t{index} * a.splits * dim + first;
  const bool inside = first < dim;
  const float own = lane < a.splits ? a.part_lse[int64_t{index} * a.splits + lane] : -INFINITY;
  float early[kFirst][kEach], total[kEach] = {};
#pragma unroll
  for (int s = 0; s < kFirst; ++s)
    if (inside && s < a.splits) unpack<float>(load<kEach>(part_out + s * dim), early[s]);
  const float max = warp_max(own), weight = exp2_approx(own - finite_or_zero(max)), sum = warp_sum(weight);
  const auto add = [&](int s, const float(&part)[kEach]) {
    const float of_part = __shfl_sync(kAllLanes, weight, s);
#pragma unroll
    for (int i = 0; i < kEach; ++i) total[i] += of_part * part[i];
  };
#pragma unroll
  for (int s = 0; s < kFirst; ++s)
    if (s < a.splits) add(s, early[s]);
#pragma unroll 4
  for (int s = kFirst; s < a.splits; ++s) {
    float part[kEach] = {};
    if (inside) unpack<float>(load<kEach>(part_out + s * dim), part);
    add(s, part);
  }
  const int row_of_batch = index / a.query_rows, head = row_of_batch % a.heads, batch = row_of_batch / a.heads;
  float lse;
  const float divide = finish_row(a, head, max, sum, lse);
  if (first == 0 && a.lse != nullptr) a.lse[index] = lse;
  if (!inside) return;
  const int64_t row = int64_t{batch} * a.query_rows + index % a.query_rows;
  *reinterpret_cast<uint2*>(static_cast<T*>(a.out) + (row * a.heads + head) * dim + first) = make_uint2(
      pack_pair<T>(total[0] * divide, total[1] * divide), pack_pair<T>(total[2] * divide, total[3] * divide));
}

// The same for up to kMaxParts: a block for each kColumns elements of a row, of whose threads kSlots go through the
// parts side by side.
constexpr int kMaxParts = 512;

template <class T>
__global__ void __launch_bounds__(32 * kDecodeWarps) combine_many_kernel(const __grid_constant__ DecodeArguments a) {
  grid_dependency_wait();
  launch_dependents();
  constexpr int kColumns = 32, kOwn = kMaxParts / 32, kEach = 4, kAcross = kColumns / kEach,
                kSlots = 32 * kDecodeWarps / kAcross;
  constexpr int kFirst = 20;  // parts of a thread that are asked for before their weights are known
  const int dim = a.v.dim, lane = threadIdx.x % 32;
  const unsigned blocks = (unsigned(dim) + kColumns - 1) / kColumns;
  const int index = blockIdx.x / blocks, first = int(blockIdx.x % blocks) * kColumns;  // index: of [batch, head, row]
  const int slot = threadIdx.x / kAcross, within = threadIdx.x % kAcross * kEach;
  const float* lses = a.part_lse + int64_t{index} * a.splits;
  const float* part_out = a.part_out + int64_t{index} * a.splits * dim + first + within;
  const bool inside = first + within < dim;
  float own[kOwn], early[kFirst][kEach];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own[i] = lane + 32 * i < a.splits ? lses[lane + 32 * i] : -INFINITY;
#pragma unroll
  for (int i = 0; i < kFirst; ++i)
    if (inside && slot + i * kSlots < a.splits)
      unpack<float>(load<kEach>(part_out + (slot + i * kSlots) * dim), early[i]);
  float max = own[0], sum = 0.f;
#pragma unroll
  for (int i = 1; i < kOwn; ++i) max = fmaxf(max, own[i]);
  max = warp_max(max);
  const float base = finite_or_zero(max);
  __shared__ float weights[32 * kOwn], totals[kSlots][kColumns];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const float weight = exp2_approx(own[i] - base);
    sum += weight;
    if (threadIdx.x < 32) weights[lane + 32 * i] = weight;
  }
  sum = warp_sum(sum);
  __syncthreads();
  float total[kEach] = {};
  const auto add = [&](float weight, const float(&part)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) total[i] += weight * part[i];
  };
  if (inside) {
#pragma unroll
    for (int i = 0; i < kFirst; ++i)
      if (slot + i * kSlots < a.splits) add(weights[slot + i * kSlots], early[i]);
#pragma unroll 4
    for (int s = kFirst * kSlots + slot; s < a.splits; s += kSlots) {
      float part[kEach];
      unpack<float>(load<kEach>(part_out + int64_t{s} * dim), part);
      add(weights[s], part);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) totals[slot][within + i] = total[i];
  __syncthreads();
  const int row_of_batch = index / a.query_rows, head = row_of_batch % a.heads, batch = row_of_batch / a.heads;
  float lse;
  const float divide = finish_row(a, head, max, sum, lse);
  if (threadIdx.x == 0 && first == 0 && a.lse != nullptr) a.lse[index] = lse;
  const int64_t row = int64_t{batch} * a.query_rows + index % a.query_rows;
  T* out = static_cast<T*>(a.out) + (row * a.heads + head) * dim + first;
  const int c = threadIdx.x;
  if (c < min(kColumns, dim - first)) {
    float f = 0.f;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) f += totals[i][c];
    out[c] = from_float<T>(f * divide);
  }
}

}  // namespace attention::gpu
