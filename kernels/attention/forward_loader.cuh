// A warp of a block of the sm_90a forward: starts every copy to shared memory, as early as a buffer is free.
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
  JobSource<F> source{a, m};
  Job job = source.find(blockIdx.x);
  source.pass_on(job);
  while (job.rows > 0) {
    int asked = 0;
    if (threadIdx.x == 0) asked = source.ask();
    const int key_head = job.head / a.group, first = job.keys.first, end = job.keys.end;
    const auto load_queries = [&] { load(q_stage, m.q_full, m.q_free, m.q, a.q, job.row, job.head, job.batch); };
    // Their buffer is free late where it is the outputs', too: the first keys come before.
    if (F::kOutInQueries ? first == end : first < end) load_queries();
    // Keys one tile ahead of values: so they are wanted.
    for (int t = end - 1; t >= first - 1 && first < end; --t) {
      const int row = job.key_row + t * F::kKeys;
      if (t >= first) load(k_stage, m.k_full, m.k_free, m.k, a.k, row, key_head, job.batch);
      if (F::kOutInQueries && t == end - 1) load_queries();
      if (t < end - 1) load(v_stage, m.v_full, m.v_free, m.v, a.v, row + F::kKeys, key_head, job.batch);
    }
    job = source.find(asked);
    source.pass_on(job);
  }
}

}  // namespace attention::gpu
