// Attention forward for sm_90a. A block stays on its multiprocessor and computes tile after tile of kRows query rows of
// one head. One warp of the first warpgroup starts all copies (TMA); the others, 64 rows each, multiply (wgmma) and
// exponentiate. Two things run beside each other:
//   within a warpgroup, the product q k of the next key tile and p v of this one run while the softmax is computed;
//   between warpgroups, a token goes round: who holds it starts its products, so that one's products run in the time of
//   the other's exponentials.
// Key tiles go from the last to the first: those that need a mask come first, and a row's maximum is mostly final early.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/common/gpu/tma.cuh"
#include "kernels/common/gpu/warpgroup.cuh"
#include "kernels/common/gpu/wgmma.cuh"

namespace attention::gpu {

// Everything that is fixed when a kernel is compiled. kDim: of q and k, a multiple of 64 (the rest of a smaller one is
// zeros, which the copy engine fills in); kLeft: rows have a left end (window_left).
template <class Number, int kDim_, int kKeys_, int kWorkers_, bool kLeft_, bool kSoftcap_>
struct ForwardTraits {
  using T = Number;
  static constexpr int kDim = kDim_, kKeys = kKeys_, kWorkers = kWorkers_, kRows = 64 * kWorkers;
  static constexpr bool kLeft = kLeft_, kSoftcap = kSoftcap_;
  static constexpr int kThreads = kWarpgroup * (1 + kWorkers);
  static constexpr int kPanels = kDim / 64;
  static constexpr int kStages = 2;  // of keys and of values
  // All of a multiprocessor's 64 K registers, most of them for the workers.
  static constexpr int kLoaderRegisters = kWorkers == 2 ? 24 : 32, kWorkerRegisters = kWorkers == 2 ? 240 : 160;
};

template <class F>
struct ForwardMemory {
  uint16_t q[F::kPanels][F::kRows][64];
  uint16_t k[F::kStages][F::kPanels][F::kKeys][64];
  uint16_t v[F::kStages][F::kPanels][F::kKeys][64];
  uint16_t out[F::kWorkers][F::kPanels][64][64];
  Barrier q_full, q_free, k_full[F::kStages], k_free[F::kStages], v_full[F::kStages], v_free[F::kStages];
  Barrier tile_full, tile_free;
  int next_tile;
};

struct ForwardArguments {
  CUtensorMap q, k, v, out;  // [batch, head, row, dim] by dimensions 3 to 0
  float* lse;
  const float* sinks;
  int* counter;
  TileOrder order;
  Band band;
  int query_rows, heads, group;  // group: query heads that share a key head
  float score_scale;             // of scores, in exponents of two; with softcap of tanh's
  float cap_scale;               // softcap only: of scores in tanh
};

// Tiles one after the other: as they are free (a counter, which the loader asks ahead of time and passes on through
// shared memory), or by a fixed division.
template <class F>
struct Tiles {
  const ForwardArguments& a;
  ForwardMemory<F>& memory;
  int index = blockIdx.x, round = 0;

  __device__ __forceinline__ bool more() const { return index < a.order.tiles; }
  __device__ __forceinline__ int ask() {  // the loader's thread
    return a.counter == nullptr ? 0 : int(gridDim.x) + atomicAdd(a.counter, 1);
  }
  __device__ __forceinline__ void pass_on(int asked) {
    ++round;
    if (a.counter == nullptr) {
      index = tile_of_round(round, blockIdx.x, gridDim.x);
      return;
    }
    memory.tile_free.wait(round & 1);
    index = memory.next_tile = asked;
    memory.tile_full.arrive();
  }
  __device__ __forceinline__ void receive() {  // all of the workers' threads
    ++round;
    if (a.counter == nullptr) {
      index = tile_of_round(round, blockIdx.x, gridDim.x);
      return;
    }
    memory.tile_full.wait((round + 1) & 1);
    index = memory.next_tile;
    __syncwarp();
    if (threadIdx.x % 32 == 0) memory.tile_free.arrive();
  }
};

template <class F>
__device__ __forceinline__ KeyTiles key_tiles_of(const ForwardArguments& a, int row) {
  return key_tiles<F::kLeft>(a.band, row, min(row + F::kRows, a.query_rows), F::kKeys);
}

// One thread.
template <class F>
__device__ __forceinline__ void load_tiles(const ForwardArguments& a, ForwardMemory<F>& m) {
  constexpr uint32_t kQBytes = sizeof(m.q), kKeyBytes = sizeof(m.k[0]);
  Ring<F::kStages> k_stage, v_stage;
  uint32_t q_parity = 0;
  const auto load = [&](auto& stage, Barrier* full, Barrier* free, auto& buffers, const CUtensorMap& map, int row,
                        int head, int batch) {
    free[stage.index].wait(stage.parity ^ 1);
    full[stage.index].arrive_expecting(kKeyBytes);
#pragma unroll
    for (int p = 0; p < F::kPanels; ++p)
      load_box(buffers[stage.index][p], map, full[stage.index], 64 * p, row, head, batch);
    stage.next();
  };
  Tiles<F> tiles{a, m};
  while (tiles.more()) {
    const int asked = tiles.ask();
    const Tile tile = tile_at(a.order, tiles.index);
    const int batch = tile.head / a.heads, head = tile.head - batch * a.heads, key_head = head / a.group;
    const int row = tile.row_tile * F::kRows;
    const KeyTiles keys = key_tiles_of<F>(a, row);
    if (keys.first < keys.end) {
      m.q_free.wait(q_parity ^ 1);
      q_parity ^= 1;
      m.q_full.arrive_expecting(kQBytes);
#pragma unroll
      for (int p = 0; p < F::kPanels; ++p) load_box(m.q[p], a.q, m.q_full, 64 * p, row, head, batch);
      // Keys one tile ahead of values: so they are wanted.
      for (int t = keys.end - 1; t >= keys.first - 1; --t) {
        if (t >= keys.first) load(k_stage, m.k_full, m.k_free, m.k, a.k, t * F::kKeys, key_head, batch);
        if (t < keys.end - 1) load(v_stage, m.v_full, m.v_free, m.v, a.v, (t + 1) * F::kKeys, key_head, batch);
      }
    }
    tiles.pass_on(asked);
  }
}

// A warpgroup: 64 rows of each tile.
template <class F>
struct Worker {
  using T = typename F::T;
  static constexpr int kFirstTurn = 1, kOutBarrier = 1 + F::kWorkers;  // numbers of barriers

  const ForwardArguments& a;
  ForwardMemory<F>& m;
  const int number = threadIdx.x / kWarpgroup - 1, lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  Ring<F::kStages> k_stage, v_stage;
  uint32_t q_parity = 0;
  float out[F::kDim / 2];
  float scores[F::kKeys / 2];
  uint32_t p[F::kKeys / 16][4];  // exponentials, rounded: A of p v

  __device__ __forceinline__ void free(Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  }
  __device__ __forceinline__ void wait_for_turn() { barrier_wait(kFirstTurn + number, 2 * kWarpgroup); }
  __device__ __forceinline__ void pass_turn() {
    barrier_arrive(kFirstTurn + (number + 1 == F::kWorkers ? 0 : number + 1), 2 * kWarpgroup);
  }

  __device__ __forceinline__ void start_scores() {
    m.k_full[k_stage.index].wait(k_stage.parity);
    const Operand q = operand_by_rows(m.q[0][64 * number]), k = operand_by_rows(m.k[k_stage.index]);
    begin_products();
#pragma unroll
    for (int i = 0; i < F::kDim / 16; ++i)
      multiply<T, F::kKeys>(scores, moved(q, i / 4 * sizeof(m.q[0]) + i % 4 * 32),
                            moved(k, i / 4 * sizeof(m.k[0][0]) + i % 4 * 32), i > 0);
    commit_products();
  }
  __device__ __forceinline__ void start_out() {
    m.v_full[v_stage.index].wait(v_stage.parity);
    const Operand v = operand_by_columns(m.v[v_stage.index], sizeof(m.v[0][0]));
    begin_products();
#pragma unroll
    for (int i = 0; i < F::kKeys / 16; ++i) multiply<T, F::kDim>(out, p[i], moved(v, i * 16 * 128), true);
    commit_products();
  }
  template <bool kMasked>
  __device__ __forceinline__ void bound_scores(int row, int key) {
    if constexpr (F::kSoftcap) {
#pragma unroll
      for (float& s : scores) s = tanh_fast(s * a.cap_scale);
    }
    if constexpr (kMasked)
      mask_scores<F::kLeft>(scores, a.band, row + warp * 16 + lane / 4, key + lane % 4 * 2);
  }
  __device__ __forceinline__ void round_exponentials() {
#pragma unroll
    for (int i = 0; i < F::kKeys / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i][j] = pack_pair<T>(scores[8 * i + 2 * j], scores[8 * i + 2 * j + 1]);
    }
  }

  // The values' product that runs since the last step is done, and the exponentials computed meanwhile become its next
  // operand. At the beginning of a step, not at the end of the last one: within a step the compiler would put the
  // exponentials behind this wait, and nothing would run beside them.
  __device__ __forceinline__ void settle_out(bool started, const float (&shrink)[2]) {
    wait_products<0>();
    settle(out);
    if (started) {
      free(m.v_free[v_stage.index]);
      v_stage.next();
    }
#pragma unroll
    for (int i = 0; i < F::kDim / 2; ++i) out[i] *= shrink[i / 2 % 2];
    round_exponentials();
  }

  // One more key tile: its scores, while the one before is multiplied with its values.
  template <bool kMasked>
  __device__ __forceinline__ void step(RowSoftmax& softmax, float (&shrink)[2], bool started, int row, int tile) {
    settle_out(started, shrink);
    wait_for_turn();
    start_scores();
    start_out();
    pass_turn();
    wait_products<1>();
    settle(scores);
    free(m.k_free[k_stage.index]);
    k_stage.next();
    bound_scores<kMasked>(row, tile * F::kKeys);
    softmax.add(scores, shrink);
  }

  __device__ __forceinline__ void tile(int row, const KeyTiles& keys, RowSoftmax& softmax) {
#pragma unroll
    for (float& o : out) o = 0.f;
    if (keys.first == keys.end) return;
    m.q_full.wait(q_parity);
    q_parity ^= 1;
    const int last = keys.end - 1;
    start_scores();
    wait_products<0>();
    settle(scores);
    free(m.k_free[k_stage.index]);
    k_stage.next();
    bound_scores<true>(row, last * F::kKeys);
    float shrink[2];
    softmax.add(scores, shrink);
    int t = last - 1;
    for (; t >= keys.end_whole; --t) step<true>(softmax, shrink, t < last - 1, row, t);
    for (; t >= keys.first_whole; --t) step<false>(softmax, shrink, t < last - 1, row, t);
    if constexpr (F::kLeft)
      for (; t >= keys.first; --t) step<true>(softmax, shrink, t < last - 1, row, t);
    free(m.q_free);
    settle_out(t < last - 1, shrink);
    start_out();
    wait_products<0>();
    settle(out);
    free(m.v_free[v_stage.index]);
    v_stage.next();
  }

  __device__ __forceinline__ void store(int row, int head, int batch, RowSoftmax& softmax) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float lse;
      softmax.finish(r, a.sinks == nullptr ? nullptr : a.sinks + head, factor[r], lse);
      const int at = row + warp * 16 + lane / 4 + 8 * r;
      if (a.lse != nullptr && lane % 4 == 0 && at < a.query_rows)
        a.lse[(int64_t{batch} * a.heads + head) * a.query_rows + at] = lse;
    }
    // The tile before this one may still be on its way out of the buffer.
    if (threadIdx.x % kWarpgroup == 0) wait_until_stores_have_read();
    barrier_wait(kOutBarrier + number, kWarpgroup);
    const int in_tile = warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < F::kDim / 16; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = pack_pair<T>(out[8 * j + 2 * i] * factor[i % 2], out[8 * j + 2 * i + 1] * factor[i % 2]);
      const int piece = (j % 4 * 2 + lane / 16) ^ (in_tile % 8);
      const uint32_t to = shared_address(&m.out[number][j / 4][in_tile][piece * 8]);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                   "r"(w[2]), "r"(w[3])
                   : "memory");
    }
    publish_shared_writes();
    barrier_wait(kOutBarrier + number, kWarpgroup);
    if (threadIdx.x % kWarpgroup == 0 && row < a.query_rows) {
#pragma unroll
      for (int panel = 0; panel < F::kPanels; ++panel)
        store_box(a.out, m.out[number][panel], 64 * panel, row, head, batch);
      commit_stores();
    }
  }

  __device__ __forceinline__ void run() {
    if (number == F::kWorkers - 1) pass_turn();  // the first turn is the first worker's
    Tiles<F> tiles{a, m};
    while (tiles.more()) {
      const Tile at = tile_at(a.order, tiles.index);
      const int batch = at.head / a.heads, head = at.head - batch * a.heads;
      const int tile_row = at.row_tile * F::kRows, row = tile_row + 64 * number;
      RowSoftmax softmax(a.score_scale);
      tile(row, key_tiles_of<F>(a, tile_row), softmax);
      store(row, head, batch, softmax);
      tiles.receive();
    }
    if (threadIdx.x % kWarpgroup == 0) wait_until_stores_have_read();
  }
};

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1) forward_kernel(const __grid_constant__ ForwardArguments a) {
  extern __shared__ uint8_t raw[];
  // Exchanged panels begin at multiples of 1024 bytes; the launch has asked for as many more.
  auto& m = *reinterpret_cast<ForwardMemory<F>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    prefetch(a.q), prefetch(a.k), prefetch(a.v), prefetch(a.out);
    constexpr int kWarps = 4 * F::kWorkers;
    m.q_full.init(1), m.q_free.init(kWarps), m.tile_full.init(1), m.tile_free.init(kWarps);
    for (int i = 0; i < F::kStages; ++i) {
      m.k_full[i].init(1), m.k_free[i].init(kWarps);
      m.v_full[i].init(1), m.v_free[i].init(kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<F::kLoaderRegisters>();
    if (threadIdx.x == 0) load_tiles<F>(a, m);
  } else {
    take_registers<F::kWorkerRegisters>();
    Worker<F>{a, m}.run();
  }
}

}  // namespace attention::gpu
