// Numbered barriers of a block (bar.sync, bar.arrive): they order some of its warps without the others.
#pragma once

namespace kernels::gpu {

// Barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads, some of which only arrive.
__device__ __forceinline__ void barrier_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace kernels::gpu
