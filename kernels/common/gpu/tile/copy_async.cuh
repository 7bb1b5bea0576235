// Copies of 16 bytes to shared memory for any GPU: by cp.async from sm_80 on, else by the thread itself, so that a wait
// has nothing to wait for. What a thread copies for itself needs no barrier.
#pragma once

#include <cstdint>

namespace kernels::gpu {

// 16 bytes to shared memory, in the background where the GPU can; zeros where `has` is false.
__device__ __forceinline__ void copy_async(uint4* to, const void* from, bool has = true) {
#if __CUDA_ARCH__ >= 800
  const auto at = unsigned(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(has ? 16 : 0) : "memory");
#else
  *to = has ? __ldcs(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void copy_async_commit() {  // of one group
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kRows>
__device__ __forceinline__ void copy_async_wait() {  // the last kRows groups
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kRows) : "memory");
#endif
}

}  // namespace kernels::gpu
