// A warp of a block of the sm_90a forward: starts every copy to shared memory, as early as a buffer is free.
#pragma once

#include "kernels/attention/cuda/sm90_forward_block.cuh"

namespace attention::gpu {

template <class F>
__device__ __forceinline__ void load_tiles(const ForwardArguments& a, ForwardMemory<F>& m) {
  PipelineState<F::kStages> k_stage, v_stage;
  PipelineState<F::kQueryStages> q_stage;
  const auto load = [](auto& stage, Mbarrier* full, Mbarrier* free, auto& buffers, const CUtensorMap& map, int row,
                       int head, int batch) {
    free[stage.index].wait(stage.parity ^ 1);
    if (threadIdx.x == 0) {
      constexpr int kPanels = sizeof(buffers[0]) / sizeof(buffers[0][0]);
      full[stage.index].arrive_expect_tx(sizeof(buffers[0]));
#pragma unroll
      for (int p = 0; p < kPanels; ++p)
        tma_load(buffers[stage.index][p], map, full[stage.index], 64 * p, row, head, batch);
    }
    stage.next();
  };
  constexpr bool kAhead = F::kQueryStages > 1;
  JobSource<F> source{a, m};
  source.begin();
  const auto load_queries = [&](const Job& of) {
    load(q_stage, m.q_full, m.q_free, m.q, a.q, of.row, of.head, of.batch);
  };
  // The next tile. Where queries have two buffers it is known while this one is computed: its queries come then, and
  // its first keys and values come to L2.
  const auto look_ahead = [&](int claimed) {
    const Job next = source.find(claimed);
    if (kAhead && next.rows > 0 && next.keys.first < next.keys.end) {
      load_queries(next);
      const int row = next.key_row + (next.keys.end - 1) * F::kKeys, head = next.head / a.group;
      if (threadIdx.x == 0) {
#pragma unroll
        for (int p = 0; p < F::kPanels; ++p) tma_prefetch_l2(a.k, 64 * p, row, head, next.batch);
#pragma unroll
        for (int p = 0; p < F::kValuePanels; ++p) tma_prefetch_l2(a.v, 64 * p, row, head, next.batch);
      }
    }
    source.pass_on(next);
  };
  Job job = source.find(blockIdx.x);
  source.pass_on(job);
  if (kAhead && job.rows > 0 && job.keys.first < job.keys.end) load_queries(job);
  while (job.rows > 0) {
    int claimed = 0;
    if (threadIdx.x == 0) claimed = source.claim();
    const int key_head = job.head / a.group, first = job.keys.first, end = job.keys.end;
    if (!kAhead && (F::kOutInQueries ? first == end : first < end)) load_queries(job);
    const int ahead = kAhead ? max(first - 1, end - 3) : first - 1;  // three steps: by then the counter has answered
    // Keys one tile ahead of values: so they are wanted.
    for (int t = end - 1; t >= first - 1 && first < end; --t) {
      const int row = job.key_row + t * F::kKeys;
      if (t >= first) load(k_stage, m.k_full, m.k_free, m.k, a.k, row, key_head, job.batch);
      // Their buffer is free late where it is the outputs', too: the first keys come before.
      if (F::kOutInQueries && t == end - 1) load_queries(job);
      if (t < end - 1) load(v_stage, m.v_full, m.v_free, m.v, a.v, row + F::kKeys, key_head, job.batch);
      if (t == ahead) look_ahead(claimed);
    }
    if (first == end) look_ahead(claimed);
    __syncwarp();
    job = m.job;
  }
}

}  // namespace attention::gpu
