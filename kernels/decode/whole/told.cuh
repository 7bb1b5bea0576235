// Numbers that go from one block to all with the turn in which they were written beside them: who reads them asks until
// they are this turn's, and needs no barrier before. A turn is a launch.
#pragma once

#include <cuda_runtime.h>

#include "kernels/decode/whole/plan.h"

namespace decode::cuda {

// Of the whole device, as `arrivals` is.
struct Told {
  uint2 pairs[kProducts - 1][kMostTold / 2];  // of each product but the last: two numbers and the turn
  unsigned turns;
};
static __device__ __align__(16) Told told;

__device__ __forceinline__ unsigned turns_so_far() {
  unsigned now;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&told.turns) : "memory");
  return now;
}
__device__ __forceinline__ void tell(int product, int64_t at, uint32_t two,
                                     unsigned turn) {  // numbers `at` and the next
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(&told.pairs[product][at / 2]), "r"(two), "r"(turn)
               : "memory");
}
__device__ __forceinline__ uint32_t hear_two(int product, int64_t at, unsigned turn) {
  uint32_t two, its;
  do {
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(two), "=r"(its)
                 : "l"(&told.pairs[product][at / 2])
                 : "memory");
  } while (its != turn);
  return two;
}
__device__ __forceinline__ uint4 hear_eight(int product, int64_t at, unsigned turn) {
  uint4 a, b;
  const uint2* from = &told.pairs[product][at / 2];
  do {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w)
                 : "l"(from)
                 : "memory");
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
                 : "l"(from + 2)
                 : "memory");
  } while (a.y != turn || a.w != turn || b.y != turn || b.w != turn);
  return make_uint4(a.x, a.z, b.x, b.z);
}

}  // namespace decode::cuda
