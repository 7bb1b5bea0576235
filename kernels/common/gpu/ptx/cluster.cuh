// Blocks of a cluster (sm_90): they run at the same time and reach each other's shared memory. A function
// here takes something in this block's shared memory and means the same offset in another block's.
#pragma once

#include "kernels/common/gpu/ptx/tma.cuh"

namespace kernels::gpu {

__device__ __forceinline__ uint32_t cluster_ctarank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_nctarank() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ uint32_t mapa(uint32_t rank, const void* p) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}

// All threads of all blocks wait for each other: before the first access to another block (it has begun, and its
// barriers are initialised) and after the last one to this block's (no block ends before).
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same in two halves, only for the first of these cases. It orders nothing that was written but barriers
// (fence_mbarrier_init): a release would wait until all that the thread has sent to memory is there.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Signals that this thread is done with reading. (It orders writes only for threads of its own block: a release to the
// whole cluster would wait until all that the thread has sent to memory is there.)
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t rank, Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapa(rank, &barrier.state)) : "memory");
}
__device__ __forceinline__ int ld_shared_cluster(uint32_t rank, const int& from) {
  int value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(mapa(rank, &from)) : "memory");
  return value;
}

// One value to another block, which may read it after a cluster_sync().
__device__ __forceinline__ void st_shared_cluster(uint32_t rank, float& there, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mapa(rank, &there)), "f"(v) : "memory");
}
__device__ __forceinline__ void st_shared_cluster(uint32_t rank, unsigned long long& there, unsigned long long v) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(mapa(rank, &there)), "l"(v) : "memory");
}
// One value to another block; its bytes arrive at the barrier there.
__device__ __forceinline__ void st_async_cluster(uint32_t rank, float& there, float v, Mbarrier& full) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(mapa(rank, &there)),
               "f"(v), "r"(mapa(rank, &full.state))
               : "memory");
}
__device__ __forceinline__ void st_async_cluster(uint32_t rank, unsigned long long& there, unsigned long long v,
                                                 Mbarrier& full) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(mapa(rank, &there)),
               "l"(v), "r"(mapa(rank, &full.state))
               : "memory");
}

// One thread starts a copy of this block's bytes; they arrive at the other block's barrier.
__device__ __forceinline__ void bulk_copy_cluster(uint32_t rank, void* there, const void* here, uint32_t bytes,
                                                  Mbarrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   mapa(rank, there)),
               "r"(shared_address(here)), "r"(bytes), "r"(mapa(rank, &full.state))
               : "memory");
}

// tma_load to the same offset in every block whose bit is set; the bytes arrive at each one's own barrier.
__device__ __forceinline__ void tma_load_multicast(uint16_t blocks, void* shared, const CUtensorMap& map,
                                                   Mbarrier& full, int x0, int x1, int x2, int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&full.state)), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "h"(blocks)
      : "memory");
}

}  // namespace kernels::gpu
