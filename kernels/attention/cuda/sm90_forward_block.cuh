// What a block of the sm_90a forward has: its arguments, its shared memory, and how its tiles come to it.
// sm90_forward_producer.cuh and sm90_forward_consumer.cuh are the two jobs in it; sm90_forward.cuh starts them.
#pragma once

#include "kernels/attention/cuda/sequence_order.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"

namespace attention::gpu {

// Everything that is fixed when a kernel is compiled. kDim and, of values, kValueDim: multiples of 64; the rest of a
// smaller head is zeros, which TMA fills in. kLeft: rows have a left end (window_left).
template <class Number, int kDim_, int kValueDim_, int kKeys_, int kConsumers_, bool kLeft_, bool kSoftcap_>
struct ForwardTraits {
  using T = Number;
  static constexpr int kDim = kDim_, kValueDim = kValueDim_, kKeys = kKeys_, kConsumers = kConsumers_,
                       kRows = 64 * kConsumers;
  static constexpr bool kLeft = kLeft_, kSoftcap = kSoftcap_;
  static constexpr int kPanels = kDim / 64, kValuePanels = kValueDim / 64;
  // Wide heads leave no memory for outputs: these go out by way of the tile's queries, and then the next ones come in.
  static constexpr bool kOutInQueries = kDim > 128;
  // Two: the next tile's queries come while this one is computed. With more keys a tile there is no memory for it.
  static constexpr int kQueryStages = kKeys > 128 || kOutInQueries ? 1 : 2,
                       kOutStage = kOutInQueries ? 0 : kQueryStages;
  static constexpr int kStages = kDim == 64 ? 4 : 2;  // of keys and of values: as many as there is memory for
  // Where the end of a row's keys moves by more than a key tile within a tile of rows, warpgroups have their own ends.
  // Needs more than 2 stages: a consumer that is one tile ahead would otherwise hold every buffer.
  static constexpr bool kOwnEnds = (kRows > kKeys) && (kStages > 2);
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers);
  // All of a multiprocessor's 64 K registers, most of them for the consumers.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
};

struct ForwardArguments {
  CUtensorMap q, k, v, out;  // [batch, head, row, dim] by dimensions 3 to 0
  float* lse;
  const float* sinks;
  int* counter;     // of tiles that were asked for, or null: each block has one
  TileOrder order;  // not where sequences are packed
  Sequences sequences;
  SequenceOrder packed;
  int section_rows;             // packed: keys of so many rows are in L2 together
  int heads, group, value_dim;  // group: query heads that share a key head
  void* plain_out;              // out, for tiles that TMA would not cut where their sequence ends
  float score_scale;            // of scores, in exponents of two; with softcap of tanh's
  float cap_scale;              // softcap only: of scores in tanh
};

// A tile as its block sees it.
struct Job {
  int row, rows;  // of tensors; those of the sequence from there on: 0 after the last tile
  int head, batch, key_row;
  KeyTiles keys;
  Band band;  // of rows counted from the tile's first
};

template <class F>
struct ForwardMemory {
  uint16_t q[F::kOutInQueries ? 1 : F::kQueryStages + 1][F::kPanels][F::kRows][64];  // number kOutStage: outputs
  uint16_t k[F::kStages][F::kPanels][F::kKeys][64];
  uint16_t v[F::kStages][F::kValuePanels][F::kKeys][64];
  Mbarrier q_full[F::kQueryStages], q_free[F::kQueryStages];
  Mbarrier k_full[F::kStages], k_free[F::kStages], v_full[F::kStages], v_free[F::kStages];
  Mbarrier job_full, job_free;
  Job job;

  __device__ void init() {                     // one thread
    constexpr int kWarps = 4 * F::kConsumers;  // a warp says for itself that it is done with a buffer
    for (int i = 0; i < F::kQueryStages; ++i) q_full[i].init(1), q_free[i].init(kWarps);
    for (int i = 0; i < F::kStages; ++i) {
      k_full[i].init(1), k_free[i].init(kWarps);
      v_full[i].init(1), v_free[i].init(kWarps);
    }
    job_full.init(1), job_free.init(kWarps);
    fence_mbarrier_init();
  }
};

// One tile after the other, as blocks become free: the producer's warp asks a counter ahead of time, finds out where
// the tile lies, and passes it on.
template <class F>
struct JobSource {
  const ForwardArguments& a;
  ForwardMemory<F>& memory;
  int tiles = 0;  // the producer's
  uint32_t parity = 0;

  __device__ __forceinline__ void begin() { tiles = a.sequences.packed() ? a.packed.tiles() * a.heads : a.order.tiles; }
  // Of lane 0.
  __device__ __forceinline__ int claim() const {
    return a.counter == nullptr ? tiles : int(gridDim.x) + atomicAdd(a.counter, 1);
  }
  __device__ __forceinline__ Job job_at(int index) const {
    Sequence s;
    Tile tile;
    if (a.sequences.packed()) {
      const auto found = [&](int number) { return s = a.sequences.at(number, F::kRows), s.query_rows; };
      const auto section = [&] { return (F::kLeft ? 1 : max(1, a.section_rows / max(1, s.key_rows))) * a.group; };
      tile = a.packed.find(index, a.heads, F::kRows, a.order.last_rows_first, found, section);
    } else {
      tile = tile_at(a.order, index);
      s = a.sequences.at(tile.head / a.heads, F::kRows);
    }
    const int first = tile.row_tile * F::kRows, rows = s.query_rows - first;
    const Band band{s.band.before + first, s.band.after + first, s.band.keys};
    return {s.query_row + first,
            rows,
            tile.head % a.heads,
            s.batch,
            s.key_row,
            key_tiles<F::kLeft>(band, 0, min(F::kRows, rows), F::kKeys),
            band};
  }
  // The producer's warp: the tile of an answer.
  __device__ __forceinline__ Job find(int index) const {
    index = __shfl_sync(kAllLanes, index, 0);
    return index < tiles ? job_at(index) : Job{};
  }
  __device__ __forceinline__ void pass_on(const Job& job) {
    memory.job_free.wait(parity ^ 1);
    parity ^= 1;
    if (threadIdx.x != 0) return;
    memory.job = job;
    memory.job_full.arrive();
  }
  // All threads of the consumers.
  __device__ __forceinline__ Job receive() {
    memory.job_full.wait(parity);
    parity ^= 1;
    const Job job = memory.job;
    __syncwarp();
    if (threadIdx.x % 32 == 0) memory.job_free.arrive();
    return job;
  }
};

}  // namespace attention::gpu
