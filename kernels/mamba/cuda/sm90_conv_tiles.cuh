// The forward of sm80_conv_four.cuh for channels beside each other where there is much of it.
#pragma once

#include "kernels/mamba/cuda/sm90_conv_bytes.cuh"

namespace mamba::conv::gpu {

// A block has so few steps of a row of channels that what blocks move at a moment lies together. TMA brings
// them, those before them too; y takes x's place.
constexpr int kTileSteps = 8;
template <class T>
constexpr int kTileBlocks = sizeof(T) == 4 ? 4 : 6;  // of a multiprocessor

template <class T>
__global__ void __launch_bounds__(kThreads, kTileBlocks<T>)
    forward_four_tiles(const Forward a, const int pieces, const int parts) {
  constexpr int kN = kForwardChannels<T>, kWide = kThreads * kN;
  __shared__ __align__(16) T memory[(kBefore + kTileSteps) * kWide];
  __shared__ Mbarrier full;
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const int piece = int(blockIdx.x) % pieces, rest = int(blockIdx.x) / pieces;
  const int part = rest % parts, batch = rest / parts, first = part * kTileSteps;
  const int left = int(p.length) - first, rows = left < kTileSteps ? left : kTileSteps;
  const int64_t begin = int64_t{piece} * kWide, channels = p.channels - begin;
  const int wide = channels < kWide ? int(channels) : kWide, own = int(threadIdx.x) * kN,
            halo = first > 0 ? kBefore : 0;
  T* const tile = memory + kBefore * kWide;
  const uint32_t row_bytes = uint32_t(wide * int(sizeof(T)));
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) expect_bytes(full, int64_t{row_bytes} * (rows + halo));
    __syncwarp();
    const T* const from = channels_at<const T>(p.x, batch, begin, first);
    const int r = int(threadIdx.x) - halo;
    if (r < rows) bulk_load(tile + r * kWide, from + r * p.x.step, row_bytes, full);
  }
  const bool mine = own < wide;
  const Filters<kFour, kN> filter = load_four<kN>(p, mine ? begin + own : begin);
  History<kFour, kN> past;
  if (first == 0 && mine) past.template fill<T, false>(p, batch, begin + own, 0);
  __syncthreads();
  full.wait(0);
  if (mine) {
    T* here = tile + own;
    if (first > 0) {
#pragma unroll
      for (int j = 0; j < kBefore; ++j) unpack(load_few<kN>(here - (j + 1) * kWide), past.x[j]);
    }
    const auto step = [&] {
      past.push();
      unpack(load_few<kN>(here), past.x[0]);
      float y[kN];
      past.template convolve<false>(filter, kFour, y);
#pragma unroll
      for (int c = 0; c < kN; ++c) y[c] *= sigmoid(y[c]);
      put_floats<kN>(here, y);
      here += kWide;
    };
    int k = 0;
#pragma unroll 1
    for (; k + kFour <= rows; k += kFour) {
#pragma unroll
      for (int i = 0; i < kFour; ++i) step();
    }
    for (; k < rows; ++k) step();
  }
  fence_proxy_async_shared();
  __syncthreads();
  const int r = int(threadIdx.x);
  if (r < rows) {
    bulk_store(channels_at<T>(a.y, batch, begin, first) + r * a.y.step, tile + r * kWide, row_bytes);
    bulk_commit();
    bulk_wait_read();
  }
}

}  // namespace mamba::conv::gpu
