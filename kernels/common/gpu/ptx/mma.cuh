// Matrix products of single warps (mma, sm_80): D[16, 8] += A[16, 16] B[16, 8], float32 sums of 16-bit elements,
// operands in registers.
//
// Thread t of a warp holds of D rows t / 4 and t / 4 + 8, columns t % 4 * 2 and the next: d[0], d[1] and d[2], d[3]. A
// has the same layout, twice: pairs of columns 0 to 7 in both rows, then of columns 8 to 15.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace kernels::gpu {

template <class T>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace kernels::gpu
