// One thread of a block of the sm_90a backward: starts every copy to shared memory, as early as a buffer is free.
#pragma once

#include "kernels/attention/cuda/sm90_backward_block.cuh"

namespace attention::gpu {

template <class B>
__device__ __forceinline__ void load_steps(const BackwardArguments& a, BackwardMemory<B>& m) {
  const BackwardJob& job = m.job;
  const Sequence& s = job.sequence;
  const auto load = [&](auto& buffer, Mbarrier& full, const CUtensorMap& map, int row, int head) {
#pragma unroll
    for (int p = 0; p < B::kPanels; ++p) tma_load(buffer[p], map, full, 64 * p, row, head, s.batch);
  };
  const auto load_keys = [&](auto& buffer, Mbarrier& full, const CUtensorMap& map) {
    full.arrive_expect_tx(sizeof(buffer));
    load(buffer, full, map, s.key_row + job.key_tile * B::kKeys, job.key_head);
  };
  const int steps = job.steps() * a.group;
  if (steps == 0) return;
  load_keys(m.k, m.k_full, a.k);
  PipelineState<B::kStages> stage;
  int head = job.key_head * a.group, tile = job.queries.first;
#pragma unroll 1  // in few registers
  for (int i = 0; i < steps; ++i) {
    const int row = s.query_row + tile * B::kRows;
    const int64_t slot = int64_t{head} * a.query_slots + s.first_query_slot + tile;
    Mbarrier& q_full = m.q_full[stage.index];
    m.q_free[stage.index].wait(stage.parity ^ 1);
    q_full.arrive_expect_tx(sizeof(m.q[0]) + sizeof(m.statistics[0]));
    load(m.q[stage.index], q_full, a.q, row, head);
    bulk_load(m.statistics[stage.index], a.statistics + slot * (2 * B::kRows), sizeof(m.statistics[0]), q_full);
    if (i == 0) load_keys(m.v, m.v_full, a.v);
    m.dout_free[stage.index].wait(stage.parity ^ 1);
    m.dout_full[stage.index].arrive_expect_tx(sizeof(m.dout[0]));
    load(m.dout[stage.index], m.dout_full[stage.index], a.dout, row, head);
    stage.next();
    if (++tile == job.queries.end) tile = job.queries.first, ++head;
  }
}

}  // namespace attention::gpu
