// What a block of the sm_90a backward has: its arguments, its shared memory and its job, a tile of keys of one key
// head. sm90_backward_producer.cuh and sm90_backward_consumer.cuh are the two roles in it; sm90_backward.cuh starts
// them.
#pragma once

#include "kernels/attention/cuda/sequence_order.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"

namespace attention::gpu {

__device__ __forceinline__ void add_in_memory(float* to, float4 v) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// Everything that is fixed when a kernel is compiled. kDim: 64 or 128; the rest of a smaller head is zeros, which
// TMA fills in. Query tiles are so high that a tile of them has 8192 elements.
template <class Number, int kDim_, bool kLeft_, bool kSoftcap_>
struct BackwardTraits {
  using T = Number;
  using Rows =
      BackwardTraits<Number, kDim_, false, false>;  // of the kernels over rows, which do not depend on the rest
  static constexpr int kDim = kDim_, kValueDim = kDim;
  static constexpr bool kLeft = kLeft_, kSoftcap = kSoftcap_;
  static constexpr int kRows = 8192 / kDim, kKeys = 128, kConsumers = 2, kPanels = kDim / 64;
  static constexpr int kBlocks = 1;
  static constexpr int kAdded = kConsumers;  // each adds to a part of dq of its own
  static constexpr int kQueryBox = kRows, kKeyBox = kKeys;
  static constexpr int kStages = 2;  // of queries and dout: step i has number i % 2
  static constexpr int kDxStages = 3;
  // dx is computed from p as it is rounded: scores of 128 rows do not stay in registers beside dp. (Where they must,
  // with a softcap, the compiler gives up running products beside anything.)
  static constexpr bool kRoundedP = kRows == 128 && !kSoftcap;
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
};

// The work space is divided by heads, then by slots of query tiles (tiles.h), then as said here.
struct BackwardArguments {
  CUtensorMap q, dout, k, v;  // [batch, head, row, dim] by dimensions 3 to 0
  void *dk, *dv;
  const float* statistics;  // [2][kRows]: lse in exponents of two, infinity where a row sees nothing; delta
  float* dq;                // [kRows * kDim]: warpgroups' sums, as their threads hold them (backward_finish_kernel)
  int* added;               // [kAdded]: key tiles that have added to a consumer's dq; null: they add in any order
  int* counter;             // of blocks that have begun, where there are places
  Sequences sequences;
  TileOrder order;       // of key tiles
  SequenceOrder packed;  // likewise
  int section_rows;      // packed: query rows of so many are in L2 together, 0: of one key head alone
  int query_slots, key_heads, group, dim, value_dim;
  float scale;
  float score_scale;  // of scores, in exponents of two; with softcap of tanh's
  float cap_scale;    // softcap only: of scores in tanh
};

struct BackwardJob {
  Sequence sequence;
  int key_tile, key_head;
  QueryTiles queries;  // for each of the group's heads

  __device__ __forceinline__ int steps() const { return queries.end - queries.first; }
};

template <class B>
struct BackwardMemory {
  uint16_t k[B::kPanels][B::kKeys][64];
  uint16_t v[B::kPanels][B::kKeys][64];
  uint16_t q[B::kStages][B::kPanels][B::kRows][64];
  uint16_t dout[B::kStages][B::kPanels][B::kRows][64];
  uint16_t dx[B::kDxStages][B::kConsumers][B::kRows][64];  // [query, key] of a consumer's keys
  float dq[B::kConsumers][4096];
  float statistics[B::kStages][2][B::kRows];
  Mbarrier q_full[B::kStages], q_free[B::kStages], dout_full[B::kStages], dout_free[B::kStages];
  Mbarrier k_full, v_full, dx_full[B::kDxStages];
  Mbarrier dq_full[B::kConsumers], dq_free[B::kConsumers];
  int index;
  BackwardJob job;  // here and not in registers, of which the consumers have none to spare

  __device__ void init() {                     // one thread
    constexpr int kWarps = 4 * B::kConsumers;  // a warp says for itself that it is done with a buffer
    for (int i = 0; i < B::kStages; ++i) {
      q_full[i].init(1), q_free[i].init(kWarps);
      dout_full[i].init(1), dout_free[i].init(kWarps);
    }
    k_full.init(1), v_full.init(1);
    for (Mbarrier& b : dx_full) b.init(kWarps);
    for (int i = 0; i < B::kConsumers; ++i) dq_full[i].init(4), dq_free[i].init(1);
    fence_mbarrier_init();
  }
};

// Tile of keys `index`, and its sequence; packed sequences may have fewer of them, and then it is not there. All lanes
// of a warp.
template <class B>
__device__ __forceinline__ bool find_keys(const BackwardArguments& a, int index, Tile& tile, Sequence& s) {
  if (!a.sequences.packed()) {
    tile = tile_at(a.order, index);
    s = a.sequences.at(tile.head / a.key_heads, B::kRows);
    return true;
  }
  if (index >= a.packed.tiles() * a.key_heads) return false;
  const auto found = [&](int number) { return s = a.sequences.at(number, B::kRows), s.key_rows; };
  const auto section = [&] { return a.section_rows / max(1, s.query_rows); };
  tile = a.packed.find(index, a.key_heads, B::kKeys, a.order.last_rows_first, found, section);
  return true;
}

// All threads of the block; a barrier follows. Blocks that add in an order begin in the order of a counter: who is
// waited for has begun.
template <class B>
__device__ __forceinline__ void find_job(const BackwardArguments& a, BackwardMemory<B>& m) {
  int index = blockIdx.x;
  if (a.counter != nullptr) {
    if (threadIdx.x == 0) m.index = atomicAdd(a.counter, 1);
    __syncthreads();
    index = m.index;
  }
  if (threadIdx.x >= 32) return;
  Tile tile;
  Sequence s;
  const bool there = find_keys<B>(a, index, tile, s);
  if (threadIdx.x != 0) return;
  m.job = {};
  if (!there) return;
  const int key = tile.row_tile * B::kKeys;
  m.job = {s, tile.row_tile, tile.head % a.key_heads,
           query_tiles<B::kLeft>(s.band, key, key + B::kKeys, s.query_rows, B::kRows)};
}

}  // namespace attention::gpu
