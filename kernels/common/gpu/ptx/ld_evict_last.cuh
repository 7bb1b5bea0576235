// A load whose line is the last to leave L1 and L2.
#pragma once

#include <cstdint>

namespace kernels::gpu {

__device__ __forceinline__ uint4 ld_evict_last(const void* p) {
  uint64_t policy;
  uint4 v;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

}  // namespace kernels::gpu
