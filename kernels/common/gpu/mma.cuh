// Matrix products of single warps (mma, sm_80): D[16, 8] += A[16, 16] B[16, 8], float32 sums of 16-bit numbers,
// operands in registers; how they get there from shared memory, and how that is filled beside the work.
//
// Thread t of a warp holds of D rows t / 4 and t / 4 + 8, columns t % 4 * 2 and the next: d[0], d[1] and d[2], d[3]. A
// has the same layout, twice: pairs of columns 0 to 7 in both rows, then of columns 8 to 15.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/gpu/mbarrier.cuh"

namespace kernels::gpu {

template <class T>
__device__ __forceinline__ void mma_16x8(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
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

// Four blocks of 8 x 8 numbers: thread t gives the address of row t % 8 of block t / 8, and gets of each block row t /
// 4, columns t % 4 * 2 and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&w)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(shared_address(row))
               : "memory");
}
// The same of each block transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&w)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(shared_address(row))
               : "memory");
}

// Starts to copy 16 bytes, or to write zeros: then `from` is not read.
__device__ __forceinline__ void start_copy(void* shared, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(zeros ? 0 : 16)
               : "memory");
}
// The same of 4 or 8 bytes, or of 16.
template <int kBytes>
__device__ __forceinline__ void start_copy(void* shared, const void* from, bool zeros) {
  if constexpr (kBytes == 16)
    start_copy(shared, from, zeros);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(from), "n"(kBytes),
                 "r"(zeros ? 0 : kBytes)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kGroups groups of this thread's copies are unfinished.
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace kernels::gpu
