// What blocks of decode have in common: arguments, their part of a sequence, how its keys come to shared memory, where
// results go. sm80_decode.cuh is the kernel of heads of up to 256 elements, sm80_decode_wide.cuh that of wider ones.
#pragma once

#include "kernels/attention/cuda/softmax.cuh"
#include "kernels/attention/cuda/spans.h"
#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.h"
#include "kernels/common/gpu/ptx/cp_async.cuh"

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
  Divider chunks_of_page;  // by as many chunks of keys as a page has
  Divider by_group, by_row_tiles, by_splits, by_key_heads;
  float score_scale, cap_scale;  // as of forward; cap_scale 0: no softcap
};

// What of a sequence a block computes.
struct DecodePart {
  int row_tile, split, key_head, batch;
  int length, total;  // keys in the cache, and with the new ones
  int64_t row;        // of all rows of out, the first of this key head

  __device__ __forceinline__ explicit DecodePart(const DecodeArguments& a) {
    const int splits = a.by_row_tiles(blockIdx.x), key_heads = a.by_splits(splits);
    row_tile = blockIdx.x - splits * a.row_tiles, split = splits - key_heads * a.splits;
    batch = a.by_key_heads(key_heads), key_head = key_heads - batch * a.key_heads;
  }
  // What the launch before may have written is read from here on.
  __device__ __forceinline__ void begin(const DecodeArguments& a) {
    grid_dependency_wait();
    launch_dependents();
    length = a.lengths[batch], total = length < 0 ? 0 : min(length + a.new_rows, a.key_rows);
  }
  __device__ __forceinline__ VisibleRange visible(const DecodeArguments& a) const {
    return {band_of(a.query_rows, total, a.left, a.right), a.query_rows, a.chunk};
  }
  // Where a chunk of kDecodeKeys keys lies: the first index of the cache. A chunk of new keys alone: anywhere.
  __device__ __forceinline__ int page_of(const DecodeArguments& a, int chunk) const {
    if (chunk * kDecodeKeys >= length) return 0;
    if (a.block_table != nullptr) return a.block_table[batch * a.block_table_stride + a.chunks_of_page(chunk)];
    return a.cache_index != nullptr ? a.cache_index[batch] : batch;
  }
  // The chunk's first key in its page.
  __device__ __forceinline__ int row_in_page(const DecodeArguments& a, int chunk) const {
    return chunk * kDecodeKeys - (a.block_table != nullptr ? int(a.chunks_of_page(chunk)) * a.page_rows : 0);
  }
  // Are all of its keys in the cache?
  __device__ __forceinline__ bool is_whole(int chunk) const { return (chunk + 1) * kDecodeKeys <= length; }
  // Chunks of keys [first, end) of this part: of those that some of its rows see.
  template <int kRows = kDecodeRows>  // of a block
  __device__ __forceinline__ Span chunks(const DecodeArguments& a) const {
    if (total == 0) return {0, 0};
    const VisibleRange all = visible(a);
    const int row = row_tile * kRows, rows = a.group * a.query_rows;
    const KeyTiles seen =
        tiles_of(all.keys_of(a.by_group(row)), all.keys_of(a.by_group(min(row + kRows, rows) - 1)), kDecodeKeys);
    const int count = seen.end - seen.first, each = a.by_splits(max(count, 0) + a.splits - 1);
    return {seen.first + min(count, split * each), seen.first + min(count, (split + 1) * each)};
  }
};

// Two rows of a thread, 8 apart, of a block's kRows: what they see, and what is added to their scores.
template <int kRows = kDecodeRows>
struct DecodeRows {
  const DecodePart& part;
  Span seen[2];

  __device__ __forceinline__ DecodeRows(const DecodeArguments& a, const DecodePart& part) : part(part) {
    const VisibleRange visible = part.visible(a);
#pragma unroll
    for (int r = 0; r < 2; ++r) seen[r] = visible.keys_of(a.by_group(first_row() + 8 * r));
  }
  __device__ __forceinline__ int first_row() const {
    return part.row_tile * kRows + int(threadIdx.x) % (2 * kRows) / 32 * 16 + int(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ bool sees_all(int key, int key_end) const {
    return key >= max(seen[0].first, seen[1].first) && key_end <= min(seen[0].end, seen[1].end);
  }

  // Scores of keys from the thread's first one on.
  template <int N>
  __device__ __forceinline__ void finish(float (&s)[N], const DecodeArguments& a, int key) const {
    if (a.cap_scale > 0) {
#pragma unroll
      for (float& f : s) f = tanh_approx(f * a.cap_scale);
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
// last. kRow, kPanel: elements from row to row, and from 64 of its elements to the next 64.
template <class T, int kThreads, int kPanels, int kRow, int kPanel>
__device__ __forceinline__ void start_chunk(const DecodeArguments& a, const DecodePart& part, const Cache& c,
                                            uint16_t* to, int chunk, int page, int thread) {
  constexpr int kLanes = 8, kAtOnce = kThreads / kLanes;  // threads a row, each 16 bytes of every 128; rows
  const T* data = static_cast<const T*>(c.data) + page * c.batch + part.key_head * c.head;
  const T* fresh = static_cast<const T*>(c.fresh) + part.batch * c.fresh_batch + part.key_head * c.fresh_head;
  const int first = part.row_in_page(a, chunk), piece = thread % kLanes;
#pragma unroll
  for (int pass = 0; pass < kDecodeKeys / kAtOnce; ++pass) {
    const int row = pass * kAtOnce + thread / kLanes, key = chunk * kDecodeKeys + row;
    const T* from = key < part.length ? data + (first + row) * c.row : fresh + (key - part.length) * c.fresh_row;
    const int elements = key < part.total ? c.dim - 8 * piece : 0;  // from the thread's first ones on
    if (elements <= 0) from = static_cast<const T*>(c.data);
    uint16_t* place = to + row * kRow + (piece ^ row % 8) * 8;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) cp_async(place + kPanel * i, from + 8 * piece + 64 * i, 64 * i >= elements);
  }
}

// Starts to copy a block's 16 rows of queries, by its 128 threads, laid out as a chunk of keys: zeros behind the last
// row and the last number.
template <class T, int kPanels, int kRow, int kPanel>
__device__ __forceinline__ void start_queries(const DecodeArguments& a, const DecodePart& part, uint16_t* to) {
  const int at = threadIdx.x / 8, piece = threadIdx.x % 8, row = part.row_tile * kDecodeRows + at;
  const int query_row = a.by_group(row);
  const int elements = row < a.group * a.query_rows ? a.k.dim - 8 * piece : 0;  // from the thread's first ones on
  const T* none = static_cast<const T*>(a.q);
  const T* from = none + part.batch * a.q_batch + query_row * a.q_row +
                  (part.key_head * a.group + row - query_row * a.group) * a.q_head + 8 * piece;
  uint16_t* place = to + at * kRow + (piece ^ at % 8) * 8;
#pragma unroll
  for (int i = 0; i < kPanels; ++i)
    cp_async(place + kPanel * i, 64 * i < elements ? from + 64 * i : none, 64 * i >= elements);
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
    const int i = a.by_group(row);
    head = key_head * a.group + row - i * a.group;
    out = ((int64_t{batch} * a.query_rows + i) * a.heads + head) * a.v.dim;
    lse = (int64_t{batch} * a.heads + head) * a.query_rows + i;
  }
};

// A row's final factor and lse from its largest exponent and its sum, with the sink.
__device__ __forceinline__ float finish_row(const DecodeArguments& a, int head, float max, float sum, float& lse) {
  float shrink = 1.f;
  if (a.sinks != nullptr) {
    const float s = a.sinks[head] * kLog2e, larger = fmaxf(max, s), base = finite_or_zero(larger);
    shrink = exp2_approx(max - base);
    sum = sum * shrink + exp2_approx(s - base);
    max = larger;
  }
  lse = sum == 0.f ? -INFINITY : (max + log2f(sum)) * kLn2;
  return sum == 0.f ? 0.f : shrink * rcp_approx(sum);
}

// Outputs of a block in which each of some consumers, `number` from 0 on, has kColumns columns of all rows and the sums
// of all weights. A thread has the rows first_row + lane / 4 and 8 further on, and pairs of columns, as products give
// them.
template <class T, int kColumns>
__device__ __forceinline__ void store_columns(const DecodeArguments& a, const DecodePart& part,
                                              const RowSoftmax& softmax, const float (&out)[kColumns / 2],
                                              int first_row, int number, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(softmax.state[r].sum), max = softmax.state[r].max * a.score_scale;
    const int row = first_row + lane / 4 + 8 * r;
    if (row >= a.group * a.query_rows) continue;
    const OutRow to(a, part.batch, part.key_head, row);
    const bool parts = a.part_out != nullptr;
    float lse = sum == 0.f ? -INFINITY : max + log2f(sum);
    // Of a part without the sink: that is the whole row's.
    const float factor = parts ? sum == 0.f ? 0.f : rcp_approx(sum) : finish_row(a, to.head, max, sum, lse);
    if (number == 0 && lane % 4 == 0) {
      if (parts) a.part_lse[to.lse * a.splits + part.split] = lse;
      if (!parts && a.lse != nullptr) a.lse[to.lse] = lse;
    }
    const int first = number * kColumns + lane % 4 * 2, columns = a.v.dim - first;  // of the thread's first one on
    const auto value = [&](int i) { return factor == 0.f ? 0.f : out[i] * factor; };
    if (parts) {
      float* part_out = a.part_out + (to.lse * a.splits + part.split) * a.v.dim + first;
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        if (8 * i < columns)
          *reinterpret_cast<float2*>(part_out + 8 * i) = make_float2(value(4 * i + 2 * r), value(4 * i + 2 * r + 1));
    } else {
      T* whole_out = static_cast<T*>(a.out) + to.out + first;
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        if (8 * i < columns)
          *reinterpret_cast<uint32_t*>(whole_out + 8 * i) =
              pack_pair<T>(value(4 * i + 2 * r), value(4 * i + 2 * r + 1));
    }
  }
}

}  // namespace attention::gpu
