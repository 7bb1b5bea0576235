// Registers of warpgroups (setmaxnreg, sm_90a): they move from the producer, which only starts copies, to the
// consumers.
#pragma once

namespace kernels::gpu {

constexpr int kWarpgroup = 128;  // 4 warps

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

}  // namespace kernels::gpu
