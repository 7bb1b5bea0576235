// Attention backward for sm_90a of heads of more than 128 numbers, of whole batches: registers hold the sums of one
// gradient of 128 rows and no more, so that dq, dk and dv are kernels of their own, eight products where five would do,
// at the rate of wgmma. As in backward_mma.cuh a block stays with its own rows, of queries or of keys, and the others
// come tile by tile, in pairs; nothing is summed in memory.
//
// One warp loads, one more brings lse and delta where the others are queries, and two warpgroups of 64 rows each
// multiply. A warpgroup's products of a step (the sum of this one, then dp and the scores of the next) run while the
// other one computes p and dx.
#pragma once

#include "kernels/attention/backward_mma.cuh"
#include "kernels/common/gpu/tma.cuh"
#include "kernels/common/gpu/warpgroup.cuh"
#include "kernels/common/gpu/wgmma.cuh"

namespace attention::gpu {

// kFirst: dq or dk; else dv.
template <class Number, int kDim_, int kValueDim_, int kOther_, bool kKeysStay_, bool kFirst_>
struct WideTraits {
  using T = Number;
  static constexpr int kDim = kDim_, kValueDim = kValueDim_, kOther = kOther_, kWorkers = 2, kOwn = 64 * kWorkers;
  static constexpr bool kKeysStay = kKeysStay_, kFirst = kFirst_, kSecond = !kFirst_;
  static constexpr int kPanels = kDim / 64, kValuePanels = kValueDim / 64, kColumns = kFirst ? kDim : kValueDim;
  static constexpr int kSlots = (kFirst && kDim > 192 ? 3 : 4) * (64 / kOther);  // as many as there is memory for
  static constexpr int kThreads = kWarpgroup * (1 + kWorkers);
  static constexpr int kLoaderRegisters = 24, kWorkerRegisters = 240;
};

struct WideArguments {
  CUtensorMap own_first, own_second, first, second;  // q and dout, k and v, in the order of own and others
  MmaBackwardArguments a;
};

template <class B>
struct WideMemory {
  uint16_t own_first[B::kPanels][B::kOwn][64];
  uint16_t own_second[B::kFirst ? B::kValuePanels : 1][B::kOwn][64];
  uint16_t slots[B::kSlots][B::kPanels][B::kOther][64];  // the others, early and late in turn
  float lse[2][B::kOther], delta[2][B::kOther];          // step i has number i % 2
  Barrier own_full, full[B::kSlots], free[B::kSlots], statistics_full[2], statistics_free[2];
  MmaBackwardJob<B> job;

  __device__ void init() {  // one thread
    constexpr int kWarps = 4 * B::kWorkers;
    own_full.init(1);
    for (int i = 0; i < B::kSlots; ++i) full[i].init(1), free[i].init(kWarps);
    for (int i = 0; i < 2; ++i) statistics_full[i].init(32), statistics_free[i].init(kWarps);
    publish_barriers();
  }
};

// fn(head of the others, tile) for each step, in order.
template <class B, class Fn>
__device__ __forceinline__ void for_steps(const MmaBackwardArguments& a, const MmaBackwardJob<B>& job, const Fn& fn) {
  const int first = B::kKeysStay ? job.head * a.group : job.head / a.group;
  for (int h = first; h < first + (B::kKeysStay ? a.group : 1); ++h)
    for (int t = job.tiles.first; t < job.tiles.end; ++t) fn(h, t);
}

template <class B>
__device__ __forceinline__ void load_wide(const WideArguments& w, WideMemory<B>& m) {  // one thread
  const MmaBackwardJob<B>& job = m.job;
  const int batch = job.s.batch;
  if (job.tiles.first < job.tiles.end) {
    m.own_full.arrive_expecting(sizeof(m.own_first) + (B::kFirst ? sizeof(m.own_second) : 0));
#pragma unroll
    for (int p = 0; p < B::kPanels; ++p)
      load_box(m.own_first[p], w.own_first, m.own_full, 64 * p, job.first, job.head, batch);
    if constexpr (B::kFirst) {
#pragma unroll
      for (int p = 0; p < B::kValuePanels; ++p)
        load_box(m.own_second[p], w.own_second, m.own_full, 64 * p, job.first, job.head, batch);
    }
  }
  Ring<B::kSlots> slot;
  const auto load = [&](const CUtensorMap& map, int panels, int h, int t) {
    m.free[slot.index].wait(slot.parity ^ 1);
    m.full[slot.index].arrive_expecting(panels * sizeof(m.slots[0][0]));
#pragma unroll
    for (int p = 0; p < B::kPanels; ++p)
      if (p < panels) load_box(m.slots[slot.index][p], map, m.full[slot.index], 64 * p, t * B::kOther, h, batch);
    slot.next();
  };
  for_steps<B>(w.a, job, [&](int h, int t) {
    if constexpr (B::kFirst) load(w.second, B::kValuePanels, h, t);
    load(w.first, B::kPanels, h, t);
    if constexpr (!B::kFirst) load(w.second, B::kValuePanels, h, t);
  });
}

template <class B>
__device__ __forceinline__ void load_statistics(const WideArguments& w, WideMemory<B>& m) {  // one warp
  const MmaBackwardArguments& a = w.a;
  const int lane = threadIdx.x % 32, rows = a.sequences.query_rows;
  Ring<2> stage;
  for_steps<B>(a, m.job, [&](int h, int t) {
    m.statistics_free[stage.index].wait(stage.parity ^ 1);
#pragma unroll
    for (int i = 0; i < B::kOther / 32; ++i) {
      const int row = t * B::kOther + 32 * i + lane;
      const int64_t at = (int64_t{m.job.s.batch} * a.heads + h) * rows + row;
      m.lse[stage.index][32 * i + lane] = row < rows ? a.lse[at] : INFINITY;
      m.delta[stage.index][32 * i + lane] = row < rows ? a.delta[at] : 0.f;
    }
    m.statistics_full[stage.index].arrive();
    stage.next();
  });
}

template <class B>
struct WideWorker {
  using T = typename B::T;
  static constexpr int kOwnBarrier = 1;

  const MmaBackwardArguments& a;
  WideMemory<B>& m;
  // By a shuffle: so the compiler knows that a warp's threads agree, and that branches on it do not part them.
  const int number = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) - 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  float sum[B::kColumns / 2] = {};
  float scores[B::kOther / 2], dp[B::kFirst ? B::kOther / 2 : 1];
  Ring<B::kSlots> slot;  // the next one to be multiplied

  __device__ __forceinline__ void free(Barrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }
  // Own rows by those of a slot.
  template <int kPanels>
  __device__ __forceinline__ void start_by_rows(float (&to)[B::kOther / 2], const uint16_t (&own)[kPanels][B::kOwn][64],
                                                int from) {
    const Operand x = operand_by_rows(own[0][64 * number]), y = operand_by_rows(m.slots[from]);
    begin_products();
#pragma unroll
    for (int i = 0; i < 4 * kPanels; ++i)
      multiply<T, B::kOther>(to, moved(x, i / 4 * sizeof(own[0]) + i % 4 * 32),
                             moved(y, i / 4 * sizeof(m.slots[0][0]) + i % 4 * 32), i > 0);
    commit_products();
  }
  // dp and scores of a step, or the scores alone. Where there are no more, of whatever lies there, and nobody looks.
  __device__ __forceinline__ void start_step(bool more) {
    if constexpr (B::kFirst) {
      if (more) m.full[slot.index].wait(slot.parity);
      start_by_rows(dp, m.own_second, slot.index);
      slot.next();
    }
    if (more) m.full[slot.index].wait(slot.parity);
    start_by_rows(scores, m.own_first, slot.index);
    slot.next();
  }

  // p or dx, rounded, of scores and dp. These are not written: their registers are the next products' at once.
  template <bool kMasked, bool kCapped>
  __device__ __forceinline__ void compute(uint32_t (&rounded)[B::kOther / 16][4], int stage, int own, int first,
                                          const float (&own_lse)[2], const float (&own_delta)[2]) const {
    const int other = first + lane % 4 * 2;
    const float *lse = m.lse[stage] + lane % 4 * 2, *delta = m.delta[stage] + lane % 4 * 2;
    Span seen[2] = {};
    if constexpr (kMasked) seen[0] = m.job.seen_by(own), seen[1] = m.job.seen_by(own + 8);
#pragma unroll
    for (int j = 0; j < B::kOther / 8; ++j) {
      float2 l{}, d{};
      if constexpr (B::kKeysStay) l = *reinterpret_cast<const float2*>(lse + 8 * j);
      if constexpr (B::kKeysStay && B::kFirst) d = *reinterpret_cast<const float2*>(delta + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int i = 4 * j + 2 * r + c, at = other + 8 * j + c;
          const float y = kCapped ? tanh_fast(scores[i] * a.scores.cap_scale) : scores[i];
          x[c] = exp2_fast(y * a.scores.scale - (!B::kKeysStay ? own_lse[r] : c == 0 ? l.x : l.y));
          if (kMasked && (at < seen[r].first || at >= seen[r].end)) x[c] = 0.f;
          if constexpr (B::kFirst) {
            x[c] *= dp[i] - (!B::kKeysStay ? own_delta[r] : c == 0 ? d.x : d.y);
            if (kCapped) x[c] *= 1.f - y * y;
          }
        }
        rounded[j / 2][j % 2 * 2 + r] = pack_pair<T>(x[0], x[1]);
      }
    }
  }

  __device__ __forceinline__ void store() {
    const int in_tile = warp * 16 + lane % 16;
    const float scale = B::kFirst ? a.scale : 1.f;
#pragma unroll
    for (int j = 0; j < B::kColumns / 16; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack_pair<T>(sum[8 * j + 2 * i] * scale, sum[8 * j + 2 * i + 1] * scale);
      const int piece = (j % 4 * 2 + lane / 16) ^ (in_tile % 8);
      store_matrices(&m.own_first[j / 4][64 * number + in_tile][piece * 8], w);
    }
    barrier_wait(kOwnBarrier + number, kWarpgroup);
    constexpr int kPieces = B::kColumns / 8;
    const int dim = B::kFirst ? a.dim : a.value_dim, heads = B::kKeysStay ? a.key_heads : a.heads;
    const int64_t rows = B::kKeysStay ? a.sequences.key_rows : a.sequences.query_rows;
    const int64_t first = m.job.s.batch * rows + m.job.first + 64 * number;
    auto* out = static_cast<uint4*>(B::kFirst ? a.first : a.second);
    for (int i = threadIdx.x % kWarpgroup; i < 64 * kPieces; i += kWarpgroup) {
      const int r = i / kPieces, piece = i % kPieces;
      if (64 * number + r < m.job.rows && 8 * piece < dim)
        out[((first + r) * heads + m.job.head) * (dim / 8) + piece] =
            *reinterpret_cast<const uint4*>(&m.own_first[piece / 8][64 * number + r][(piece % 8 ^ r % 8) * 8]);
    }
  }

  __device__ __forceinline__ void run() {
    const MmaBackwardJob<B>& job = m.job;
    const int own = job.first + 64 * number + 16 * warp + lane / 4;
    const int steps = (job.tiles.end - job.tiles.first) * (B::kKeysStay ? a.group : 1);
    if (steps > 0) {
      float own_lse[2] = {}, own_delta[2] = {};
      if constexpr (!B::kKeysStay) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t at = (int64_t{job.s.batch} * a.heads + job.head) * a.sequences.query_rows + own + 8 * r;
          const bool inside = own + 8 * r < a.sequences.query_rows;
          own_lse[r] = inside ? a.lse[at] : INFINITY, own_delta[r] = inside ? a.delta[at] : 0.f;
        }
      }
      settle(sum);  // zeros are in place before products run
      m.own_full.wait(0);
      start_step(true);
      int t = job.tiles.first, late_before = 0;
      for (int i = 0; i < steps; ++i) {
        wait_products<0>();
        settle(scores), settle(dp), settle(sum);
        // Of the slots behind `slot` the last is this step's scores', the one before it dp's.
        const int last = (slot.index + B::kSlots - 1) % B::kSlots, before = (slot.index + B::kSlots - 2) % B::kSlots;
        if (i > 0) free(m.free[late_before]);
        free(m.free[B::kFirst ? before : last]);
        int late = last;
        if constexpr (!B::kFirst) {
          late = slot.index;
          m.full[late].wait(slot.parity);
          slot.next();
        }
        if constexpr (B::kKeysStay) m.statistics_full[i % 2].wait(i / 2 % 2);
        const bool masked = t < job.tiles.first_whole || t >= job.tiles.end_whole;
        uint32_t rounded[B::kOther / 16][4];
        const auto round = [&]<bool kMasked>() {
          a.scores.cap_scale > 0 ? compute<kMasked, true>(rounded, i % 2, own, t * B::kOther, own_lse, own_delta)
                                 : compute<kMasked, false>(rounded, i % 2, own, t * B::kOther, own_lse, own_delta);
        };
        masked ? round.template operator()<true>() : round.template operator()<false>();
        if constexpr (B::kKeysStay) free(m.statistics_free[i % 2]);
        const Operand columns = operand_by_columns(m.slots[late], sizeof(m.slots[0][0]));
        begin_products();
#pragma unroll
        for (int k = 0; k < B::kOther / 16; ++k)
          multiply<T, B::kColumns>(sum, rounded[k], moved(columns, k * 16 * 128), true);
        commit_products();
        start_step(i + 1 < steps);
        late_before = late;
        if (++t == job.tiles.end) t = job.tiles.first;
      }
      wait_products<0>();
      settle(sum);
    }
    store();
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1) wide_backward_kernel(const __grid_constant__ WideArguments w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  // Panels begin at multiples of 1024 bytes (wgmma.cuh).
  extern __shared__ __align__(1024) uint8_t raw[];
  if (shared_address(raw) % 1024 != 0) __trap();
  auto& m = *reinterpret_cast<WideMemory<B>*>(raw);
  if (threadIdx.x == 0) {
    prefetch(w.own_first), prefetch(w.own_second), prefetch(w.first), prefetch(w.second);
    m.init();
    m.job = MmaBackwardJob<B>(w.a, blockIdx.x);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<B::kLoaderRegisters>();
    if (threadIdx.x == 0) load_wide<B>(w, m);
    if (B::kKeysStay && threadIdx.x / 32 == 1) load_statistics<B>(w, m);
  } else {
    take_registers<B::kWorkerRegisters>();
    WideWorker<B>{w.a, m}.run();
  }
#endif
}

}  // namespace attention::gpu
