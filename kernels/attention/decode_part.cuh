// What blocks of decode have in common: arguments, their part of a sequence, how its keys come to shared memory, where
// results go. decode.cuh is the kernel of heads of up to 256 numbers, decode_wide.cuh that of wider ones.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/attention/spans.h"
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
  const float *sinks, *slopes;  // slopes: [heads], or [batch, heads] with the stride; or null
  int64_t q_batch, q_row, q_head, block_table_stride, slopes_batch;
  int query_rows, key_rows, heads, key_heads, group, new_rows, page_rows, splits, row_tiles, left, right, chunk;
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
  __device__ __forceinline__ Sight sight(const DecodeArguments& a) const {
    return {band_of(a.query_rows, total, a.left, a.right), a.query_rows, a.chunk};
  }
  // Where a chunk of kDecodeKeys keys lies: the first index of the cache. A chunk of new keys alone: anywhere.
  __device__ __forceinline__ int page_of(const DecodeArguments& a, int chunk) const {
    if (chunk * kDecodeKeys >= length) return 0;
    if (a.block_table != nullptr) return a.block_table[batch * a.block_table_stride + a.chunks_of_page(chunk)];
    return a.cache_index != nullptr ? a.cache_index[batch] : batch;
  }
  // Chunks of keys [first, end) of this part: of those that some of its rows see.
  template <int kRows = kDecodeRows>  // of a block
  __device__ __forceinline__ Span chunks(const DecodeArguments& a) const {
    if (total == 0) return {0, 0};
    const Sight all = sight(a);
    const int row = row_tile * kRows, rows = a.group * a.query_rows;
    const KeyTiles seen =
        tiles_of(all.keys_of(row / a.group), all.keys_of((min(row + kRows, rows) - 1) / a.group), kDecodeKeys);
    const int count = seen.end - seen.first, each = (count + a.splits - 1) / a.splits;
    return {seen.first + min(count, split * each), seen.first + min(count, (split + 1) * each)};
  }
};

// Two rows of a thread, 8 apart, of a block's kRows: what they see, and what is added to their scores.
template <int kRows = kDecodeRows>
struct DecodeRows {
  const DecodePart& part;
  Span seen[2];

  __device__ __forceinline__ DecodeRows(const DecodeArguments& a, const DecodePart& part) : part(part) {
    const Sight sight = part.sight(a);
#pragma unroll
    for (int r = 0; r < 2; ++r) seen[r] = sight.keys_of((first_row() + 8 * r) / a.group);
  }
  __device__ __forceinline__ int first_row() const {
    return part.row_tile * kRows + int(threadIdx.x) % (2 * kRows) / 32 * 16 + int(threadIdx.x) % 32 / 4;
  }

  // Scores of keys from the thread's first one on.
  template <int N>
  __device__ __forceinline__ void finish(float (&s)[N], const DecodeArguments& a, int key) const {
    if (a.cap_scale > 0) {
#pragma unroll
      for (float& f : s) f = tanh_fast(f * a.cap_scale);
    }
    if (a.slopes != nullptr) add_slopes(s, a, key);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = key + column_of(i);
      if (at < seen[i / 2 % 2].first || at >= seen[i / 2 % 2].end) s[i] = -INFINITY;
    }
  }

  template <int N>
  __device__ __forceinline__ void add_slopes(float (&s)[N], const DecodeArguments& a, int key) const {
    int first = first_row();
    asm volatile("" : "+r"(first));  // so that what follows is not kept in registers where there are no slopes
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(first + 8 * r, a.group * a.query_rows - 1), head = part.key_head * a.group + row % a.group;
      const float slope = a.slopes[part.batch * a.slopes_batch + head] * kLog2e / a.score_scale;
      const int position = row / a.group + part.total - a.query_rows;
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i / 2 % 2 == r) s[i] -= slope * fabsf(float(position - key - column_of(i)));
    }
  }
};

// Starts to copy a chunk of keys or values, by kThreads threads of which this is number `thread`; zeros behind the
// last.
template <class T, int kThreads, int kDim>
__device__ __forceinline__ void start_chunk(const DecodeArguments& a, const DecodePart& part, const Cache& c,
                                            uint16_t (&to)[kDecodeKeys][kDim], int chunk, int page, int thread) {
  constexpr int kLanes = 8, kAtOnce = kThreads / kLanes;  // threads a row, each 16 bytes of every 128; rows
  const T* data = static_cast<const T*>(c.data) + page * c.batch + part.key_head * c.head;
  const T* fresh = static_cast<const T*>(c.fresh) + part.batch * c.fresh_batch + part.key_head * c.fresh_head;
  int first = chunk * kDecodeKeys;
  if (a.block_table != nullptr) first -= int(a.chunks_of_page(chunk)) * a.page_rows;
  const int piece = thread % kLanes;
#pragma unroll
  for (int pass = 0; pass < kDecodeKeys / kAtOnce; ++pass) {
    const int row = pass * kAtOnce + thread / kLanes, key = chunk * kDecodeKeys + row;
    const T* from = key < part.length ? data + (first + row) * c.row : fresh + (key - part.length) * c.fresh_row;
    const int numbers = key < part.total ? c.dim - 8 * piece : 0;  // from the thread's first ones on
    if (numbers <= 0) from = static_cast<const T*>(c.data);
    uint16_t* place = &to[row][(piece ^ row % 8) * 8];
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i) start_copy(place + 64 * i, from + 8 * piece + 64 * i, 64 * i >= numbers);
  }
}

// The A operand of scores, numbers [16 * first, 16 * (first + kSteps)) of 16 rows: zeros behind the last one.
template <class T, int kSteps>
__device__ __forceinline__ void load_queries(const DecodeArguments& a, const DecodePart& part, int first,
                                             uint32_t (&q)[kSteps][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = part.row_tile * kDecodeRows + lane / 4 + 8 * half;
    const T* from = static_cast<const T*>(a.q) + part.batch * a.q_batch + row / a.group * a.q_row +
                    (part.key_head * a.group + row % a.group) * a.q_head + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int column = 16 * first + 8 * i;
      const bool inside = row < a.group * a.query_rows && column < a.k.dim;
      q[i / 2][i % 2 * 2 + half] = inside ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
    }
  }
}

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

// Outputs of a block in which each of some workers, `number` from 0 on, has kColumns columns of all rows and the sums
// of all weights. A thread has the rows first_row + lane / 4 and 8 further on, and pairs of columns, as products give
// them.
template <class T, int kColumns>
__device__ __forceinline__ void store_columns(const DecodeArguments& a, const DecodePart& part,
                                              const RowSoftmax& softmax, const float (&out)[kColumns / 2],
                                              int first_row, int number, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(softmax.sum[r]), most = softmax.most[r] * a.score_scale;
    const int row = first_row + lane / 4 + 8 * r;
    if (row >= a.group * a.query_rows) continue;
    const OutRow to(a, part.batch, part.key_head, row);
    const bool parts = a.part_out != nullptr;
    float lse = sum == 0.f ? -INFINITY : most + log2f(sum);
    // Of a part without the sink: that is the whole row's.
    const float factor = parts ? sum == 0.f ? 0.f : reciprocal(sum) : finish_row(a, to.head, most, sum, lse);
    if (number == 0 && lane % 4 == 0) {
      if (parts) a.part_lse[to.lse * a.splits + part.split] = lse;
      if (!parts && a.lse != nullptr) a.lse[to.lse] = lse;
    }
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const int column = number * kColumns + 8 * i + lane % 4 * 2;
      if (column >= a.v.dim) continue;
      const float x = factor == 0.f ? 0.f : out[4 * i + 2 * r] * factor;
      const float y = factor == 0.f ? 0.f : out[4 * i + 2 * r + 1] * factor;
      if (parts)
        *reinterpret_cast<float2*>(a.part_out + (to.lse * a.splits + part.split) * a.v.dim + column) =
            make_float2(x, y);
      else
        *reinterpret_cast<uint32_t*>(static_cast<T*>(a.out) + to.out + column) = pack_pair<T>(x, y);
    }
  }
}

}  // namespace attention::gpu
