// A warp of a block of the sm_90a forward: starts every copy to shared memory, as early as a buffer is free, so that a
// tile begins with what came while the one before was computed.
#pragma once

#include "kernels/attention/forward_block.cuh"

namespace attention::gpu {

template <class F>
__device__ __forceinline__ void load_tiles(const ForwardArguments& a, ForwardMemory<F>& m) {
  Ring<F::kStages> k_stage, v_stage;
  Ring<F::kQueryStages> q_stage;
  const auto load = [](auto& stage, Barrier* full, Barrier* free, auto& buffers, const CUtensorMap& map, int row,
                       int head, int batch) {
    free[stage.index].wait(stage.parity ^ 1);
    if (threadIdx.x == 0) {
      constexpr int kPanels = sizeof(buffers[0]) / sizeof(buffers[0][0]);
      full[stage.index].arrive_expecting(sizeof(buffers[0]));
#pragma unroll
      for (int p = 0; p < kPanels; ++p)
        load_box(buffers[stage.index][p], map, full[stage.index], 64 * p, row, head, batch);
    }
    stage.next();
  };
  const auto load_queries = [&](const Job& of) {
    load(q_stage, m.q_full, m.q_free, m.q, a.q, of.row, of.head, of.batch);
  };
  const auto load_keys = [&](const Job& of, int tile) {
    load(k_stage, m.k_full, m.k_free, m.k, a.k, of.key_row + tile * F::kKeys, of.head / a.group, of.batch);
  };
  const auto load_values = [&](const Job& of, int tile) {
    load(v_stage, m.v_full, m.v_free, m.v, a.v, of.key_row + tile * F::kKeys, of.head / a.group, of.batch);
  };
  const auto has_keys = [](const Job& of) { return of.rows > 0 && of.keys.first < of.keys.end; };
  constexpr int kAhead = 4;  // steps of a tile until the next one is looked at: by then it has been found
  Ring<kJobs> place;
  m.job_full[0].wait(0);
  if (has_keys(m.job[0])) {
    if constexpr (F::kQueryStages > 1) load_queries(m.job[0]);
    load_keys(m.job[0], m.job[0].keys.end - 1);
  }
  while (m.job[place.index].rows > 0) {
    const Job& job = m.job[place.index];
    const int first = job.keys.first, end = job.keys.end;
    place.next();
    const Job& next = m.job[place.index];
    // Queries of the next tile come where they have a buffer of their own, and what else it begins with comes to L2.
    const auto look_ahead = [&] {
      m.job_full[place.index].wait(place.parity);
      if (!has_keys(next)) return;
      if constexpr (F::kQueryStages > 1) load_queries(next);
      if (threadIdx.x != 0) return;
#pragma unroll
      for (int p = 0; p < F::kValuePanels; ++p)
        box_to_l2(a.v, 64 * p, next.key_row + (next.keys.end - 1) * F::kKeys, next.head / a.group, next.batch);
      if constexpr (F::kQueryStages == 1) {
#pragma unroll
        for (int p = 0; p < F::kPanels; ++p) box_to_l2(a.q, 64 * p, next.row, next.head, next.batch);
      }
    };
    if (F::kOutInQueries ? first == end : F::kQueryStages == 1 && first < end) load_queries(job);
    if (first == end) look_ahead();
    // Keys one tile ahead of values: so they are wanted. Behind a tile's last ones come the next tile's first.
    for (int t = end - 1; t >= first; --t) {
      if (t < end - 1) load_keys(job, t);
      // Their buffer is free late where it is the outputs', too: the first keys come before.
      if (F::kOutInQueries && t == end - 1) load_queries(job);
      if (t == max(first, end - kAhead)) look_ahead();
      if (t < end - 1) load_values(job, t + 1);
    }
    if (has_keys(next)) load_keys(next, next.keys.end - 1);
    if (first < end) load_values(job, first);
    __syncwarp();
    if (threadIdx.x == 0) m.job_free[place.index ^ 1].arrive();
  }
}

}  // namespace attention::gpu
