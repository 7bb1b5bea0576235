// TMA (sm_90): tiled copies of a 4-d tensor to and from shared memory, and bulk copies of contiguous bytes. Outside of
// the tensor a load writes zeros and a store writes nothing. tensor_map.h describes the tensor.
#pragma once

#include <cuda.h>

#include "kernels/common/gpu/mbarrier.cuh"

namespace kernels::gpu {

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// One thread starts the copy; its bytes (the whole box's, also what lies outside) arrive at `full`.
__device__ __forceinline__ void load_box(void* shared, const CUtensorMap& map, Barrier& full, int x0, int x1, int x2,
                                         int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&full.state)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

// A box comes to L2, for a copy that will want it.
__device__ __forceinline__ void box_to_l2(const CUtensorMap& map, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(x0), "r"(x1),
               "r"(x2), "r"(x3)
               : "memory");
}

// Bytes as they lie: addresses and number are multiples of 16.
__device__ __forceinline__ void load_bytes(void* shared, const void* from, uint32_t bytes, Barrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(from), "r"(bytes), "r"(shared_address(&full.state))
               : "memory");
}

// A warp's copy in place of load_bytes(): of even addresses that are no multiples of 16, two bytes at a time.
__device__ __forceinline__ void copy_halves(uint8_t* to, const uint8_t* from, int bytes, int lane) {
  for (int i = 2 * lane; i < bytes; i += 64)
    *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
}
__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* shared, int x0, int x1, int x2, int x3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(shared)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}
// Bytes as they lie, as load_bytes.
__device__ __forceinline__ void store_bytes(void* to, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
// Adds float32 numbers to those in memory, as they lie.
__device__ __forceinline__ void add_floats(float* to, const void* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until shared memory of this thread's stores may be written again (or the block may end).
__device__ __forceinline__ void wait_until_stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Until this thread's stores and additions are in memory.
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What threads wrote to shared memory becomes visible to TMA and to wgmma: each writer calls it, then a
// barrier.
__device__ __forceinline__ void publish_shared_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same of memory: what this thread sees there, its copies see.
__device__ __forceinline__ void publish_memory_writes() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace kernels::gpu
