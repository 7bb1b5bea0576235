// The kernel of few_rows.h. A block has a run of tiles of 8 outputs; its 16 warps share the columns of each, and every
// warp reads its part of the weights ahead of its work, straight into the registers of an mma: 4 threads read 64
// contiguous bytes of a row, and the product takes the columns in that order, which a sum does not mind. Rows of x are
// the other operand, so that 1 row and 16 are the same work. The warps' sums meet in shared memory, in a fixed order.
#pragma once

#include "kernels/common/gpu/gemv/few_rows_held.cuh"
#include "kernels/common/gpu/gemv/few_rows_parts.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"

namespace kernels::gpu {

// How many warps share a row where all of x is read at once.
__device__ __forceinline__ int warps_a_row(int rows) {
  return rows > 8 ? 1 : rows > 4 ? 2 : rows > 2 ? 4 : rows > 1 ? 8 : 16;
}

// Llama's norm of all rows into shared memory. weight: there already, by this launch's own copies.
template <class T>
__device__ __forceinline__ void norm_rows(const FewRows& a, T* to, int to_stride, const T* weight, float* squares) {
  constexpr int N = kPerVector<T>;
  const int warp = threadIdx.x / 32, parts = warps_a_row(a.rows), r = warp / parts, part = warp % parts;
  const int first = (part * 32 + int(threadIdx.x) % 32) * N, step = parts * 32 * N;
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  if (r < a.rows) {
    float sum = 0.f;
#pragma unroll 4
    for (int c = first; c < a.in; c += step) {
      float f[N];
      load_floats<N>(x + c, f);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += f[i] * f[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[warp] = sum;
  }
  cp_async_wait<0>();
  __syncthreads();
  if (r < a.rows) {
    float sum = 0.f;
    for (int i = 0; i < parts; ++i) sum += squares[r * parts + i];
    const float rstd = rsqrtf(sum / float(a.in) + a.eps);
#pragma unroll 4
    for (int c = first; c < a.in; c += step) {
      float f[N], w[N];
      load_floats<N>(x + c, f);
      unpack<T, N>(*reinterpret_cast<const Pack<T, N>*>(weight + c), w);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = rounded<T>(f[i] * rstd) * w[i];
      const Pack<T, N> normed = pack<T>(f);  // store() is for global memory
      *reinterpret_cast<uint4*>(to + r * to_stride + c) =
          make_uint4(normed.w[0], normed.w[1], normed.w[2], normed.w[3]);
    }
  }
  __syncthreads();
}

// This warp's columns of x as they are. Loops stay short: what is run once costs the time that its code takes to come.
template <class T>
__device__ __forceinline__ void copy_columns(const FewRows& a, T* to, int to_stride, int units) {
  constexpr int kPieces = kFewUnit / 8, kUnits = 32 / kPieces;  // of a unit; units at once
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* x = static_cast<const T*>(a.x);
#pragma unroll 1
  for (int r = 0; r < a.rows; ++r, x += a.x_stride, to += to_stride) {
#pragma unroll 1
    for (int unit = lane / kPieces; unit < units; unit += kUnits) {
      const int c = (unit * kFewWarps + warp) * kFewUnit + lane % kPieces * 8;
      if (c < a.in) cp_async(to + c, x + c, false);
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
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

// kRows: 8 or 16, at least a.rows. kDepth: units of a warp on their way. 4 are 64 KB a multiprocessor, and few enough
// registers for the next launch beside this one; where a block has much to read 6 are worth more, and with more than
// that x, which is behind them in the queue, comes late.
template <class T, int kRows, int kDepth>
__global__ void __launch_bounds__(kFewThreads, kDepth == kFewDepth ? 2 : 1)
    few_rows_kernel(const __grid_constant__ FewRows a, const int tiles, const int per_pair, const bool shares_x) {
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ float squares[kFewWarps];
  constexpr int kTileSums = kFewWarps * kRows * kFewTile;
  auto* sums = reinterpret_cast<float*>(raw);  // two groups of tiles, that take turns
  auto* shared_x = reinterpret_cast<T*>(raw + 2 * kFewGroup * kTileSums * sizeof(float));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 8;
  const FewWeights<T> weights{a, g};
  const int pairs = tiles / per_pair;
  const int begin = int(int64_t{pairs} * blockIdx.x / gridDim.x) * per_pair;
  const int end = int(int64_t{pairs} * (blockIdx.x + 1) / gridDim.x) * per_pair;
  const int units = (a.in + kFewUnit * kFewWarps - 1) / (kFewUnit * kFewWarps);

  uint4 ring[kDepth][2];
  int next_tile = begin, next_unit = 0;
  FewTile from = weights.tile(begin);
  const auto fetch = [&](uint4(&to)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = (next_unit * kFewWarps + warp) * kFewUnit + 32 * h + c;
      const bool there = next_tile < end && from.inside && column < a.in;
      to[h] = there ? load_streamed(from.row + column * sizeof(T)) : make_uint4(0, 0, 0, 0);
    }
    if (++next_unit == units) {
      next_unit = 0;
      if (++next_tile < end) from = weights.tile(next_tile);
    }
  };

  // What nobody writes meanwhile is on its way before the launch before this one has ended.
  const int shared_stride = a.in + kFewPad;
  T* shared_norm = shared_x + a.rows * shared_stride;
  if (a.weights_are_old) {
#pragma unroll
    for (int j = 0; j < kDepth; ++j) fetch(ring[j]);
  } else {
    grid_dependency_wait();
#pragma unroll
    for (int j = 0; j < kDepth; ++j) fetch(ring[j]);
  }
  if (a.norm != nullptr) {
#pragma unroll 1
    for (int i = threadIdx.x * 8; i < a.in; i += kFewThreads * 8)
      cp_async(shared_norm + i, static_cast<const T*>(a.norm) + i, false);
    cp_async_commit();
  }
  if (a.weights_are_old) grid_dependency_wait();
  launch_dependents();  // not before the wait: what is older than this launch is done when the next one begins
  T residual = residual_of<T, kRows>(a, begin, end);
  const T* x = static_cast<const T*>(a.x);
  int stride = int(a.x_stride);
  if (shares_x) {
    if (a.norm != nullptr)
      norm_rows<T>(a, shared_x, shared_stride, shared_norm, squares);
    else
      copy_columns<T>(a, shared_x, shared_stride, units);
    x = shared_x, stride = shared_stride;
  }
  // This thread's rows of x, lane / 4 and 8 further on. Behind the last row it is the last one again: what comes of
  // that is never written.
  const T* mine = x + int64_t{min(g, a.rows - 1)} * stride + c;
  const int far =
      (min(g + 8, a.rows - 1) - min(g, a.rows - 1)) * (stride / 8);  // in vectors: elements may be over 2^31

  float d[4] = {};
  int tile = begin, unit = 0, in_group = 0, turn = 0;
  while (tile < end) {
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
      if (tile == end) break;
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
        mma_m16n8k16<T>(d, low, w.x, w.y);
        mma_m16n8k16<T>(d, high, w.z, w.w);
      }
      fetch(ring[j]);
      if (++unit < units) continue;
      unit = 0;
      float* to = sums + (turn * kFewGroup + in_group) * kTileSums + (warp * kRows + g) * kFewTile + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
      if (kRows == 16) *reinterpret_cast<float2*>(to + 8 * kFewTile) = make_float2(d[2], d[3]);
      d[0] = d[1] = d[2] = d[3] = 0.f;
      ++tile;
      if (++in_group < kFewGroup && tile < end) continue;
      __syncthreads();  // and the other turn's sums have been read: everybody was past them before it came here
      few_outputs<T, kRows>(a, sums + turn * kFewGroup * kTileSums, tile - in_group, in_group, residual);
      residual = residual_of<T, kRows>(a, tile, end);
      in_group = 0, turn ^= 1;
    }
  }
}

template <class T, int kRows>
void launch_few_rows(const FewRows& a, Stream stream) {
  constexpr int64_t kMuch = 20;
  constexpr int kDeep = kRows == 8 ? 6 : 10;
  const int tiles = few_rows_tiles(a), per_pair = a.act == FewRowsAct::kNone ? 1 : 2;
  if (tiles == 0) return;
  if (holds_x(a)) return launch_few_rows_held<T, kRows>(a, stream);
  const int blocks = tiles / per_pair < multiprocessors() ? tiles / per_pair : multiprocessors();
  const int64_t units = divide_up(tiles, blocks) * divide_up(a.in, kFewUnit * kFewWarps);  // of a warp
  const auto with_depth = [&]<int kDepth>() {
    launch_after_with_memory<few_rows_kernel<T, kRows, kDepth>>(few_rows_shared<T, kRows>(a), blocks, kFewThreads,
                                                                /*cluster=*/1, stream, a, tiles, per_pair,
                                                                few_rows_shares_x(a));
  };
  if (units < kMuch) return with_depth.template operator()<kFewDepth>();
  with_depth.template operator()<kDeep>();
}

// What fits_few_rows() says no to is the caller's to give to somebody else.
inline void few_rows(const FewRows& a, Stream stream) {
  const auto with_type = [&]<class T>() {
    if (a.rows <= 8) return launch_few_rows<T, 8>(a, stream);
    launch_few_rows<T, 16>(a, stream);
  };
  if (a.dtype == DType::kBFloat16) return with_type.template operator()<BFloat16>();
  with_type.template operator()<Half>();
}

}  // namespace kernels::gpu
