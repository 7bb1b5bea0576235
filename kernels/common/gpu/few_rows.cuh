// The kernel of few_rows.h. A block has a run of tiles of 8 outputs; its 16 warps share the columns of each, and every
// warp reads its part of the weights ahead of its work, straight into the registers of an mma: 4 threads read 64
// contiguous bytes of a row, and the product takes the columns in that order, which a sum does not mind. Rows of x are
// the other operand, so that 1 row and 16 are the same work. The warps' sums meet in shared memory, in a fixed order.
#pragma once

#include "kernels/common/gpu/few_rows_held.cuh"
#include "kernels/common/gpu/few_rows_parts.cuh"

namespace kernels::gpu {

// How many warps share a row where all of x is read at once.
__device__ __forceinline__ int warps_a_row(int rows) {
  return rows > 8 ? 1 : rows > 4 ? 2 : rows > 2 ? 4 : rows > 1 ? 8 : 16;
}

// Asked for where it stands: the compiler moves it behind no weights.
__device__ __forceinline__ uint4 load_in_order(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// Llama's norm of all rows into shared memory: a warp has a row or a part of one. Code is written once for all groups
// of vectors: they are squared from the first to the last, and normed from the last, which is still there, to the
// first.
// kGroup: vectors that a thread holds.
template <class T, int kGroup>
class NormedRows {
 public:
  __device__ __forceinline__ explicit NormedRows(const FewRows& a) : a_(a), parts_(warps_a_row(a.rows)) {
    const int warp = threadIdx.x / 32;
    row_ = warp / parts_;
    at_ = (warp % parts_ * 32 + int(threadIdx.x) % 32) * N;
    x_ = static_cast<const T*>(a.x) + int64_t{row_} * a.x_stride;
  }
  __device__ __forceinline__ void ask() {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      held_[i] = make_uint4(0, 0, 0, 0);
      if (inside(i)) held_[i] = load_in_order(x_ + column(i));
    }
  }
  // After ask(). weight: there when this launch's own copies are.
  __device__ __forceinline__ void norm(T* to, int to_stride, const T* weight, float* squares) {
    const int whole = kGroup * step();
    float sum = 0.f;
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float f[N];
        unpack(Pack<T, N>{{held_[i].x, held_[i].y, held_[i].z, held_[i].w}}, f);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += f[k] * f[k];
      }
      if (at_ + whole >= a_.in) break;
      at_ += whole;
      ask();
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    wait_copies<0>();
    __syncthreads();
    if (row_ < a_.rows) {
      float total = 0.f;
#pragma unroll 1
      for (int i = 0; i < parts_; ++i) total += squares[row_ * parts_ + i];
      const float rstd = rsqrtf(total / float(a_.in) + a_.eps);
#pragma unroll 1
      while (true) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          if (!inside(i)) continue;
          float f[N], w[N];
          unpack(Pack<T, N>{{held_[i].x, held_[i].y, held_[i].z, held_[i].w}}, f);
          unpack<T, N>(*reinterpret_cast<const Pack<T, N>*>(weight + column(i)), w);
#pragma unroll
          for (int k = 0; k < N; ++k) f[k] = rounded<T>(f[k] * rstd) * w[k];
          const Pack<T, N> normed = pack<T>(f);  // store() is for global memory
          *reinterpret_cast<uint4*>(to + row_ * to_stride + column(i)) =
              make_uint4(normed.w[0], normed.w[1], normed.w[2], normed.w[3]);
        }
        if (at_ < whole) break;
        at_ -= whole;
        ask();
      }
    }
    __syncthreads();
  }

 private:
  static constexpr int N = kPerVector<T>;
  __device__ __forceinline__ int step() const { return parts_ * 32 * N; }
  __device__ __forceinline__ int column(int i) const { return at_ + i * step(); }
  __device__ __forceinline__ bool inside(int i) const { return row_ < a_.rows && column(i) < a_.in; }
  const FewRows& a_;
  const T* x_;
  int parts_, row_, at_;
  uint4 held_[kGroup];
};

// Asks for this warp's columns of x as they are.
template <class T>
__device__ __forceinline__ void copy_columns(const FewRows& a, T* to, int to_stride, int units) {
  constexpr int kPieces = kFewUnit / 8, kUnits = 32 / kPieces;  // of a unit, at once
  const int lane = threadIdx.x % 32;
  const T* x = static_cast<const T*>(a.x);
#pragma unroll 1
  for (int r = 0; r < a.rows; ++r, x += a.x_stride, to += to_stride) {
#pragma unroll 1
    for (int unit = lane / kPieces; unit < units; unit += kUnits) {
      const int c = (unit * kFewWarps + int(threadIdx.x) / 32) * kFewUnit + lane % kPieces * 8;
      if (c < a.in) start_copy(to + c, x + c, false);
    }
  }
  commit_copies();
}

// Where x lies for the products: in shared memory if that leaves room for the next launch's beside it, or if it must.
inline bool few_rows_shares_x(const FewRows& a) {
  constexpr int64_t kBeside = 64 << 10;
  return a.norm != nullptr || int64_t{a.rows} * (a.in + kFewPad) * 2 <= kBeside;
}
template <class T, int kRows>
int64_t few_rows_shared(const FewRows& a) {
  const int64_t rows = few_rows_shares_x(a) ? a.rows : 0, weight = a.norm == nullptr ? 0 : a.in;
  return (rows * (a.in + kFewPad) + weight) * int64_t{sizeof(T)} +
         2 * kFewGroup * kFewWarps * kRows * kFewTile * int64_t{sizeof(float)};
}

// The weights' tiles one after the other, for one thread's row of each.
template <class T>
struct FewWalk {
  const FewRows& a;
  int which, first;  // of which weight; its row
  const char* row;
  bool inside;

  // Tile `index`.
  __device__ __forceinline__ FewWalk(const FewRows& rows, int index) : a(rows) {
    which = 0, first = index * kFewTile;
    if (a.act != FewRowsAct::kNone) {
      which = index & 1, first = (index >> 1) * kFewTile;
    } else {
      while (which + 1 < a.weights && first >= padded()) first -= padded(), ++which;
    }
    find();
  }
  __device__ __forceinline__ void next() {
    if (a.act != FewRowsAct::kNone) {
      first += which * kFewTile, which ^= 1;
    } else {
      first += kFewTile;
      if (which + 1 < a.weights && first >= padded()) first = 0, ++which;
    }
    find();
  }

 private:
  __device__ __forceinline__ int padded() const { return (a.w[which].rows + kFewTile - 1) / kFewTile * kFewTile; }
  __device__ __forceinline__ void find() {
    const FewRowsWeight& w = a.w[which];
    const int own = first + int(threadIdx.x) % 32 / 4;
    row = static_cast<const char*>(w.data) + own * w.stride * int64_t{sizeof(T)};
    inside = own < w.rows;
  }
};

// kRows: 1, 8 or 16, at least a.rows. kDepth: units of a warp on their way. 4 are 64 KB a multiprocessor, and few enough
// registers for the next launch beside this one.
//
// A launch of a wide layer finds no code in the multiprocessor's caches that is not the launch's before, and in L2 only
// what the weights have left there: so the code is short, the same for all of a layer's products, and what is done once
// a group of tiles is written once, not for every place of the ring of registers.
template <class T, int kRows, int kDepth>
__global__ void __launch_bounds__(kFewThreads, kDepth <= kFewDepth ? 2 : 1)
    few_rows_kernel(const __grid_constant__ FewRows a, const int tiles, const int per_pair, const bool shares_x) {
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ float squares[kFewWarps];
  constexpr int kTileSums = kFewWarps * kRows * kFewTile;
  auto* sums = reinterpret_cast<float*>(raw);  // two groups of tiles, that take turns
  auto* shared_x = reinterpret_cast<T*>(raw + 2 * kFewGroup * kTileSums * sizeof(float));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 8;
  const int pairs = tiles / per_pair;
  const int begin = int(int64_t{pairs} * blockIdx.x / gridDim.x) * per_pair;
  const int end = int(int64_t{pairs} * (blockIdx.x + 1) / gridDim.x) * per_pair;
  const int units = (a.in + kFewUnit * kFewWarps - 1) / (kFewUnit * kFewWarps);
  const int shared_stride = a.in + kFewPad;
  T* shared_norm = shared_x + a.rows * shared_stride;
  const auto ask_norm = [&] {
    if (a.norm == nullptr) return;
#pragma unroll 1
    for (int i = threadIdx.x * 8; i < a.in; i += kFewThreads * 8)
      start_copy(shared_norm + i, static_cast<const T*>(a.norm) + i, false);
    commit_copies();
  };

  uint4 ring[kDepth][2];
  FewWalk<T> from(a, begin);
  int next_tile = begin, next_column = warp * kFewUnit + c;
  const auto fetch = [&](uint4(&to)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = next_column + 32 * h;
      const bool there = next_tile < end && from.inside && column < a.in;
      to[h] = there ? load_streamed(from.row + column * int64_t{sizeof(T)}) : make_uint4(0, 0, 0, 0);
    }
    if ((next_column += kFewUnit * kFewWarps) < units * kFewUnit * kFewWarps) return;
    next_column = warp * kFewUnit + c;
    if (++next_tile < end) from.next();
  };

  // What nobody writes meanwhile is on its way before the launch before this one has ended.
  NormedRows<T, (kRows == 1 ? 1 : kDepth <= kFewDepth ? 2 : 4)> normed(a);
  const auto wait_and_ask = [&] {
    wait_for_launch_before();
    next_launch_may_begin();  // not before the wait: what is older than this launch is done when the next one begins
    if (!a.weights_are_old) ask_norm();
    if (a.norm != nullptr)
      normed.ask();
    else if (shares_x)
      copy_columns<T>(a, shared_x, shared_stride, units);
  };
  if (a.weights_are_old)
    ask_norm();
  else
    wait_and_ask();

  const T* x = static_cast<const T*>(a.x);
  int stride = int(a.x_stride), far = 0;
  const T* mine = x;
  T residual{};
  float d[4] = {};
  int tile = begin, unit = 0, in_group = 0, turn = 0, done = 0;  // done: of the ring, in this round
  bool filling = true;
#pragma unroll 1
  while (true) {
    bool met = false;
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
      if (j < done || met) continue;
      if (!filling) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = (unit * kFewWarps + warp) * kFewUnit + 32 * h;
          const bool inside = column + c < a.in;
          uint4 rows[2] = {};
          if (inside) rows[0] = *reinterpret_cast<const uint4*>(mine + column);
          if (kRows == 16 && inside) rows[1] = reinterpret_cast<const uint4*>(mine + column)[far];
          const uint4 w = ring[j][h];
          const uint32_t low[4] = {rows[0].x, rows[1].x, rows[0].y, rows[1].y};
          const uint32_t high[4] = {rows[0].z, rows[1].z, rows[0].w, rows[1].w};
          multiply_16x8<T>(d, low, w.x, w.y);
          multiply_16x8<T>(d, high, w.z, w.w);
        }
        if (++unit == units) {
          unit = 0;
          float* to = sums + (turn * kFewGroup + in_group) * kTileSums + (warp * kRows + g) * kFewTile + lane % 4 * 2;
          if (g < kRows) *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
          if (kRows == 16) *reinterpret_cast<float2*>(to + 8 * kFewTile) = make_float2(d[2], d[3]);
          d[0] = d[1] = d[2] = d[3] = 0.f;
          ++tile, ++in_group;
          if (in_group == kFewGroup || tile == end) met = true, done = j + 1;
        }
      }
      fetch(ring[j]);
    }
    if (filling) {
      filling = false;
      if (a.weights_are_old) wait_and_ask();
      if (a.norm != nullptr) {
        normed.norm(shared_x, shared_stride, shared_norm, squares);
      } else {
        wait_copies<0>();
        __syncwarp();
      }
      if (shares_x) x = shared_x, stride = shared_stride;
      // This thread's rows of x, lane / 4 and 8 further on. Behind the last row it is the last one again: what comes of
      // that is never written.
      mine = x + int64_t{min(g, a.rows - 1)} * stride + c;
      // in vectors: elements may be over 2^31
      far = (min(g + 8, a.rows - 1) - min(g, a.rows - 1)) * (stride / 8);
    } else if (met) {
      __syncthreads();  // and the other turn's sums have been read: everybody was past them before it came here
      few_outputs<T, kRows>(a, sums + turn * kFewGroup * kTileSums, tile - in_group, in_group, residual);
      if (tile == end) break;
      in_group = 0, turn ^= 1;
    } else {
      done = 0;
    }
    if (in_group == 0) residual = residual_of<T, kRows>(a, tile, end);
  }
}

template <class T, int kRows>
void launch_few_rows(const FewRows& a, Stream stream) {
  constexpr int kDeep = 6;  // more of it and x, which is asked for behind it, comes later
  const int tiles = few_rows_tiles(a), per_pair = a.act == FewRowsAct::kNone ? 1 : 2;
  if (tiles == 0) return;
  if (holds_x(a)) return launch_few_rows_held<T, (kRows < 8 ? 8 : kRows)>(a, stream);
  const int blocks = tiles / per_pair < multiprocessors() ? tiles / per_pair : multiprocessors();
  const int64_t units = divide_up(tiles, blocks) * divide_up(a.in, kFewUnit * kFewWarps);  // of a warp
  const auto with_depth = [&]<int kDepth>() {
    launch_after_with_memory<few_rows_kernel<T, kRows, kDepth>>(few_rows_shared<T, kRows>(a), blocks, kFewThreads,
                                                                /*cluster=*/1, stream, a, tiles, per_pair,
                                                                few_rows_shares_x(a));
  };
  if (units < 20) return with_depth.template operator()<kFewDepth>();
  with_depth.template operator()<kDeep>();
}

// What fits_few_rows() says no to is the caller's to give to somebody else.
inline void few_rows(const FewRows& a, Stream stream) {
  const auto with_type = [&]<class T>() {
    if (a.rows == 1) return launch_few_rows<T, 1>(a, stream);
    if (a.rows <= 8) return launch_few_rows<T, 8>(a, stream);
    launch_few_rows<T, 16>(a, stream);
  };
  if (a.dtype == DType::kBFloat16) return with_type.template operator()<BFloat16>();
  with_type.template operator()<Half>();
}

}  // namespace kernels::gpu
