// Matrices of 8 x 8 elements of 16 bits between shared memory and the registers of a warp, as mma and wgmma take them:
// ldmatrix (sm_75) and stmatrix (sm_90).
#pragma once

#include <cstdint>

#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace kernels::gpu {

// Four blocks of 8 x 8 elements: thread t passes the address of row t % 8 of block t / 8, and gets of each block row t
// / 4, columns t % 4 * 2 and the next.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&w)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(shared_address(row))
               : "memory");
}
// The same of each block transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&w)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(shared_address(row))
               : "memory");
}

// Four blocks of 8 x 8 elements from the layout of A to shared memory: thread t of a warp passes the address of 8
// elements, row t % 8 of block t / 8.
__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(w[0]),
               "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

// The same, each block transposed: thread t of a warp passes the address of column t % 8 of block t / 8.
__device__ __forceinline__ void stmatrix_x4_trans(void* column, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(column)),
               "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

}  // namespace kernels::gpu
