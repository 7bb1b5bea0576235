// What goes over query rows before the mma backward: lse in exponents of two, delta, and parts of the sinks' gradient.
#pragma once

#include "kernels/attention/cuda/sinks.cuh"
#include "kernels/attention/cuda/sm80_tiles.cuh"

namespace attention::gpu {

constexpr int kDeltaRows = 64;  // a block, of one head

struct DeltaArguments {
  RowsInMemory out, dout;
  const float *lse, *dlse, *sinks;
  float *exponents, *delta, *dsinks;  // dsinks: [blocks / heads, heads], or null
  int rows, row_tiles, heads, value_dim;
};

template <class T>
__global__ void __launch_bounds__(kRowThreads) mma_delta_kernel(const __grid_constant__ DeltaArguments a) {
  constexpr int kLanes = 8, kAtOnce = kRowThreads / kLanes;
  const int lane = threadIdx.x % kLanes, slot = int(blockIdx.x) / a.heads, head = int(blockIdx.x) % a.heads;
  const int batch = slot / a.row_tiles, first = slot % a.row_tiles * kDeltaRows;
  const float sink = a.sinks == nullptr ? 0.f : a.sinks[head] * kLog2e;
  float dsink = 0.f;
#pragma unroll
  for (int r = threadIdx.x / kLanes; r < kDeltaRows; r += kAtOnce) {
    const int row = first + r;
    float delta = 0.f;
    if (row < a.rows) {
      const T *out = a.out.at<T>(batch, row, head), *dout = a.dout.at<T>(batch, row, head);
      for (int i = 8 * lane; i < a.value_dim; i += 8 * kLanes) {
        float o[8], d[8];
        unpack<T>(load<8>(out + i), o);
        unpack<T>(load<8>(dout + i), d);
#pragma unroll
        for (int n = 0; n < 8; ++n) delta += o[n] * d[n];
      }
    }
#pragma unroll
    for (int o = kLanes / 2; o > 0; o /= 2) delta += __shfl_xor_sync(kAllLanes, delta, o);
    if (lane != 0 || row >= a.rows) continue;
    const int64_t at = (int64_t{batch} * a.heads + head) * a.rows + row;
    if (a.dlse != nullptr) delta -= a.dlse[at];
    const float exponent = a.lse[at] * kLog2e;
    const bool nothing = exponent == -INFINITY;  // is seen by the row
    a.exponents[at] = nothing ? INFINITY : exponent;
    a.delta[at] = delta;
    if (a.sinks != nullptr && !nothing) dsink -= exp2_approx(sink - exponent) * delta;
  }
  if (a.dsinks == nullptr) return;
  __shared__ float sums[kRowThreads / 32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) dsink += __shfl_xor_sync(kAllLanes, dsink, o);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = dsink;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0.f;
#pragma unroll
  for (const float f : sums) total += f;
  a.dsinks[blockIdx.x] = total;
}

}  // namespace attention::gpu
