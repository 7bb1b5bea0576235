// A thread for each consumer of a block of the sm_90a backward, of a warp that has nothing else to do: tells the copy
// engine to add what the consumer has computed of dq, in L2. So consumers only wait until what they gave before has
// been read.
#pragma once

#include "kernels/attention/cuda/sm90_backward_block.cuh"

namespace attention::gpu {

// Deterministic: key tiles add to a query tile from the last to the first. A block is at a tile of queries one step
// after the block of the keys behind its own, and nobody waits for long.
template <class B>
__device__ __forceinline__ void wait_for_added(const BackwardJob& job, const int* place, int tile) {
  const int row = tile * B::kRows, end = min(row + B::kRows, job.sequence.query_rows);
  const int before = key_tiles<B::kLeft>(job.sequence.band, row, end, B::kKeys).end - 1 - job.key_tile;
  int done;
  do {
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(done) : "l"(place) : "memory");
  } while (done < before);
}

template <class B>
__device__ __forceinline__ void add_sums(const BackwardArguments& a, BackwardMemory<B>& m, int consumer) {
  const BackwardJob& job = m.job;
  const int steps = job.steps() * a.group;
  int head = job.key_head * a.group, tile = job.queries.first;
#pragma unroll 1  // in few registers
  for (int i = 0; i < steps; ++i) {
    const int64_t mine = (int64_t{head} * a.query_slots + job.sequence.first_query_slot + tile) * B::kAdded + consumer;
    m.dq_full[consumer].wait(i % 2);
    if (a.added != nullptr) wait_for_added<B>(job, a.added + mine, tile);
    bulk_reduce_add(a.dq + mine * 4096, m.dq[consumer], sizeof(m.dq[0]));
    bulk_commit();
    bulk_wait_read();
    m.dq_free[consumer].arrive();
    if (a.added != nullptr) {
      bulk_wait();
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(a.added + mine) : "memory");
    }
    if (++tile == job.queries.end) tile = job.queries.first, ++head;
  }
}

}  // namespace attention::gpu
