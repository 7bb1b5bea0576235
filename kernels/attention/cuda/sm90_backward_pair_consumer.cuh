// A warpgroup of a block of a pair, one of two with different work, for one tile of query rows after the other:
//   the first    scores = k q    p     dv += p dout
//   the second   dp = v dout     dx    dk += dx q
// with the block's own keys as rows, so that p and dx are, rounded, A operands where they lie, in registers. What dx is
// made of beside dp, the second gets from the first thread by thread. dq = dx k goes over the keys of both blocks: each
// sends its dx to the other one, and each consumer computes columns of its own, one step later, when dx of both has
// long been there.
#pragma once

#include "kernels/attention/cuda/sm90_backward_pair_block.cuh"
#include "kernels/attention/cuda/softmax.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mbarrier.cuh"
#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/wgmma.cuh"

namespace attention::gpu {

template <class B, int kNumber>
struct PairConsumer {
  using T = typename B::T;
  static constexpr bool kScores = kNumber == 0;
  static constexpr int kColumns = kScores ? B::kValueDim : B::kDim, kDqColumns = B::dq_columns(kNumber);
  static constexpr int kOperands = (kScores ? B::kDim : B::kValueDim) / 16;                    // of keys or values
  static constexpr int kBothBarrier = 1, kOwnBarrier = 2, kFullBarrier = 4, kFreeBarrier = 8;  // the last two: a warp's

  const BackwardArguments& a;
  PairMemory<B>& m;
  const int rank = int(cluster_ctarank());
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  float sum[kColumns / 2] = {};                          // dv or dk of 64 keys
  float products[B::kRows / 2];                          // scores or dp of 64 keys and query rows
  uint32_t rounded[B::kRows / 16][4];                    // p or dx
  float dq[kDqColumns / 2];                              // of 64 query rows
  uint32_t own[B::kKeysInRegisters ? kOperands : 1][4];  // keys or values

  // This warp is done with a buffer that both blocks fill, or read.
  __device__ __forceinline__ void release(Mbarrier& barrier) {
    __syncwarp();
    if (lane < B::kBlocks) mbarrier_arrive_cluster(lane, barrier);
  }

  __device__ __forceinline__ void start_by_keys(const uint16_t* keys, const uint16_t* rows, int panels) {
    const Operand k = operand_by_rows(keys), r = operand_by_rows(rows);
    constexpr int kPanelBytes = 64 * 64 * 2;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * panels; ++i) {
      const int at = i / 4 * kPanelBytes + i % 4 * 32;
      if constexpr (B::kKeysInRegisters)
        wgmma<T, B::kRows, false>(products, own[i], moved(r, at), i > 0);
      else
        wgmma<T, B::kRows>(products, moved(k, at), moved(r, at), i > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void load_own() {  // where registers hold it, a third less is read of shared memory
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
      const auto& panel = kScores ? m.k[i / 4] : m.v[i / 4];
      ldmatrix_x4(own[i], &panel[row][(i % 4 * 2 + lane / 16 ^ row % 8) * 8]);
    }
  }
  // Scores or dp of step i.
  __device__ __forceinline__ void start_products(int i) {
    if constexpr (kScores)
      start_by_keys(m.k[0][0], m.q[i % B::kStages][0][0], B::kPanels);
    else
      start_by_keys(m.v[0][0], m.dout[i % B::kDoutStages][0][0], B::kValuePanels);
  }
  __device__ __forceinline__ void start_sum(int i) {
    Operand rows;
    if constexpr (kScores)
      rows = operand_by_columns(m.dout[i % B::kDoutStages], sizeof(m.dout[0][0]));
    else
      rows = operand_by_columns(m.q[i % B::kStages], sizeof(m.q[0][0]));
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < B::kRows / 16; ++j) wgmma<T, kColumns>(sum, rounded[j], moved(rows, j * 16 * 128), true);
    wgmma_commit();
  }
  __device__ __forceinline__ void start_dq(int i) {
    const auto& dx = m.dx[i % B::kDxStages];
    const int column = B::first_dq_column(rank, kNumber), in_panel = column % 64 * 2;
    const Operand own = operand_by_rows(dx[0]), other = operand_by_rows(dx[1]);
    const Operand own_k = moved(operand_by_columns(m.k[column / 64], sizeof(m.k[0])), in_panel);
    const Operand other_k = moved(operand_by_columns(m.other_k[kNumber], sizeof(m.k[0])), in_panel);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < B::kOwnKeys / 16; ++j)
      wgmma<T, kDqColumns, true>(dq, moved(own, j * 32), moved(own_k, j * 16 * 128), j > 0);
#pragma unroll
    for (int j = 0; j < B::kOwnKeys / 16; ++j)
      wgmma<T, kDqColumns, true>(dq, moved(other, j * 32), moved(other_k, j * 16 * 128), true);
    wgmma_commit();
  }

  // p of scores, and for the other consumer what dp - delta is to be multiplied by, rounded.
  template <bool kMasked, bool kCapped>
  __device__ __forceinline__ void compute_p(int stage, int tile) {
    int from[2], to[2];  // query rows of the tile that see the thread's two keys
    if constexpr (kMasked) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Band band = m.job.sequence.band;
        const int key = m.job.key_tile * B::kKeys + B::kOwnKeys * rank + 16 * warp + lane / 4 + 8 * r;
        const int column = tile * B::kRows + lane % 4 * 2;
        from[r] = key < band.keys ? key - band.after + 1 - column : B::kRows;
        to[r] = key - band.before - column;
      }
    }
    const float* lse = m.lse[stage] + lane % 4 * 2;
    uint32_t factors[4];
#pragma unroll
    for (int j = 0; j < B::kRows / 8; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(lse + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float e[2], slope[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float s = products[4 * j + 2 * r + c], y = kCapped ? tanh_approx(s * a.cap_scale) : s;
          e[c] = exp2_approx(y * a.score_scale - (c == 0 ? l.x : l.y));
          if (kMasked && (8 * j + c < from[r] || 8 * j + c > to[r])) e[c] = 0.f;
          slope[c] = 1.f - y * y;
        }
        uint32_t& p = rounded[j / 2][j % 2 * 2 + r];
        p = pack_pair<T>(e[0], e[1]);
        factors[j % 2 * 2 + r] = kCapped ? pack_pair<T>(e[0] * slope[0], e[1] * slope[1]) : p;
      }
      if (j % 2 == 1) m.factors[j / 2][thread] = make_uint4(factors[0], factors[1], factors[2], factors[3]);
    }
  }
  __device__ __forceinline__ void compute_dx(int dout_stage) {
    const float* delta = m.delta[dout_stage] + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < B::kRows / 16; ++j) {
      const uint4 four = m.factors[j][thread];
      const uint32_t factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 d = *reinterpret_cast<const float2*>(delta + 16 * j + i / 2 * 8), f = unpack_pair<T>(factors[i]);
        const float* dp = products + 8 * j + 2 * i;
        rounded[j][i] = pack_pair<T>(f.x * (dp[0] - d.x), f.y * (dp[1] - d.y));
      }
    }
  }
  // To shared memory, this block's and the other one's. The other one's dq of two steps ago was of this buffer, too.
  __device__ __forceinline__ void store_dx(int i) {
    const int stage = i % B::kDxStages;
    auto& dx = m.dx[stage];
    m.dx_free[stage].wait(i / B::kDxStages % 2 ^ 1);
#pragma unroll
    for (int j = 0; j < B::kRows / 16; ++j) {
      const int query = 16 * j + lane / 16 * 8 + lane % 8, piece = (2 * warp + lane / 8 % 2) ^ (lane % 8);
      stmatrix_x4_trans(&dx[0][query][piece * 8], rounded[j]);
    }
    fence_proxy_async_shared();
    barrier_wait(kOwnBarrier + kNumber, kWarpgroup);
    if (thread != 0) return;
    m.dx_full[stage].arrive_expect_tx(sizeof(dx[1]));
    bulk_copy_cluster(1 - rank, dx[1], dx[0], sizeof(dx[0]), m.dx_full[stage]);
  }

  // dq of step number i, of a head and a tile: added in L2, [column / 8][thread] four elements. Deterministic: when a
  // thread of the producer's warpgroup says so (keep_added).
  __device__ __forceinline__ void add_dq(int i, int head, int tile) {
    const int64_t at = int64_t{head} * a.query_slots + m.job.sequence.first_query_slot + tile;
    float* to = a.dq + at * (B::kRows * B::kDim) + B::first_dq_column(rank, kNumber) * B::kRows + thread * 4;
    if (a.added != nullptr) m.may_add[kNumber].wait(i % 2);
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j)
      add_in_memory(to + j * kWarpgroup * 4, make_float4(dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]));
    if (a.added == nullptr) return;
    __syncwarp();
    if (lane == 0) m.has_added[kNumber].arrive();
  }
  __device__ __forceinline__ void finish_dq(int i, int head, int tile) {  // of the step before number i
    wgmma_fence_operand(dq);
    if (i == 0) return;
    release(m.dx_free[(i - 1) % B::kDxStages]);
    if (--tile < m.job.queries.first) tile = m.job.queries.end - 1, --head;
    add_dq(i - 1, head, tile);
  }
  __device__ __forceinline__ void wait_for_dx(int i) { m.dx_full[i % B::kDxStages].wait(i / B::kDxStages % 2); }

  // Step number i: a tile of query rows, whose scores have been started. Products run on only where none is
  // conditional: the first dq, and the products behind the last step, are of nothing, and nobody looks.
  __device__ __forceinline__ void score_step(int i, bool more, int head, int tile) {
    const int stage = i % B::kStages, dout_stage = i % B::kDoutStages;
    wgmma_wait<0>();
    wgmma_fence_operand(products);
    if (i > 0) barrier_wait(kFreeBarrier + warp, 64);
    const bool masked = tile < m.job.first_whole || tile >= m.job.end_whole;
    if (a.cap_scale > 0)
      masked ? compute_p<true, true>(stage, tile) : compute_p<false, true>(stage, tile);
    else
      masked ? compute_p<true, false>(stage, tile) : compute_p<false, false>(stage, tile);
    barrier_arrive(kFullBarrier + warp, 64);
    release(m.q_free[stage]);
    m.dout_full[dout_stage].wait(i / B::kDoutStages % 2);
    start_sum(i);
    if (i > 0) wait_for_dx(i - 1);
    start_dq(i + 1);
    if (more) m.q_full[stage ^ 1].wait((i + 1) / B::kStages % 2);
    wgmma_wait<1>();
    release(m.dout_free[dout_stage]);
    start_products(i + 1);
    wgmma_wait<1>();
    finish_dq(i, head, tile);
  }

  __device__ __forceinline__ void gradient_step(int i, bool more, int head, int tile) {
    const int stage = i % B::kStages, dout_stage = i % B::kDoutStages;
    wgmma_wait<0>();
    wgmma_fence_operand(products);
    barrier_wait(kFullBarrier + warp, 64);
    compute_dx(dout_stage);
    store_dx(i);
    // Only now: what is stored was computed, so that what was loaded for it has come. Loads that wait behind additions
    // to dq may come later than the next tile.
    if (more) barrier_arrive(kFreeBarrier + warp, 64);
    release(m.dout_free[dout_stage]);
    m.q_full[stage].wait(i / B::kStages % 2);
    start_sum(i);
    if (i > 0) wait_for_dx(i - 1);
    start_dq(i + 1);
    const auto wait_for_dout = [&] {
      if (more) m.dout_full[(i + 1) % B::kDoutStages].wait((i + 1) / B::kDoutStages % 2);
    };
    if constexpr (B::kDoutStages > 1) wait_for_dout();
    wgmma_wait<1>();
    release(m.q_free[stage]);
    if constexpr (B::kDoutStages > 1) {
      start_products(i + 1);
      wgmma_wait<1>();
      finish_dq(i, head, tile);
    } else {  // the next dout comes to where this one was, while dk and dq are multiplied
      wgmma_wait<0>();
      finish_dq(i, head, tile);
      wait_for_dout();
      start_products(i + 1);
    }
  }

  // Packed sequences: behind a sequence's last key may be anything, and NaN would survive being multiplied by 0.
  __device__ __forceinline__ void clear_behind() {
    const int keys = m.job.sequence.band.keys - m.job.key_tile * B::kKeys;
    const auto clear = [&](auto& panels, int of_block) {
      for (int i = max(0, keys - B::kOwnKeys * of_block) * 8 + int(threadIdx.x) - kWarpgroup; i < B::kOwnKeys * 8;
           i += B::kConsumers * kWarpgroup) {
        for (auto& panel : panels) reinterpret_cast<uint4*>(panel)[i] = make_uint4(0, 0, 0, 0);
      }
    };
    clear(m.k, rank), clear(m.v, rank), clear(m.other_k, 1 - rank);
    fence_proxy_async_shared();
    barrier_wait(kBothBarrier, B::kConsumers * kWarpgroup);
  }

  // 64 rows of dv or dk, by way of memory that was dout's or the queries'.
  __device__ __forceinline__ void store() {
    auto* panels = kScores ? m.dout[0] : m.q[0];
    const float factor = kScores ? 1.f : a.scale;
    const int in_tile = warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kColumns / 16; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack_pair<T>(sum[8 * j + 2 * i] * factor, sum[8 * j + 2 * i + 1] * factor);
      const int piece = (j % 4 * 2 + lane / 16) ^ (in_tile % 8);
      stmatrix_x4(&panels[j / 4][in_tile][piece * 8], w);
    }
    barrier_wait(kOwnBarrier + kNumber, kWarpgroup);
    constexpr int kPieces = kColumns / 8;
    const Sequence s = m.job.sequence;
    const int first = m.job.key_tile * B::kKeys + B::kOwnKeys * rank, dim = kScores ? a.value_dim : a.dim;
    const int64_t row = int64_t{s.batch} * a.sequences.key_rows + s.key_row + first;
    auto* out = static_cast<uint4*>(kScores ? a.dv : a.dk);
    for (int i = thread; i < B::kOwnKeys * kPieces; i += kWarpgroup) {
      const int r = i / kPieces, piece = i % kPieces;
      if (first + r < s.key_rows && 8 * piece < dim)
        out[((row + r) * a.key_heads + m.job.key_head) * (dim / 8) + piece] =
            *reinterpret_cast<const uint4*>(&panels[piece / 8][r][(piece % 8 ^ r % 8) * 8]);
    }
  }

  __device__ __forceinline__ void run() {
    const int steps = m.job.steps() * a.group;
    if (steps > 0) {
      wgmma_fence_operand(sum);  // zeros are in place before products run
      m.k_full.wait(0), m.v_full.wait(0);
      if (a.sequences.packed()) clear_behind();
      if constexpr (B::kKeysInRegisters) load_own();
      kScores ? m.q_full[0].wait(0) : m.dout_full[0].wait(0);
      start_products(0);
      int tile = m.job.queries.first, head = m.job.key_head * a.group;
      for (int i = 0; i < steps; ++i) {
        if constexpr (kScores)
          score_step(i, i + 1 < steps, head, tile);
        else
          gradient_step(i, i + 1 < steps, head, tile);
        if (++tile == m.job.queries.end) tile = m.job.queries.first, ++head;
      }
      wgmma_wait<0>();
      wait_for_dx(steps - 1);
      start_dq(steps - 1);
      wgmma_wait<0>();
      wgmma_fence_operand(dq);
      if (--tile < m.job.queries.first) tile = m.job.queries.end - 1, --head;
      add_dq(steps - 1, head, tile);
      wgmma_fence_operand(sum);
    }
    barrier_wait(kBothBarrier, B::kConsumers * kWarpgroup);  // nobody's products read what is stored through
    store();
  }
};

}  // namespace attention::gpu
