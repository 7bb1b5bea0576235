// A warpgroup of the sm_90a backward: 64 of its block's keys, against one tile of query rows after the other.
//
// Scores and dp are computed with keys as rows (k q, v dout), so that p and dx are, rounded, the A operands of dv += p
// dout and dk += dx q where they lie, in registers. Only dq = dx k needs dx of both warpgroups: they pass it through
// shared memory, and each computes half of dq, one step later, so that nobody waits for the other one's dx of this
// step.
//
// A step has two halves, in which the warpgroups take turns: one computes p and dx, beside its product dp, while the
// other one's dv, dk, dq and next scores are multiplied.
#pragma once

#include "kernels/attention/cuda/sm90_backward_block.cuh"
#include "kernels/attention/cuda/softmax.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mbarrier.cuh"
#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/wgmma.cuh"

namespace attention::gpu {

template <class B>
struct BackwardConsumer {
  using T = typename B::T;
  static constexpr int kBothBarrier = 1, kOwnBarrier = 2, kTurnBarrier = 4;  // numbers of barriers

  const BackwardArguments& a;
  BackwardMemory<B>& m;
  // By a shuffle: so the compiler knows that a warp's threads agree, and that branches on it do not part them.
  const int number = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) - 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  float dk[B::kDim / 2] = {}, dv[B::kDim / 2] = {};  // 64 keys
  float scores[B::kRows / 2], dp[B::kRows / 2];      // 64 keys of query rows
  uint32_t p[B::kRows / 16][4], dx[B::kRows / 16][4];
  // 64 query rows of 64 elements: of a tile of 64 rows half of the elements, of one of 128 half of the rows.
  float dq[32];
  PipelineState<B::kDxStages> dx_stage;

  __device__ __forceinline__ void free(Mbarrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }

  // keys or values by query rows or their dout. [64 keys, kRows]
  __device__ __forceinline__ void start_by_keys(float (&sum)[B::kRows / 2],
                                                const uint16_t (&keys)[B::kPanels][B::kKeys][64],
                                                const uint16_t (&rows)[B::kPanels][B::kRows][64]) {
    const Operand k = operand_by_rows(keys[0][64 * number]), r = operand_by_rows(rows);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < B::kDim / 16; ++i)
      wgmma<T, B::kRows>(sum, moved(k, i / 4 * sizeof(keys[0]) + i % 4 * 32),
                         moved(r, i / 4 * sizeof(rows[0]) + i % 4 * 32), i > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void start_scores(int stage) { start_by_keys(scores, m.k, m.q[stage]); }

  // Adds what is rounded in registers by query rows or their dout. [64 keys, kDim]
  __device__ __forceinline__ void start_by_rows(float (&sum)[B::kDim / 2], const uint32_t (&by)[B::kRows / 16][4],
                                                const uint16_t (&rows)[B::kPanels][B::kRows][64]) {
    const Operand r = operand_by_columns(rows, sizeof(rows[0]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < B::kRows / 16; ++i) wgmma<T, B::kDim>(sum, by[i], moved(r, i * 16 * 128), true);
    wgmma_commit();
  }

  // Of the dx before the one that is next to be written.
  __device__ __forceinline__ int dx_before() const { return (dx_stage.index == 0 ? B::kDxStages : dx_stage.index) - 1; }
  __device__ __forceinline__ void wait_for_dx_before() {
    m.dx_full[dx_before()].wait(dx_stage.parity ^ (dx_stage.index == 0));
  }
  __device__ __forceinline__ void start_dq() {
    constexpr bool kHalfOfNumbers = B::kRows == 64;
    const auto& all = m.dx[dx_before()];
    const Operand x = operand_by_rows(all[0][kHalfOfNumbers ? 0 : 64 * number]);
    const Operand k = operand_by_columns(m.k[kHalfOfNumbers ? number : 0], sizeof(m.k[0]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < B::kKeys / 16; ++i)
      wgmma<T, 64, true>(dq, moved(x, i / 4 * sizeof(all[0]) + i % 4 * 32), moved(k, i * 16 * 128), i > 0);
    wgmma_commit();
  }

  // Scores become p; of scores remains what dp - delta is to be multiplied by.
  template <bool kMasked>
  __device__ __forceinline__ void compute_p(int stage, int tile) {
    int from[2], to[2];  // query rows of the tile that see the thread's two keys
    if constexpr (kMasked) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Band band = m.job.sequence.band;
        const int key = m.job.key_tile * B::kKeys + 64 * number + 16 * warp + lane / 4 + 8 * r;
        const int column = tile * B::kRows + lane % 4 * 2;
        from[r] = key < band.keys ? key - band.after + 1 - column : B::kRows;
        to[r] = B::kLeft ? key - band.before - column : B::kRows;
      }
    }
    const float* lse = m.statistics[stage][0] + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < B::kRows / 8; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(lse + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float e[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& s = scores[4 * j + 2 * r + c];
          if constexpr (B::kSoftcap) s = tanh_approx(s * a.cap_scale);
          e[c] = exp2_approx(s * a.score_scale - (c == 0 ? l.x : l.y));
          if (kMasked && (8 * j + c < from[r] || 8 * j + c > to[r])) e[c] = 0.f;
          s = B::kSoftcap ? e[c] * (1.f - s * s) : e[c];
        }
        p[j / 2][j % 2 * 2 + r] = pack_pair<T>(e[0], e[1]);
      }
    }
  }

  __device__ __forceinline__ void compute_dx(int stage) {
    const float* delta = m.statistics[stage][1] + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < B::kRows / 8; ++j) {
      const float2 d = *reinterpret_cast<const float2*>(delta + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * j + 2 * r;
        float2 s{scores[i], scores[i + 1]};
        if constexpr (B::kRoundedP) s = unpack_pair<T>(p[j / 2][j % 2 * 2 + r]);
        dx[j / 2][j % 2 * 2 + r] = pack_pair<T>(s.x * (dp[i] - d.x), s.y * (dp[i + 1] - d.y));
      }
    }
#pragma unroll
    for (int i = 0; i < B::kRows / 16; ++i) {
      const int query = 16 * i + lane / 16 * 8 + lane % 8, piece = (2 * warp + lane / 8 % 2) ^ (lane % 8);
      stmatrix_x4_trans(&m.dx[dx_stage.index][number][query][piece * 8], dx[i]);
    }
  }

  // dq of step i goes to who adds it (sm90_backward_adder.cuh).
  __device__ __forceinline__ void give_dq(int i) {
    m.dq_free[number].wait(i % 2 ^ 1);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float4*>(&m.dq[number][(j * kWarpgroup + threadIdx.x % kWarpgroup) * 4]) =
          make_float4(dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    fence_proxy_async_shared();
    free(m.dq_full[number]);
  }

  // One tile of query rows, whose scores have been started: number `i` of the block's.
  __device__ __forceinline__ void step(int i, bool more, int tile) {
    const int stage = i % 2;
    const bool masked = tile < m.job.queries.first_whole || tile >= m.job.queries.end_whole;
    m.dout_full[stage].wait(i / 2 % 2);
    wgmma_wait<0>();
    wgmma_fence_operand(scores);
    if (i > 0) free(m.q_free[stage ^ 1]);  // the step before is done with its queries: its dk is complete, too
    start_by_keys(dp, m.v, m.dout[stage]);
    if (masked)
      compute_p<true>(stage, tile);
    else
      compute_p<false>(stage, tile);
    // The other one has written its dx of the step before, and so is done with the dq before that: its dx may go.
    if (i > 0) wait_for_dx_before();
    wgmma_wait<0>();
    wgmma_fence_operand(dp);
    compute_dx(stage);
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) m.dx_full[dx_stage.index].arrive();

    barrier_wait(kTurnBarrier + number, B::kConsumers * kWarpgroup);
    start_by_rows(dv, p, m.dout[stage]);
    start_by_rows(dk, dx, m.q[stage]);
    start_dq();  // the first one is of nothing, and nobody looks: products run on only where none is conditional
    if (more) m.q_full[stage ^ 1].wait((i + 1) / 2 % 2);
    wgmma_wait<1>();
    free(m.dout_free[stage]);
    start_scores(stage ^ 1);  // where there are no more, likewise
    barrier_arrive(kTurnBarrier + 1 - number, B::kConsumers * kWarpgroup);
    wgmma_wait<1>();
    wgmma_fence_operand(dq);
    if (i > 0) give_dq(i - 1);
    dx_stage.next();
  }

  // Packed sequences: behind a sequence's last key may be anything, and NaN would survive being multiplied by 0.
  __device__ __forceinline__ void clear_behind(int keys) {
    const int thread = threadIdx.x - kWarpgroup;
    for (int i = keys * 8 + thread; i < B::kKeys * 8; i += B::kConsumers * kWarpgroup) {
#pragma unroll
      for (int p = 0; p < B::kPanels; ++p)
        reinterpret_cast<uint4*>(m.k[p])[i] = reinterpret_cast<uint4*>(m.v[p])[i] = make_uint4(0, 0, 0, 0);
    }
    fence_proxy_async_shared();
    barrier_wait(kBothBarrier, B::kConsumers * kWarpgroup);
  }

  // 64 rows of dk or dv, by way of the values' rows of this warpgroup, which only it has read.
  __device__ __forceinline__ void store(const float (&d)[B::kDim / 2], float factor, void* out, int dim) {
    const int in_tile = warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < B::kDim / 16; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack_pair<T>(d[8 * j + 2 * i] * factor, d[8 * j + 2 * i + 1] * factor);
      const int piece = (j % 4 * 2 + lane / 16) ^ (in_tile % 8);
      stmatrix_x4(&m.v[j / 4][64 * number + in_tile][piece * 8], w);
    }
    barrier_wait(kOwnBarrier + number, kWarpgroup);
    constexpr int kPieces = B::kDim / 8;
    const int thread = threadIdx.x % kWarpgroup, piece = thread % kPieces;
    const Sequence s = m.job.sequence;
    const int first = m.job.key_tile * B::kKeys + 64 * number;
    const int64_t row = int64_t{s.batch} * a.sequences.key_rows + s.key_row + first;
    for (int r = thread / kPieces; r < 64; r += kWarpgroup / kPieces) {
      if (first + r >= s.key_rows || 8 * piece >= dim) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(&m.v[piece / 8][64 * number + r][(piece % 8 ^ r % 8) * 8]);
      reinterpret_cast<uint4*>(out)[((row + r) * a.key_heads + m.job.key_head) * (dim / 8) + piece] = v;
    }
    barrier_wait(kOwnBarrier + number, kWarpgroup);
  }

  __device__ __forceinline__ void run() {
    const int steps = m.job.steps() * a.group;
    if (steps > 0) {
      wgmma_fence_operand(dk), wgmma_fence_operand(dv);  // zeros are in place before products run
      m.k_full.wait(0), m.v_full.wait(0);
      const int keys = m.job.sequence.band.keys - m.job.key_tile * B::kKeys;
      if (a.sequences.packed() && keys < B::kKeys) clear_behind(keys);
      if (number == 1) barrier_arrive(kTurnBarrier, B::kConsumers * kWarpgroup);  // the first turn is the first one's
      m.q_full[0].wait(0);
      start_scores(0);
      int tile = m.job.queries.first;
      for (int i = 0; i < steps; ++i) {
        step(i, i + 1 < steps, tile);
        if (++tile == m.job.queries.end) tile = m.job.queries.first;
      }
      wgmma_wait<0>();
      wait_for_dx_before();
      start_dq();
      wgmma_wait<0>();
      wgmma_fence_operand(dq);
      give_dq(steps - 1);
      wgmma_fence_operand(dk), wgmma_fence_operand(dv);
    }
    store(dk, a.scale, a.dk, a.dim);
    store(dv, 1.f, a.dv, a.value_dim);
  }
};

}  // namespace attention::gpu
