// The sinks' gradient, from its parts.
#pragma once

#include <cstdint>

namespace attention::gpu {

constexpr int kRowThreads = 256;

// A block for each head, in a fixed order.
static __global__ void __launch_bounds__(kRowThreads)
    sum_dsinks_kernel(float* out, const float* parts, int slots, int heads) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < slots; i += kRowThreads) sum += parts[int64_t{i} * heads + blockIdx.x];
  __shared__ float sums[kRowThreads];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int n = kRowThreads / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

}  // namespace attention::gpu
