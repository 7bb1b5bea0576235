// Blocks of a cluster (sm_90): they run at the same time and reach each other's shared memory. What is written here
// takes something in this block's shared memory and means what lies at the same place in another block's.
#pragma once

#include "kernels/common/gpu/tma.cuh"

namespace kernels::gpu {

__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t blocks_in_cluster() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ uint32_t shared_address_in(uint32_t rank, const void* p) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}

// All threads of all blocks: nobody goes on before everybody has come. Before the first access to another block (it has
// begun, and its barriers are initialised) and after the last one to one's own (nobody ends before).
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same in two halves for the first of these cases alone. Nothing that was written is ordered by it but barriers
// (publish_barriers): a release would wait until all that the thread has sent to memory is there.
__device__ __forceinline__ void cluster_begins() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Says that this thread is done with reading. (It orders writes for threads of its own block alone: a release to the
// whole cluster would wait until all that the thread has sent to memory is there.)
__device__ __forceinline__ void arrive_in(uint32_t rank, Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_address_in(rank, &barrier.state))
               : "memory");
}
__device__ __forceinline__ int load_from(uint32_t rank, const int& from) {
  int value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(shared_address_in(rank, &from)) : "memory");
  return value;
}

// A number to another block, which may read it after a cluster_barrier().
__device__ __forceinline__ void store_to(uint32_t rank, float& there, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(shared_address_in(rank, &there)), "f"(v) : "memory");
}
__device__ __forceinline__ void store_to(uint32_t rank, unsigned long long& there, unsigned long long v) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(shared_address_in(rank, &there)), "l"(v) : "memory");
}
// A number to another block; its bytes arrive at the barrier there.
__device__ __forceinline__ void store_to(uint32_t rank, float& there, float v, Barrier& full) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                   shared_address_in(rank, &there)),
               "f"(v), "r"(shared_address_in(rank, &full.state))
               : "memory");
}
__device__ __forceinline__ void store_to(uint32_t rank, unsigned long long& there, unsigned long long v,
                                         Barrier& full) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                   shared_address_in(rank, &there)),
               "l"(v), "r"(shared_address_in(rank, &full.state))
               : "memory");
}

// One thread starts a copy of this block's bytes; they arrive at the other block's barrier.
__device__ __forceinline__ void copy_to(uint32_t rank, void* there, const void* here, uint32_t bytes, Barrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address_in(rank, there)),
               "r"(shared_address(here)), "r"(bytes), "r"(shared_address_in(rank, &full.state))
               : "memory");
}

// load_box to the same place of every block whose bit is set; the bytes arrive at each one's own barrier.
__device__ __forceinline__ void load_box_to(uint16_t blocks, void* shared, const CUtensorMap& map, Barrier& full,
                                            int x0, int x1, int x2, int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&full.state)), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "h"(blocks)
      : "memory");
}

}  // namespace kernels::gpu
