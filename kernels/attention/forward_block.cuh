// What a block of the sm_90a forward has: its arguments, its shared memory, and the order in which it gets its tiles.
// forward_loader.cuh and forward_worker.cuh are the two jobs in it; forward_hopper.cuh starts them.
#pragma once

#include "kernels/attention/tiles.h"
#include "kernels/common/gpu/tma.cuh"
#include "kernels/common/gpu/warpgroup.cuh"

namespace attention::gpu {

using namespace kernels;
using namespace kernels::gpu;

// Everything that is fixed when a kernel is compiled. kDim: a multiple of 64; the rest of a smaller head is zeros,
// which the copy engine fills in. kLeft: rows have a left end (window_left).
template <class Number, int kDim_, int kKeys_, int kWorkers_, bool kLeft_, bool kSoftcap_>
struct ForwardTraits {
  using T = Number;
  static constexpr int kDim = kDim_, kKeys = kKeys_, kWorkers = kWorkers_, kRows = 64 * kWorkers;
  static constexpr bool kLeft = kLeft_, kSoftcap = kSoftcap_;
  static constexpr int kPanels = kDim / 64;
  // Two: the next tile's queries come while this one is computed. With more keys a tile there is no memory for it.
  static constexpr int kQueryStages = kKeys > 128 ? 1 : 2;
  static constexpr int kStages = kDim == 64 ? 4 : 2;  // of keys and of values: as many as there is memory for
  // Where the end of a row's keys moves by more than a key tile within a tile of rows, warpgroups have their own ends.
  static constexpr bool kOwnEnds = kRows > kKeys;
  static constexpr int kThreads = kWarpgroup * (1 + kWorkers);
  // All of a multiprocessor's 64 K registers, most of them for the workers.
  static constexpr int kLoaderRegisters = kWorkers == 2 ? 24 : 32, kWorkerRegisters = kWorkers == 2 ? 240 : 160;
};

struct ForwardArguments {
  CUtensorMap q, k, v, out;  // [batch, head, row, dim] by dimensions 3 to 0
  float* lse;
  const float* sinks;
  int* counter;  // of tiles that were asked for, or null: each block has one
  TileOrder order;
  Band band;
  int query_rows, heads, group;  // group: query heads that share a key head
  float score_scale;             // of scores, in exponents of two; with softcap of tanh's
  float cap_scale;               // softcap only: of scores in tanh
};

template <class F>
struct ForwardMemory {
  uint16_t q[F::kQueryStages][F::kPanels][F::kRows][64];
  uint16_t k[F::kStages][F::kPanels][F::kKeys][64];
  uint16_t v[F::kStages][F::kPanels][F::kKeys][64];
  uint16_t out[F::kWorkers][F::kPanels][64][64];
  Barrier q_full[F::kQueryStages], q_free[F::kQueryStages];
  Barrier k_full[F::kStages], k_free[F::kStages], v_full[F::kStages], v_free[F::kStages];
  Barrier tile_full, tile_free;
  int next_tile;

  __device__ void init() {                   // one thread
    constexpr int kWarps = 4 * F::kWorkers;  // a warp says for itself that it is done with a buffer
    for (int i = 0; i < F::kQueryStages; ++i) q_full[i].init(1), q_free[i].init(kWarps);
    for (int i = 0; i < F::kStages; ++i) {
      k_full[i].init(1), k_free[i].init(kWarps);
      v_full[i].init(1), v_free[i].init(kWarps);
    }
    tile_full.init(1), tile_free.init(kWarps);
    publish_barriers();
  }
};

// A tile as its block sees it.
struct Job {
  int row, head, batch;
  KeyTiles keys;
};

// One tile after the other, as blocks become free: the loader asks a counter ahead of time and passes the answer on.
template <class F>
struct JobSource {
  const ForwardArguments& a;
  ForwardMemory<F>& memory;
  int index = blockIdx.x;
  uint32_t parity = 0;

  __device__ __forceinline__ bool more() const { return index < a.order.tiles; }
  __device__ __forceinline__ Job job() const {
    if (!more()) return {};  // without keys
    const Tile tile = tile_at(a.order, index);
    const int batch = tile.head / a.heads, row = tile.row_tile * F::kRows;
    return {row, tile.head - batch * a.heads, batch,
            key_tiles<F::kLeft>(a.band, row, min(row + F::kRows, a.query_rows), F::kKeys)};
  }

  // The loader's thread: before a tile, and after it.
  __device__ __forceinline__ int ask() const {
    return a.counter == nullptr ? a.order.tiles : int(gridDim.x) + atomicAdd(a.counter, 1);
  }
  __device__ __forceinline__ void pass_on(int asked) {
    memory.tile_free.wait(parity ^ 1);
    parity ^= 1;
    index = memory.next_tile = asked;
    memory.tile_full.arrive();
  }
  // All threads of the workers, once the loader has nothing more to load for the tile before.
  __device__ __forceinline__ void receive() {
    memory.tile_full.wait(parity);
    parity ^= 1;
    index = memory.next_tile;
    __syncwarp();
    if (threadIdx.x % 32 == 0) memory.tile_free.arrive();
  }
};

}  // namespace attention::gpu
