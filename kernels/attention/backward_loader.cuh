// One thread of a block of the sm_90a backward: starts every copy to shared memory, as early as a buffer is free.
#pragma once

#include "kernels/attention/backward_block.cuh"

namespace attention::gpu {

template <class B>
__device__ __forceinline__ void load_steps(const BackwardArguments& a, BackwardMemory<B>& m) {
  const BackwardJob job = m.job;
  const Sequence& s = job.sequence;
  const auto load = [&](auto& buffer, Barrier& full, const CUtensorMap& map, int row, int head) {
#pragma unroll
    for (int p = 0; p < B::kPanels; ++p) load_box(buffer[p], map, full, 64 * p, row, head, s.batch);
  };
  Ring<B::kStages> stage;
  for (int h = 0; h < a.group; ++h) {
    const int head = job.key_head * a.group + h;
    for (int t = job.queries.first; t < job.queries.end; ++t) {
      const int row = s.query_row + t * B::kRows;
      const int64_t slot = int64_t{head} * a.query_slots + s.first_query_slot + t;
      const bool begin = h == 0 && t == job.queries.first;
      if (begin) {
        m.k_full.arrive_expecting(sizeof(m.k));
        load(m.k, m.k_full, a.k, s.key_row + job.key_tile * B::kKeys, job.key_head);
      }
      Barrier& q_full = m.q_full[stage.index];
      m.q_free[stage.index].wait(stage.parity ^ 1);
      q_full.arrive_expecting(sizeof(m.q[0]) + sizeof(m.statistics[0]));
      load(m.q[stage.index], q_full, a.q, row, head);
      load_bytes(m.statistics[stage.index], a.statistics + slot * (2 * B::kRows), sizeof(m.statistics[0]), q_full);
      if (begin) {
        m.v_full.arrive_expecting(sizeof(m.v));
        load(m.v, m.v_full, a.v, s.key_row + job.key_tile * B::kKeys, job.key_head);
      }
      m.dout_free[stage.index].wait(stage.parity ^ 1);
      m.dout_full[stage.index].arrive_expecting(sizeof(m.dout[0]));
      load(m.dout[stage.index], m.dout_full[stage.index], a.dout, row, head);
      stage.next();
    }
  }
}

}  // namespace attention::gpu
