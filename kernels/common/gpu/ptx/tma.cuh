// TMA (sm_90): tiled copies of a 4-d tensor to and from shared memory, and bulk copies of contiguous bytes. Outside of
// the tensor a load writes zeros and a store writes nothing. tensor_map.h describes the tensor.
#pragma once

#include <cuda.h>

#include "kernels/common/gpu/ptx/mbarrier.cuh"

namespace kernels::gpu {

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// One thread starts the copy; its bytes (the whole box's, also what lies outside) arrive at `full`.
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, Mbarrier& full, int x0, int x1, int x2,
                                         int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&full.state)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

// A box comes to L2, for a later copy.
__device__ __forceinline__ void tma_prefetch_l2(const CUtensorMap& map, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(x0), "r"(x1),
               "r"(x2), "r"(x3)
               : "memory");
}

// Contiguous bytes: addresses and count are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* from, uint32_t bytes, Mbarrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(from), "r"(bytes), "r"(shared_address(&full.state))
               : "memory");
}

// A warp's copy in place of bulk_load(): of even addresses that are no multiples of 16, two bytes at a time.
__device__ __forceinline__ void copy_halves(uint8_t* to, const uint8_t* from, int bytes, int lane) {
  for (int i = 2 * lane; i < bytes; i += 64)
    *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(shared)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}
// Contiguous bytes, as bulk_load.
__device__ __forceinline__ void bulk_store(void* to, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
// Adds contiguous float32 elements to those in memory.
__device__ __forceinline__ void bulk_reduce_add(float* to, const void* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until shared memory of this thread's stores may be written again (or the block may end).
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Until this thread's stores and additions are in memory.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What threads wrote to shared memory becomes visible to TMA and to wgmma: each writer calls it, then a
// barrier.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same for global memory: what this thread sees there, its copies see.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace kernels::gpu
