// A warpgroup of the sm_90a forward: 64 rows of each of its block's tiles. Key tiles go from the last to the first:
// those that need a mask come first, and a row's maximum is mostly final early.
//
// Three things run beside each other:
//   the products q k of the next key tile and p v of this one, while the softmax of scores is computed;
//   one warpgroup's products in the time of the others' exponentials: a turn goes round, who has it starts scores;
//   the first scores of the next tile while this one is divided, rounded and stored.
#pragma once

#include "kernels/attention/cuda/sm90_forward_block.cuh"
#include "kernels/attention/cuda/softmax.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mbarrier.cuh"
#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/wgmma.cuh"

namespace attention::gpu {

// Which ends of rows' keys a key tile may hold: none, the last key seen, the first one.
enum Ends { kNoEnd, kLastKey, kFirstKey };

template <class F>
struct Consumer {
  using T = typename F::T;
  static constexpr bool kOwnFirst = F::kOwnEnds && F::kLeft;
  static constexpr int kFirstTurn = 1, kOutBarrier = 1 + F::kConsumers;  // numbers of barriers

  const ForwardArguments& a;
  ForwardMemory<F>& m;
  // By a shuffle: so the compiler knows that a warp's threads agree, and that branches on it do not part them.
  const int number = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) - 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  PipelineState<F::kStages> k_stage, v_stage;
  PipelineState<F::kQueryStages> q_stage;
  float out[F::kValueDim / 2] = {};
  float scores[F::kKeys / 2];
  uint32_t p[F::kKeys / 16][4];  // exponentials, rounded: A of p v

  template <class Stage>
  __device__ __forceinline__ void free(Mbarrier* barriers, Stage& stage) {
    if (lane == 0) barriers[stage.index].arrive();
    stage.next();
  }
  __device__ __forceinline__ void wait_for_turn() { barrier_wait(kFirstTurn + number, 2 * kWarpgroup); }
  __device__ __forceinline__ void pass_turn() {
    barrier_arrive(kFirstTurn + (number + 1 == F::kConsumers ? 0 : number + 1), 2 * kWarpgroup);
  }

  // Key tiles of the block's tile from here on are not seen by this warpgroup's rows. One is computed in any case.
  __device__ __forceinline__ int own_end(const Job& job) const {
    if constexpr (!F::kOwnEnds) return job.keys.end;
    const int row = 64 * number;
    const int end = key_tiles<F::kLeft>(job.band, row, min(row + 64, job.rows), F::kKeys).end;
    return min(max(end, job.keys.first + 1), job.keys.end);
  }

  __device__ __forceinline__ void start_scores() {
    const Operand q = operand_by_rows(m.q[q_stage.index][0][64 * number]), k = operand_by_rows(m.k[k_stage.index]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < F::kDim / 16; ++i)
      wgmma<T, F::kKeys>(scores, moved(q, i / 4 * sizeof(m.q[0][0]) + i % 4 * 32),
                         moved(k, i / 4 * sizeof(m.k[0][0]) + i % 4 * 32), i > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void start_out(bool add) {
    m.v_full[v_stage.index].wait(v_stage.parity);
    const Operand v = operand_by_columns(m.v[v_stage.index], sizeof(m.v[0][0]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < F::kKeys / 16; ++i) wgmma<T, F::kValueDim>(out, p[i], moved(v, i * 16 * 128), i > 0 || add);
    wgmma_commit();
  }

  // The first key tile that this warpgroup's rows see: those before it are others'. One is computed in any case.
  __device__ __forceinline__ int own_first(const Job& job, int own_end) const {
    if constexpr (!kOwnFirst) return job.keys.first;
    const int row = 64 * number;
    const int first = key_tiles<F::kLeft>(job.band, row, max(row + 1, min(row + 64, job.rows)), F::kKeys).first;
    return max(job.keys.first, min(first, own_end - 1));
  }

  // Scores are there: become exponentials.
  template <Ends kEnds>
  __device__ __forceinline__ void add_scores(RowSoftmax& softmax, float (&shrink)[2], const Job& job, int tile) {
    free(m.k_free, k_stage);
    if constexpr (F::kSoftcap) {
#pragma unroll
      for (float& s : scores) s = tanh_approx(s * a.cap_scale);
    }
    const int row = 64 * number + warp * 16 + lane / 4, column = tile * F::kKeys + lane % 4 * 2;
    if constexpr (kEnds == kFirstKey)
      mask_scores<true, false>(scores, job.band, row, column);
    else if (kEnds == kLastKey && F::kLeft &&
             job.keys.first_whole == job.keys.end_whole)  // a row's both ends, it may be
      mask_scores<F::kLeft>(scores, job.band, row, column);
    else if constexpr (kEnds == kLastKey)
      mask_scores<false>(scores, job.band, row, column);
    softmax.add(scores, shrink);
  }

  // The product p v that was started in the last step is done, and the exponentials computed meanwhile become its next
  // operand. At the beginning of a step, not at the end of the last one: there the compiler would put this wait before
  // the exponentials, and nothing would run beside them.
  __device__ __forceinline__ void settle_out(bool started, const float (&shrink)[2]) {
    wgmma_wait<0>();
    wgmma_fence_operand(out);
    if (started) free(m.v_free, v_stage);
    if (__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < F::kValueDim / 2; ++i) out[i] *= shrink[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < F::kKeys / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i][j] = pack_pair<T>(scores[8 * i + 2 * j], scores[8 * i + 2 * j + 1]);
    }
  }

  // One more key tile: its scores, while the one before is multiplied with its values.
  template <Ends kEnds>
  __device__ __forceinline__ void step(RowSoftmax& softmax, float (&shrink)[2], bool started, const Job& job,
                                       int tile) {
    settle_out(started, shrink);
    wait_for_turn();
    m.k_full[k_stage.index].wait(k_stage.parity);
    start_scores();
    pass_turn();
    start_out(started);
    wgmma_wait<1>();
    wgmma_fence_operand(scores);
    add_scores<kEnds>(softmax, shrink, job, tile);
  }

  // Packed sequences: behind a sequence's last key may be anything, and NaN would survive being multiplied by 0. Each
  // warpgroup clears for itself: so it need not wait for others.
  __device__ __forceinline__ void clear_values(int keys) {
    m.v_full[v_stage.index].wait(v_stage.parity);
    auto& panels = m.v[v_stage.index];
    constexpr int kPieces = F::kKeys * 8;
    for (int i = max(0, keys) * 8 + threadIdx.x % kWarpgroup; i < kPieces; i += kWarpgroup) {
#pragma unroll
      for (int p = 0; p < F::kValuePanels; ++p) reinterpret_cast<uint4*>(panels[p])[i] = make_uint4(0, 0, 0, 0);
    }
    fence_proxy_async_shared();
    barrier_wait(kOutBarrier + number, kWarpgroup);
  }

  // The first scores of a tile. For a tile without keys they are garbage and are discarded: a branch here would make
  // the compiler serialise wgmma.
  __device__ __forceinline__ void start_tile(const Job& job) {
    if (F::kOutInQueries && job.rows > 0) m.q_full[q_stage.index].wait(q_stage.parity);  // also of one without keys
    if (job.keys.first < job.keys.end) {
      for (int t = job.keys.end; t > own_end(job); --t) {
        m.k_full[k_stage.index].wait(k_stage.parity);
        free(m.k_free, k_stage);
      }
      if constexpr (!F::kOutInQueries) m.q_full[q_stage.index].wait(q_stage.parity);
      m.k_full[k_stage.index].wait(k_stage.parity);
    }
    start_scores();
  }

  // All of a tile but the start of its first scores and its storing, and the start of the next tile where that does not
  // wait for the storing.
  __device__ __forceinline__ Job finish_tile(const Job& job, JobSource<F>& source, RowSoftmax& softmax) {
    wgmma_wait<0>();
    wgmma_fence_operand(scores);
    if (job.keys.first == job.keys.end) {
      const Job next = source.receive();
      if constexpr (!F::kOutInQueries) start_tile(next);
      return next;
    }
    const int last = own_end(job) - 1, skipped = job.keys.end - 1 - last;
    for (int i = 0; i < skipped; ++i) {
      m.v_full[v_stage.index].wait(v_stage.parity);
      free(m.v_free, v_stage);
    }
    if (const int keys = job.band.keys - last * F::kKeys; a.sequences.packed() && keys < F::kKeys) clear_values(keys);
    float shrink[2];
    const int first = own_first(job, last + 1), left_out = first - job.keys.first;
    add_scores<kLastKey>(softmax, shrink, job, last);
    int t = last - 1;
    for (; t >= (kOwnFirst ? max(first, job.keys.end_whole) : job.keys.end_whole); --t)
      step<kLastKey>(softmax, shrink, t < last - 1, job, t);
    for (; t >= (kOwnFirst ? max(first, job.keys.first_whole) : job.keys.first_whole); --t)
      step<kNoEnd>(softmax, shrink, t < last - 1, job, t);
    if constexpr (F::kLeft)
      for (; t >= first; --t) step<kFirstKey>(softmax, shrink, t < last - 1, job, t);
    for (int i = 0; i < skipped + left_out; ++i) wait_for_turn(), pass_turn();  // everybody has as many turns
    for (int i = 0; i < left_out; ++i) {
      m.k_full[k_stage.index].wait(k_stage.parity);
      free(m.k_free, k_stage);
    }
    if constexpr (!F::kOutInQueries) free(m.q_free, q_stage);
    settle_out(t < last - 1, shrink);
    start_out(t < last - 1);
    auto after = v_stage;  // what is left out is free before the values in use are: the next tile's keys come behind it
    after.next();
    for (int i = 0; i < left_out; ++i) {
      m.v_full[after.index].wait(after.parity);
      free(m.v_free, after);
    }
    const Job next = source.receive();
    if constexpr (!F::kOutInQueries) start_tile(next);
    wgmma_wait<F::kOutInQueries ? 0 : 1>();
    wgmma_fence_operand(out);
    free(m.v_free, v_stage);
    for (int i = 0; i < left_out; ++i) v_stage.next();
    return next;
  }

  // 64 rows of this warpgroup.
  __device__ __forceinline__ uint16_t (&out_panel(int panel))[64][64] {
    return reinterpret_cast<uint16_t(&)[64][64]>(m.q[F::kOutStage][panel][64 * number]);
  }

  // The outputs are on their way, and the queries' buffer is free for the next ones.
  __device__ __forceinline__ void free_queries() {
    if (threadIdx.x % kWarpgroup == 0) bulk_wait_read();
    barrier_wait(kOutBarrier + number, kWarpgroup);
    free(m.q_free, q_stage);
  }

  __device__ __forceinline__ void store(const Job& job, RowSoftmax& softmax) {
    const int row = 64 * number, left = job.rows - row;
    const float* sink = a.sinks == nullptr || job.band.keys < 0 ? nullptr : a.sinks + job.head;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float lse;
      softmax.finish(r, sink, factor[r], lse);
      const int at = warp * 16 + lane / 4 + 8 * r;
      if (a.lse != nullptr && lane % 4 == 0 && at < left)
        a.lse[(int64_t{job.batch} * a.heads + job.head) * a.sequences.query_rows + job.row + row + at] = lse;
    }
    // The tile before this one may still be on its way out of the buffer.
    if (threadIdx.x % kWarpgroup == 0) bulk_wait_read();
    barrier_wait(kOutBarrier + number, kWarpgroup);
    const int in_tile = warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < F::kValueDim / 16; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float f = factor[i % 2];  // 0: a row that sees nothing, and `out` may hold anything
        w[i] = f == 0.f ? 0 : pack_pair<T>(out[8 * j + 2 * i] * f, out[8 * j + 2 * i + 1] * f);
      }
      const int piece = (j % 4 * 2 + lane / 16) ^ (in_tile % 8);
      stmatrix_x4(&out_panel(j / 4)[in_tile][piece * 8], w);
    }
    fence_proxy_async_shared();
    barrier_wait(kOutBarrier + number, kWarpgroup);
    if (a.sequences.packed() && left < 64) return store_rows(job, left);
    if (threadIdx.x % kWarpgroup == 0 && left > 0) {
#pragma unroll
      for (int panel = 0; panel < F::kValuePanels; ++panel)
        tma_store(a.out, out_panel(panel), 64 * panel, job.row + row, job.head, job.batch);
      bulk_commit();
    }
  }

  // The last rows of a packed sequence. The buffer is free at the next barrier of the warpgroup.
  __device__ __forceinline__ void store_rows(const Job& job, int rows) {
    constexpr int kPieces = F::kValueDim / 8;
    const int piece = threadIdx.x % kPieces, first = threadIdx.x % kWarpgroup / kPieces;
    for (int r = first; r < rows && 8 * piece < a.value_dim; r += kWarpgroup / kPieces)
      reinterpret_cast<uint4*>(
          a.plain_out)[((int64_t{job.row} + 64 * number + r) * a.heads + job.head) * (a.value_dim / 8) + piece] =
          *reinterpret_cast<const uint4*>(&out_panel(piece / 8)[r][(piece % 8 ^ r % 8) * 8]);
  }

  __device__ __forceinline__ void run() {
    if (number == F::kConsumers - 1) pass_turn();  // the first turn is the first consumer's
    JobSource<F> source{a, m};
    Job job = source.receive();
    wgmma_fence_operand(out);  // zeros are in place before products run
    start_tile(job);
    while (job.rows > 0) {
      RowSoftmax softmax(a.score_scale);
      const Job next = finish_tile(job, source, softmax);
      store(job, softmax);
      if constexpr (F::kOutInQueries) free_queries(), start_tile(next);
      job = next;
    }
    wgmma_wait<0>();
    if (threadIdx.x % kWarpgroup == 0) bulk_wait_read();
  }
};

}  // namespace attention::gpu
