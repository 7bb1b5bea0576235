// Copies to shared memory that a thread starts and does not wait for (cp.async, sm_80): it waits for the oldest groups
// of them when it needs them. What a thread copies for itself needs no barrier.
#pragma once

#include <cstdint>

#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace kernels::gpu {

// Starts to copy 16 bytes, or to write zeros: then `from` is not read.
__device__ __forceinline__ void cp_async(void* shared, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(zeros ? 0 : 16)
               : "memory");
}
// The same of 4 or 8 bytes, or of 16.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* from, bool zeros) {
  if constexpr (kBytes == 16)
    cp_async(shared, from, zeros);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(from), "n"(kBytes),
                 "r"(zeros ? 0 : kBytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kGroups groups of this thread's copies are unfinished.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace kernels::gpu
