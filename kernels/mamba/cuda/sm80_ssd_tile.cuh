// Tiles of state space duality in shared memory, and their products (ssd_plan.h says in what elements).
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/mamba/cuda/ssd_plan.h"
#include "kernels/mamba/cuda/view.cuh"

namespace mamba::ssd::gpu {

using namespace mamba::gpu;
using kernels::gpu::cp_async;
using kernels::gpu::cp_async_commit;
using kernels::gpu::cp_async_wait;

// ---- elements in parts

// Two elements beside each other, in kParts words.
template <int kParts>
struct Pair {
  uint32_t part[kParts];
};
template <int kParts>
__device__ __forceinline__ Pair<kParts> in_parts(float low, float high) {
  Pair<kParts> out;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    out.part[i] = pack_pair<BFloat16>(low, high);
    const float2 taken = unpack_pair<BFloat16>(out.part[i]);
    low -= taken.x, high -= taken.y;
  }
  return out;
}
template <int kParts>
__device__ __forceinline__ float2 whole(const Pair<kParts>& p) {
  float2 sum = unpack_pair<BFloat16>(p.part[kParts - 1]);
#pragma unroll
  for (int i = kParts - 2; i >= 0; --i) {
    const float2 v = unpack_pair<BFloat16>(p.part[i]);
    sum.x += v.x, sum.y += v.y;
  }
  return sum;
}

// ---- tiles

// Rows in shared memory: `stride` elements apart (a multiple of 8, odd in units of 8: eight rows lie in all banks),
// parts `apart`. Rows and columns behind the last are 0.
struct Rows {
  BFloat16* data;
  int stride, apart;

  __device__ __forceinline__ BFloat16* at(int part, int row, int column) const {
    return data + part * apart + row * stride + column;
  }
  template <int kParts>
  __device__ __forceinline__ Pair<kParts> pair(int row, int column) const {
    Pair<kParts> p;
#pragma unroll
    for (int i = 0; i < kParts; ++i) p.part[i] = *reinterpret_cast<const uint32_t*>(at(i, row, column));
    return p;
  }
  template <int kParts>
  __device__ __forceinline__ float2 elements(int row, int column) const {
    return whole(pair<kParts>(row, column));
  }
  template <int kParts>
  __device__ __forceinline__ void set(int row, int column, float low, float high) const {
    const Pair<kParts> p = in_parts<kParts>(low, high);
#pragma unroll
    for (int i = 0; i < kParts; ++i) *reinterpret_cast<uint32_t*>(at(i, row, column)) = p.part[i];
  }
};
constexpr int kPad = 8;
__host__ __device__ constexpr int padded(int n) { return (n + 15) / 16 * 16; }
__host__ __device__ constexpr int tile_elements(int parts, int rows, int columns) {
  return parts * rows * (padded(columns) + kPad);
}
__device__ __forceinline__ Rows tile(BFloat16* data, int rows, int columns) {
  const int stride = padded(columns) + kPad;
  return {data, stride, rows * stride};
}

// Tokens of one head or group where they lie.
template <class T>
struct Source {
  const T* data;  // the first row, first number
  int64_t step;   // between rows
  int rows, columns;
  const int* starts;  // of rows; those of padding count as zeros. Null: none is padding
  bool vectors;       // rows begin at whole 16 bytes, and hold whole ones
};
template <class T>
__device__ __forceinline__ Source<T> source_of(const Tokens& t, int64_t batch, int64_t first, int64_t head, int rows,
                                               int columns, const int* starts) {
  const T* data = static_cast<const T*>(t.data) + batch * t.batch + first * t.step + head * t.head;
  const uint64_t bytes =
      sizeof(T) * uint64_t(t.batch | t.step | t.head | columns) | reinterpret_cast<uintptr_t>(t.data);
  return {data, t.step, rows, columns, starts, bytes % 16 == 0};
}
// Numbers from `column` on.
template <class T>
__device__ __forceinline__ Source<T> from_column(Source<T> s, int column, int most) {
  s.data += column;
  s.columns = s.columns - column < most ? s.columns - column : most;
  s.vectors = s.vectors && s.columns % 8 == 0;
  return s;
}

// Which 16-byte pieces of a tile's rows a thread copies: of rows `row`, row + rows, ... those at `column`.
template <int kThreads>
struct Pieces {
  int row, rows, column;

  __device__ __forceinline__ Pieces(int columns, int last) {
    const int pieces = columns / 8, t = int(threadIdx.x);
    rows = pieces == 0 ? 1 : kThreads / pieces;
    row = pieces == 0 || t >= rows * pieces ? last : t / pieces;
    column = pieces == 0 ? 0 : t % pieces * 8;
  }
};

// A tile of kRows tokens. Copies are started, not waited for, where a number has one part.
template <class T, int kRows, int kThreads>
__device__ __forceinline__ void load_tile(const Rows& to, const Source<T>& from, const Pieces<kThreads>& pieces) {
  constexpr int kParts = Tile<T>::kParts;
  const int columns = to.stride - kPad;
  const auto counts = [&](int row) { return row < from.rows && (from.starts == nullptr || from.starts[row] < kRows); };
  if constexpr (kParts == 1) {
    if (from.vectors) {
      const bool there = pieces.column < from.columns;
      BFloat16* out = to.at(0, pieces.row, pieces.column);
      const T* in = there ? from.data + pieces.row * from.step + pieces.column : from.data;
      const int64_t step = there ? pieces.rows * from.step : 0;
      if (from.rows == kRows && from.starts == nullptr) {
#pragma unroll 4
        for (int row = pieces.row; row < kRows; row += pieces.rows) {
          cp_async(out, in, !there);
          out += pieces.rows * to.stride, in += step;
        }
        return;
      }
      for (int row = pieces.row; row < kRows; row += pieces.rows) {
        const bool counted = there && counts(row);
        cp_async(out, counted ? in : from.data, !counted);
        out += pieces.rows * to.stride, in += step;
      }
      return;
    }
  }
  for (int i = threadIdx.x; i < kRows * columns / 2; i += kThreads) {
    const int row = i / (columns / 2), column = i % (columns / 2) * 2;
    const T* at = from.data + row * from.step + column;
    const bool there = counts(row);
    to.template set<kParts>(row, column, there && column < from.columns ? to_float(at[0]) : 0.f,
                            there && column + 1 < from.columns ? to_float(at[1]) : 0.f);
  }
}

// The same in the usual case (is_plain): whole vectors, none of padding, kColumns of them there.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_plain(const Rows& to, const BFloat16* data, int64_t step, int rows) {
  constexpr int kPieces = kColumns / 8, kPass = kThreads / kPieces;
  const int row = int(threadIdx.x) / kPieces, column = int(threadIdx.x) % kPieces * 8;
  const BFloat16* in = data + row * step + column;
  BFloat16* out = to.at(0, row, column);
#pragma unroll
  for (int i = 0; i < kRows / kPass; ++i) {
    cp_async(out + i * kPass * to.stride, in, row + i * kPass >= rows);
    in += kPass * step;
  }
}

// A state's tile as ssd_states keeps it: [part][dim][state8], rows from `row` on.
template <int kParts, int kRows, bool kPlain, int kThreads>
__device__ __forceinline__ void load_state(const Rows& to, const BFloat16* from, int row, int dim, int state8,
                                           const Pieces<kThreads>& pieces) {
  const bool there = kPlain || pieces.column < state8;
  const int64_t step = int64_t{pieces.rows} * state8;
  from += int64_t{row + pieces.row} * state8 + pieces.column;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const BFloat16* in = from + int64_t{part} * dim * state8;
    BFloat16* out = to.at(part, pieces.row, pieces.column);
#pragma unroll 4
    for (int r = pieces.row; r < kRows; r += pieces.rows) {
      const bool zeros = !kPlain && (!there || row + r >= dim);
      cp_async(out, zeros ? from : in, zeros);
      out += pieces.rows * to.stride, in += step;
    }
  }
}
// Whole 16-byte pieces of floats.
template <int kThreads>
__device__ __forceinline__ void load_floats_early(float* to, const float* from, int count) {
  for (int i = threadIdx.x; i < count / 4; i += kThreads) cp_async(to + 4 * i, from + 4 * i, false);
}

// ---- tokens outside: rows as a thread has them in its sums

template <class T>
struct Outside {
  T* row[2];    // a thread's two, at the tile's first number; null where the row is behind the last
  int columns;  // from there on
  bool fours;   // elements lie at multiples of four
};
// Rows `row` and 8 further of a head's tile, of which `rows` are there.
template <class T>
__device__ __forceinline__ Outside<T> outside_of(const Tokens& t, int64_t batch, int64_t first, int64_t head, int row,
                                                 int rows, int column, int dim) {
  T* data = static_cast<T*>(t.data) + batch * t.batch + (first + row) * t.step + head * t.head + column;
  const uint64_t elements = uint64_t(t.batch | t.step | t.head | dim);
  const bool fours = elements % 4 == 0 && reinterpret_cast<uintptr_t>(t.data) % (4 * sizeof(T)) == 0;
  return {{row < rows ? data : nullptr, row + 8 < rows ? data + 8 * t.step : nullptr}, dim - column, fours};
}
template <class T>
__device__ __forceinline__ float2 read_pair(const Outside<T>& from, int second, int column) {
  const T* at = from.row[second] + column;
  return {column < from.columns ? to_float(at[0]) : 0.f, column + 1 < from.columns ? to_float(at[1]) : 0.f};
}

// D of a head's tile: one number for all of the head's, or each its own.
struct Skip {
  float one;
  const float* each;  // from the tile's first number on; null: all have `one`

  __device__ __forceinline__ float at(int n, int columns) const {  // of the tile's `columns`
    return each == nullptr ? one : n < columns ? each[n] : 0.f;
  }
};
template <bool kPlain>
__device__ __forceinline__ Skip skip_of(const Problem& p, int64_t head, int first_number) {
  return {p.D != nullptr && !p.each_D ? p.D[head] : 0.f,
          !kPlain && p.D != nullptr && p.each_D ? p.D + head * int(p.dim) + first_number : nullptr};
}

// ---- the items of ssd_outputs and ssd_gradients: a chunk, and a block of a group's heads, tile by tile of each

template <class T>
struct Item {
  int64_t batch, chunk, group, block, first_head, first;  // first: token
  int rows, tiles, count;                                 // tokens; tiles a head; tiles in all

  __device__ __forceinline__ Item(const Problem& p, const Plan& plan) {
    constexpr int kTokens = Tile<T>::kTokens, kTileDim = Tile<T>::kTileDim;
    int64_t item = blockIdx.x;
    block = item % plan.blocks, item /= plan.blocks;
    group = item % p.groups, item /= p.groups;
    chunk = item % plan.chunks, batch = item / plan.chunks;
    const int64_t heads = p.heads / p.groups, before = block * plan.heads_each, left = heads - before;
    first_head = group * heads + before;
    first = chunk * kTokens;
    rows = int(p.length - first < kTokens ? p.length - first : kTokens);
    tiles = p.dim == 0 ? 1 : int((p.dim + kTileDim - 1) / kTileDim);
    count = int(left < plan.heads_each ? left : plan.heads_each) * tiles;
  }
  __device__ __forceinline__ int64_t head(int i) const { return first_head + i / tiles; }
  __device__ __forceinline__ int number(int i) const { return i % tiles * Tile<T>::kTileDim; }  // the tile's first
  __device__ __forceinline__ int64_t of_chunk(const Problem& p, const Plan& plan, int i) const {
    return (batch * plan.chunks + chunk) * p.heads + head(i);
  }
};
inline int64_t items_of(const Problem& p, const Plan& plan) {
  return p.heads == 0 ? 0 : p.batch * plan.chunks * p.groups * plan.blocks;
}

// ---- products of a warp: sums of 16 rows, kGroups times 16 columns

// Layout of an operand: K-major, k runs along rows; MN-major, k runs from row to row.
enum class Major { kK, kMN };

__device__ __forceinline__ int lane_of() { return int(threadIdx.x) % 32; }
// Known to be the same for all lanes: what depends on it is a jump, not instructions left out one by one.
__device__ __forceinline__ int warp_of() { return __shfl_sync(kAllLanes, int(threadIdx.x) / 32, 0); }

// A[16 rows from `row`, 16 k from `k`]
template <Major kMajor>
__device__ __forceinline__ void load_a(uint32_t (&w)[4], const Rows& a, int part, int row, int k) {
  const int t = lane_of(), in = t % 8, second = t / 8 % 2 * 8, third = t / 16 * 8;
  if constexpr (kMajor == Major::kK)
    kernels::gpu::ldmatrix_x4(w, a.at(part, row + in + second, k + third));
  else
    kernels::gpu::ldmatrix_x4_trans(w, a.at(part, k + in + third, row + second));
}
// B[16 k, 16 columns]: words 0 and 1 of the first eight columns, 2 and 3 of the others.
template <Major kMajor>
__device__ __forceinline__ void load_b(uint32_t (&w)[4], const Rows& b, int part, int k, int column) {
  const int t = lane_of(), in = t % 8, second = t / 8 % 2 * 8, third = t / 16 * 8;
  if constexpr (kMajor == Major::kK)
    kernels::gpu::ldmatrix_x4(w, b.at(part, column + in + third, k + second));
  else
    kernels::gpu::ldmatrix_x4_trans(w, b.at(part, k + in + second, column + third));
}

// 16 x 16 sums: two blocks of eight columns, laid out as mma.cuh says.
struct Sums {
  float d[2][4];
};
__device__ __forceinline__ void multiply_16x16(Sums& s, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  kernels::gpu::mma_m16n8k16<BFloat16>(s.d[0], a, b[0], b[1]);
  kernels::gpu::mma_m16n8k16<BFloat16>(s.d[1], a, b[2], b[3]);
}
// s += A B of 16 k from `k`: A's fragments of all parts, B's 16 columns from `column`. Parts too small to count are
// left out.
template <Major kMajor, int kParts>
__device__ __forceinline__ void multiply_parts(Sums& s, const uint32_t (&a)[kParts][4], const Rows& b, int k,
                                               int column) {
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    uint32_t columns[4];
    load_b<kMajor>(columns, b, j, k, column);
#pragma unroll
    for (int i = 0; i + j < kParts; ++i) multiply_16x16(s, a[i], columns);
  }
}

// sums[g] += A[rows from `row`, k from 0 to `elements`] B[.., columns of group g], `column(g)` the group's first
// column; those that skip(g) says are left out.
template <int kParts, Major kA, Major kB, int kGroups, class Column, class Skip>
__device__ __forceinline__ void multiply(Sums (&sums)[kGroups], const Rows& a, int row, const Rows& b, int elements,
                                         const Column& column, const Skip& skip) {
#pragma unroll 4
  for (int k = 0; k < elements; k += 16) {
    uint32_t rows[kParts][4];
#pragma unroll
    for (int i = 0; i < kParts; ++i) load_a<kA>(rows[i], a, i, row, k);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!skip(g)) multiply_parts<kB>(sums[g], rows, b, k, column(g));
    }
  }
}
template <int kParts, Major kA, Major kB, int kGroups, class Column>
__device__ __forceinline__ void multiply(Sums (&sums)[kGroups], const Rows& a, int row, const Rows& b, int elements,
                                         const Column& column) {
  multiply<kParts, kA, kB>(sums, a, row, b, elements, column, [](int) { return false; });
}

// fn(elements, row, column) of each pair of elements beside each other: row 0 or 1 (8 further), column from the group's
// first.
template <class Fn>
__device__ __forceinline__ void each_pair(Sums& s, const Fn& fn) {
  const int column = lane_of() % 4 * 2;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int row = 0; row < 2; ++row) fn(&s.d[block][2 * row], row, 8 * block + column);
  }
}
__device__ __forceinline__ int first_row() { return lane_of() / 4; }  // of a thread's two, 8 apart

// Numbers of a row of 16, four beside each other a thread: two threads exchange a word each, so that four of them write
// 32 bytes at once. All lanes take part.
__device__ __forceinline__ uint2 four_beside(uint32_t low_block, uint32_t high_block) {
  const bool odd = lane_of() % 2 != 0;
  const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? low_block : high_block, 1);
  return odd ? uint2{other, high_block} : uint2{low_block, other};
}
__device__ __forceinline__ int column_of_four() {
  const int q = lane_of() % 4;
  return q % 2 * 8 + q / 2 * 4;
}
// The sums of columns `column` on to rows outside.
template <class T>
__device__ __forceinline__ void write_sums(const Outside<T>& to, const Sums& s, int column) {
  if constexpr (sizeof(T) == 2) {
    if (to.fours) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const uint2 words = four_beside(pack_pair<T>(s.d[0][2 * second], s.d[0][2 * second + 1]),
                                        pack_pair<T>(s.d[1][2 * second], s.d[1][2 * second + 1]));
        const int at = column + column_of_four();
        if (to.row[second] != nullptr && at < to.columns) *reinterpret_cast<uint2*>(to.row[second] + at) = words;
      }
      return;
    }
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int at = column + 8 * block + lane_of() % 4 * 2;
      if (to.row[second] == nullptr) continue;
      if (at < to.columns) to.row[second][at] = from_float<T>(s.d[block][2 * second]);
      if (at + 1 < to.columns) to.row[second][at + 1] = from_float<T>(s.d[block][2 * second + 1]);
    }
  }
}
// Over the four threads that have a row.
__device__ __forceinline__ float row_sum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}

// A's fragment times w, which has a number for each k, rounded to parts again.
template <int kParts>
__device__ __forceinline__ void weigh(uint32_t (&a)[kParts][4], const float2& low, const float2& high) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Pair<kParts> p;
#pragma unroll
    for (int part = 0; part < kParts; ++part) p.part[part] = a[part][i];
    const float2 v = whole(p), w = i < 2 ? low : high;
    p = in_parts<kParts>(w.x * v.x, w.y * v.y);
#pragma unroll
    for (int part = 0; part < kParts; ++part) a[part][i] = p.part[part];
  }
}

// 32 columns of sums: four threads exchange their words of four blocks, so that each has a block's row, 16 bytes.
__device__ __forceinline__ void write_sums_32(const Outside<BFloat16>& to, const Sums& first, const Sums& next,
                                              int column) {
  const int q = lane_of() % 4;
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const auto pack = [&](const Sums& s, int block) {
      return pack_pair<BFloat16>(s.d[block][2 * second], s.d[block][2 * second + 1]);
    };
    uint32_t w[4] = {pack(first, 0), pack(first, 1), pack(next, 0), pack(next, 1)};
    const auto exchange = [&](int a, int b, int with) {  // a of the upper ones with b of the lower ones
      const bool upper = (q & with) != 0;
      const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? w[a] : w[b], with);
      (upper ? w[a] : w[b]) = other;
    };
    exchange(0, 1, 1), exchange(2, 3, 1), exchange(0, 2, 2), exchange(1, 3, 2);
    if (to.row[second] != nullptr)
      *reinterpret_cast<uint4*>(to.row[second] + column + 8 * q) = {w[0], w[1], w[2], w[3]};
  }
}

// S of a token. Its second part counts where results are of more than bfloat16's digits.
template <int kParts>
struct Decayed {
  float sum, rest;
  __device__ __forceinline__ Decayed(const float* steps, int tokens, int t)
      : sum(steps[kSum * tokens + t]), rest(kParts > 1 ? steps[kRest * tokens + t] : 0.f) {}
};
template <int kParts>  // T_ij
__device__ __forceinline__ float decay(const Decayed<kParts>& i, const Decayed<kParts>& j) {
  return kParts > 1 ? exp2_approx((i.sum - j.sum) + (i.rest - j.rest)) : exp2_approx(i.sum - j.sum);
}

}  // namespace mamba::ssd::gpu
