// Warpgroups (4 warps, sm_90a) as workers with different jobs in one block: registers move from those that only start
// copies to those that compute, and numbered barriers order any number of warps without the others.
#pragma once

namespace kernels::gpu {

constexpr int kWarpgroup = 128;  // threads

// All warps of a warpgroup together. The kernel has __launch_bounds__(threads, 1), and every warpgroup calls exactly
// one of these at the start of its branch; the sum may not exceed what the block was launched with. Multiples of 8.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads, some of which only arrive.
__device__ __forceinline__ void barrier_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace kernels::gpu
