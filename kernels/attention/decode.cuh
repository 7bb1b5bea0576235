// Attention of a few new rows over a long cache of keys, which is read once: limited by memory. A block has a part of
// the keys of one key head, and 16 rows: a query row for each head of the group, and so on. Its warps read 16 keys at a
// time each, ahead of their work and without waiting for each other, and put their results together at the end.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/common/gpu/launch.h"
#include "kernels/common/gpu/mma.cuh"

namespace attention::gpu {

constexpr int kDecodeWarps = 4, kDecodeRows = 16, kDecodeKeys = 16;

struct Cache {
  void* data;
  const void* fresh;                                             // the new rows, or null
  int64_t batch, row, head, fresh_batch, fresh_row, fresh_head;  // strides
  int dim;
};

struct DecodeArguments {
  void* out;
  float* lse;                  // or null
  float *part_out, *part_lse;  // [rows, splits, value_dim], [rows, splits]; null where there is one split
  const void* q;
  Cache k, v;
  const int32_t *lengths, *block_table, *cache_index;
  const float* sinks;
  int64_t q_batch, q_row, q_head, block_table_stride;
  int query_rows, key_rows, heads, key_heads, group, new_rows, page_rows, splits, row_tiles, left, right;
  Divider chunks_of_page;        // by as many chunks of keys as a page has
  float score_scale, cap_scale;  // as of forward; cap_scale 0: no softcap
};

// What of a sequence a block computes.
struct DecodePart {
  int row_tile, split, key_head, batch;
  int length, total;  // keys in the cache, and with the new ones
  int64_t row;        // of all rows of out, the first of this key head

  __device__ __forceinline__ explicit DecodePart(const DecodeArguments& a) {
    int index = blockIdx.x;
    row_tile = index % a.row_tiles, index /= a.row_tiles;
    split = index % a.splits, index /= a.splits;
    key_head = index % a.key_heads, batch = index / a.key_heads;
    length = a.lengths[batch], total = length < 0 ? 0 : min(length + a.new_rows, a.key_rows);
  }
};

template <class T, int kDim, int kStages>
struct DecodeWarp {
  static constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
  using Rows = uint16_t[kDecodeKeys][kDim];

  const DecodeArguments& a;
  const DecodePart& part;
  Rows (*stages)[2];  // keys and values
  const int lane = threadIdx.x % 32;
  uint32_t q[kDim / 16][4];
  float out[kDim / 2] = {};

  __device__ __forceinline__ int page_of(int chunk) const {
    if (chunk * kDecodeKeys >= part.length) return 0;
    if (a.block_table != nullptr) return a.block_table[part.batch * a.block_table_stride + a.chunks_of_page(chunk)];
    return a.cache_index != nullptr ? a.cache_index[part.batch] : part.batch;
  }
  __device__ __forceinline__ void start_loads(const Cache& c, Rows& to, int chunk, int page) const {
    const T* data = static_cast<const T*>(c.data) + page * c.batch + part.key_head * c.head;
    const T* fresh = static_cast<const T*>(c.fresh) + part.batch * c.fresh_batch + part.key_head * c.fresh_head;
    int first = chunk * kDecodeKeys;
    if (a.block_table != nullptr) first -= int(a.chunks_of_page(chunk)) * a.page_rows;
#pragma unroll
    for (int i = 0; i < kDecodeKeys * kPieces / 32; ++i) {
      const int at = i * 32 + lane, row = at / kPieces, piece = at % kPieces, key = chunk * kDecodeKeys + row;
      const T* from = key < part.length ? data + (first + row) * c.row : fresh + (key - part.length) * c.fresh_row;
      const bool zeros = key >= part.total || 8 * piece >= c.dim;
      start_copy(&to[row][(piece ^ row % 8) * 8], zeros ? c.data : from + 8 * piece, zeros);
    }
  }
  __device__ __forceinline__ void start_loads(int stage, int chunk, int end, int& page) const {
    if (chunk < end) {
      start_loads(a.k, stages[stage][0], chunk, page);
      start_loads(a.v, stages[stage][1], chunk, page);
      if (chunk + kDecodeWarps < end) page = page_of(chunk + kDecodeWarps);
    }
    commit_copies();
  }

  // The A operand of scores: 16 rows, zeros behind the last one.
  __device__ __forceinline__ void load_queries(int rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = part.row_tile * kDecodeRows + lane / 4 + 8 * half;
      const T* from = static_cast<const T*>(a.q) + part.batch * a.q_batch + row / a.group * a.q_row +
                      (part.key_head * a.group + row % a.group) * a.q_head + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const bool inside = row < rows && 8 * i < a.k.dim;
        q[i / 2][i % 2 * 2 + half] = inside ? *reinterpret_cast<const uint32_t*>(from + 8 * i) : 0;
      }
    }
  }

  // 16 keys. first_seen, end_seen: of the thread's two rows.
  __device__ __forceinline__ void add_chunk(RowSoftmax& softmax, int stage, int chunk, const int (&first_seen)[2],
                                            const int (&end_seen)[2]) {
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
    if (a.cap_scale > 0) {
#pragma unroll
      for (float& f : s) f = tanh_fast(f * a.cap_scale);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = chunk * kDecodeKeys + column_of(i) + lane % 4 * 2, r = i / 2 % 2;
      if (key < first_seen[r] || key >= end_seen[r]) s[i] = -INFINITY;
    }
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
    const int first = begin + int(threadIdx.x / 32), rows = a.group * a.query_rows;
    int page = first < end ? page_of(first) : 0;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) start_loads(i, first + i * kDecodeWarps, end, page);
    load_queries(rows);
    int first_seen[2], end_seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = part.row_tile * kDecodeRows + lane / 4 + 8 * r;
      const int position = row / a.group + part.total - a.query_rows;
      first_seen[r] = a.left < 0 ? 0 : position - a.left;
      end_seen[r] = a.right < 0 ? part.total : min(part.total, position + a.right + 1);
    }
    int stage = 0;
    for (int chunk = first; chunk < end; chunk += kDecodeWarps) {
      wait_copies<kStages - 2>();
      __syncwarp();  // everybody's copies; and the stage of the last chunk has been read
      start_loads(stage == 0 ? kStages - 1 : stage - 1, chunk + (kStages - 1) * kDecodeWarps, end, page);
      add_chunk(softmax, stage, chunk, first_seen, end_seen);
      if (++stage == kStages) stage = 0;
    }
    wait_copies<0>();
  }
};

// The new keys or values to their place in the cache. Nobody reads them there in this launch.
template <class T>
__device__ __forceinline__ void append(const DecodeArguments& a, const DecodePart& part, const Cache& c) {
  const int pieces = c.dim / 8;
  for (int i = threadIdx.x; i < min(a.new_rows, part.total - part.length) * pieces; i += blockDim.x) {
    const int row = i / pieces, piece = i % pieces, key = part.length + row;
    int64_t page = part.batch, at = key;
    if (a.cache_index != nullptr) page = a.cache_index[part.batch];
    if (a.block_table != nullptr) {
      page = a.block_table[part.batch * a.block_table_stride + key / a.page_rows];
      at = key % a.page_rows;
    }
    const T* from = static_cast<const T*>(c.fresh) + part.batch * c.fresh_batch + row * c.fresh_row +
                    part.key_head * c.fresh_head + 8 * piece;
    T* to = static_cast<T*>(c.data) + page * c.batch + at * c.row + part.key_head * c.head + 8 * piece;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
}

// Where a row of a key head is in out and lse.
struct OutRow {
  int64_t out, lse;
  int head;
  __device__ __forceinline__ OutRow(const DecodeArguments& a, int batch, int key_head, int row) {
    const int i = row / a.group;
    head = key_head * a.group + row % a.group;
    out = ((int64_t{batch} * a.query_rows + i) * a.heads + head) * a.v.dim;
    lse = (int64_t{batch} * a.heads + head) * a.query_rows + i;
  }
};

// A row's final factor and lse from its largest exponent and its sum, with the sink.
__device__ __forceinline__ float finish_row(const DecodeArguments& a, int head, float most, float sum, float& lse) {
  float shrink = 1.f;
  if (a.sinks != nullptr) {
    const float s = a.sinks[head] * kLog2e, larger = fmaxf(most, s), base = larger == -INFINITY ? 0.f : larger;
    shrink = exp2_fast(most - base);
    sum = sum * shrink + exp2_fast(s - base);
    most = larger;
  }
  lse = sum == 0.f ? -INFINITY : (most + log2f(sum)) * kLn2;
  return sum == 0.f ? 0.f : shrink * reciprocal(sum);
}

template <class T, int kDim, int kStages>
__global__ void __launch_bounds__(32 * kDecodeWarps) decode_kernel(const __grid_constant__ DecodeArguments a) {
  using Warp = DecodeWarp<T, kDim, kStages>;
  extern __shared__ __align__(16) uint8_t raw[];
  const DecodePart part(a);
  const int rows = a.group * a.query_rows, row = part.row_tile * kDecodeRows, warp = threadIdx.x / 32;
  int first = 0, end = 0;  // keys that some row sees
  if (part.total > 0) {
    const int n = part.total - a.query_rows;
    first = a.left < 0 ? 0 : max(0, row / a.group + n - a.left);
    end = a.right < 0 ? part.total : min(part.total, (min(row + kDecodeRows, rows) - 1) / a.group + n + a.right + 1);
    if (a.k.fresh != nullptr && part.row_tile == 0 && part.split == 0) append<T>(a, part, a.k), append<T>(a, part, a.v);
  }
  const int begin = first / kDecodeKeys, chunks = max(0, (end + kDecodeKeys - 1) / kDecodeKeys - begin);
  const int each = (chunks + a.splits - 1) / a.splits, from = begin + min(chunks, part.split * each);
  RowSoftmax softmax(a.score_scale);
  Warp w{a, part, reinterpret_cast<typename Warp::Rows(*)[2]>(raw) + warp * kStages};
  w.run(softmax, from, begin + min(chunks, (part.split + 1) * each));

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
    for (int c = w.lane; c < a.v.dim; c += 32) {
      float total = 0.f;
#pragma unroll
      for (int i = 0; i < kDecodeWarps; ++i)
        if (factor[i] != 0.f) total += factor[i] * out[i][r][c];
      total = divide == 0.f ? 0.f : total * divide;
      if (a.part_out != nullptr)
        a.part_out[(to.lse * a.splits + part.split) * a.v.dim + c] = total;
      else
        static_cast<T*>(a.out)[to.out + c] = from_float<T>(total);
    }
  }
}

// The parts of a row together: a block for each, whose warps take every fourth part.
template <class T>
__global__ void __launch_bounds__(32 * kDecodeWarps) combine_kernel(const __grid_constant__ DecodeArguments a) {
  wait_for_launch_before();
  constexpr int kMostDim = 256, kEach = kMostDim / 32;  // numbers a thread
  const int64_t index = blockIdx.x;                     // of [batch, head, row]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = a.v.dim;
  const int head = int(index / a.query_rows % a.heads);
  const float* lses = a.part_lse + index * a.splits;
  float most = -INFINITY, sum = 0.f;
  for (int s = lane; s < a.splits; s += 32) most = fmaxf(most, lses[s]);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, o));
  const float base = most == -INFINITY ? 0.f : most;
  for (int s = lane; s < a.splits; s += 32) sum += exp2_fast(lses[s] - base);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
  float total[kEach] = {};
  const int column = lane * kEach;
  if (column < dim) {
#pragma unroll 4
    for (int s = warp; s < a.splits; s += kDecodeWarps) {
      const float weight = exp2_fast(lses[s] - base);
      float part[kEach];
      unpack<float>(load<kEach>(a.part_out + (index * a.splits + s) * dim + column), part);
#pragma unroll
      for (int i = 0; i < kEach; ++i) total[i] += weight * part[i];
    }
  }
  __shared__ float totals[kDecodeWarps][kMostDim];
#pragma unroll
  for (int i = 0; i < kEach; ++i) totals[warp][column + i] = total[i];
  __syncthreads();
  float lse;
  const float divide = finish_row(a, head, most, sum, lse);
  if (threadIdx.x == 0 && a.lse != nullptr) a.lse[index] = lse;
  const int64_t batch = index / a.query_rows / a.heads, row = batch * a.query_rows + index % a.query_rows;
  T* out = static_cast<T*>(a.out) + (row * a.heads + head) * dim;
  for (int c = threadIdx.x; c < dim; c += 32 * kDecodeWarps) {
    float f = 0.f;
#pragma unroll
    for (int i = 0; i < kDecodeWarps; ++i) f += totals[i][c];
    out[c] = from_float<T>(f * divide);
  }
}

}  // namespace attention::gpu
