// One thread of a block of a pair: starts every copy to shared memory, as early as a buffer is free. Queries and dout
// are for both blocks: each loads half of a tile's rows, to both.
#pragma once

#include "kernels/attention/cuda/sm90_backward_pair_block.cuh"

namespace attention::gpu {

template <class B>
__device__ __forceinline__ void load_pair_keys(const BackwardArguments& a, PairMemory<B>& m) {
  const PairJob& job = m.job;
  const Sequence& s = job.sequence;
  const int rank = int(cluster_ctarank()), first = s.key_row + job.key_tile * B::kKeys;
  const int own = first + B::kOwnKeys * rank, other = first + B::kOwnKeys * (1 - rank);
  m.k_full.arrive_expect_tx(sizeof(m.k) + sizeof(m.other_k));
#pragma unroll
  for (int p = 0; p < B::kPanels; ++p) tma_load(m.k[p], a.k, m.k_full, 64 * p, own, job.key_head, s.batch);
#pragma unroll
  for (int w = 0; w < B::kConsumers; ++w)
    tma_load(m.other_k[w], a.k, m.k_full, B::first_dq_column(rank, w) / 64 * 64, other, job.key_head, s.batch);
  m.v_full.arrive_expect_tx(sizeof(m.v));
#pragma unroll
  for (int p = 0; p < B::kValuePanels; ++p) tma_load(m.v[p], a.v, m.v_full, 64 * p, own, job.key_head, s.batch);
}

template <class B>
__device__ __forceinline__ void load_pair_steps(const BackwardArguments& a, PairMemory<B>& m) {
  const PairJob& job = m.job;
  const Sequence& s = job.sequence;
  const int rank = int(cluster_ctarank()), steps = job.steps() * a.group;
  constexpr uint16_t kBoth = 3;
  constexpr int kHalf = B::kRows / B::kBlocks;
  if (steps == 0) return;
  load_pair_keys<B>(a, m);
  PipelineState<B::kStages> stage;
  PipelineState<B::kDoutStages> dout_stage;
  int head = job.key_head * a.group, tile = job.queries.first;
#pragma unroll 1  // in few registers
  for (int i = 0; i < steps; ++i) {
    const int row = s.query_row + tile * B::kRows + kHalf * rank;
    const float* statistics =
        a.statistics + (int64_t{head} * a.query_slots + s.first_query_slot + tile) * (2 * B::kRows);
    m.q_free[stage.index].wait(stage.parity ^ 1);
    Mbarrier& q_full = m.q_full[stage.index];
    q_full.arrive_expect_tx(sizeof(m.q[0]) + sizeof(m.lse[0]));
    bulk_load(m.lse[stage.index], statistics, sizeof(m.lse[0]), q_full);
#pragma unroll
    for (int p = 0; p < B::kPanels; ++p)
      tma_load_multicast(kBoth, m.q[stage.index][p][kHalf * rank], a.q, q_full, 64 * p, row, head, s.batch);
    stage.next();
    m.dout_free[dout_stage.index].wait(dout_stage.parity ^ 1);
    Mbarrier& dout_full = m.dout_full[dout_stage.index];
    dout_full.arrive_expect_tx(sizeof(m.dout[0]) + sizeof(m.delta[0]));
    bulk_load(m.delta[dout_stage.index], statistics + B::kRows, sizeof(m.delta[0]), dout_full);
#pragma unroll
    for (int p = 0; p < B::kValuePanels; ++p)
      tma_load_multicast(kBoth, m.dout[dout_stage.index][p][kHalf * rank], a.dout, dout_full, 64 * p, row, head,
                         s.batch);
    dout_stage.next();
    if (++tile == job.queries.end) tile = job.queries.first, ++head;
  }
}

// One thread for each consumer, where gradients have the same bits each time: pairs add to a query tile from the last
// keys to the first. A pair is at a tile two steps after the pair of the keys behind its own, and few wait for long
// (sm90_backward_block.cuh: who is waited for has begun).
template <class B>
__device__ __forceinline__ void keep_added(const BackwardArguments& a, PairMemory<B>& m, int consumer) {
  const PairJob& job = m.job;
  const int rank = int(cluster_ctarank()), steps = job.steps() * a.group;
  int head = job.key_head * a.group, tile = job.queries.first;
#pragma unroll 1  // in few registers
  for (int i = 0; i < steps; ++i) {
    const int64_t at = int64_t{head} * a.query_slots + job.sequence.first_query_slot + tile;
    int* place = a.added + at * B::kAdded + B::kConsumers * rank + consumer;
    const int row = tile * B::kRows, end = min(row + B::kRows, job.sequence.query_rows);
    const int before = key_tiles<true>(job.sequence.band, row, end, B::kKeys).end - 1 - job.key_tile;
    int done;
    do {
      asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(done) : "l"(place) : "memory");
    } while (done < before);
    m.may_add[consumer].arrive();
    m.has_added[consumer].wait(i % 2);
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(place) : "memory");
    if (++tile == job.queries.end) tile = job.queries.first, ++head;
  }
}

}  // namespace attention::gpu
