// What a block of the sm_90a backward of wide heads has. Two blocks, a pair, have 128 keys of one key head, each 64 of
// them: dk and dv of more keys are not in one's registers, and with fewer together too much would come from memory and
// go there for the products. sm90_backward_pair.cuh documents how the two cooperate.
#pragma once

#include "kernels/attention/cuda/sm90_backward_block.cuh"
#include "kernels/common/gpu/ptx/cluster.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"

namespace attention::gpu {

// kDim, kValueDim: 256, 256 or 192, 128; the rest of a smaller head is zeros, which TMA fills in.
template <class Number, int kDim_, int kValueDim_>
struct PairTraits {
  using T = Number;
  using Rows = PairTraits;
  static constexpr int kDim = kDim_, kValueDim = kValueDim_, kPanels = kDim / 64, kValuePanels = kValueDim / 64;
  static constexpr int kBlocks = 2, kRows = 64, kOwnKeys = 64, kKeys = kBlocks * kOwnKeys, kConsumers = 2;
  static constexpr int kStages = 2, kDxStages = 2;        // of queries and of dx: step i has number i % 2
  static constexpr int kDoutStages = kDim > 192 ? 1 : 2;  // as there is memory for
  static constexpr int kAdded = kBlocks * kConsumers;     // each adds to columns of dq of its own
  static constexpr int kQueryBox = kRows / kBlocks;       // rows that one block loads, for both
  static constexpr int kKeyBox = kOwnKeys;
  static constexpr bool kKeysInRegisters = kDim <= 192;  // and values: as far as they fit beside the sums
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

  // A consumer's columns of dq: a quarter, in steps of 32.
  static constexpr int dq_columns(int consumer) { return kDim == 192 && consumer == 1 ? 32 : 64; }
  __device__ static int first_dq_column(int rank, int consumer) {
    if (kDim == 192) return consumer == 0 ? 64 * rank : 128 + 32 * rank;
    return 128 * rank + 64 * consumer;
  }
};

struct PairJob {
  Sequence sequence;
  int key_tile, key_head;
  QueryTiles queries;          // that see some of the pair's keys, for each of the group's heads
  int first_whole, end_whole;  // of these: that see all of the block's own keys

  __device__ __forceinline__ int steps() const { return queries.end - queries.first; }
};

template <class B>
struct PairMemory {
  uint16_t k[B::kPanels][B::kOwnKeys][64];
  uint16_t v[B::kValuePanels][B::kOwnKeys][64];
  uint16_t other_k[B::kConsumers][B::kOwnKeys]
                  [64];  // the other block's keys, of the panel of a consumer's columns of dq
  uint16_t q[B::kStages][B::kPanels][B::kRows][64];
  uint16_t dout[B::kDoutStages][B::kValuePanels][B::kRows][64];
  uint16_t dx[B::kDxStages][B::kBlocks][B::kRows][64];  // [query, key]: of own keys, then of the other block's
  uint4 factors[B::kRows / 16][kWarpgroup];             // from the first consumer to the second, thread by thread
  float lse[B::kStages][B::kRows], delta[B::kDoutStages][B::kRows];
  Mbarrier q_full[B::kStages], q_free[B::kStages], dout_full[B::kDoutStages], dout_free[B::kDoutStages];
  Mbarrier k_full, v_full, dx_full[B::kDxStages], dx_free[B::kDxStages];
  Mbarrier may_add[B::kConsumers], has_added[B::kConsumers];
  int index;
  PairJob job;  // here and not in registers, of which the consumers have none to spare

  __device__ void init() {                                  // one thread
    constexpr int kWarps = 4 * B::kConsumers * B::kBlocks;  // a warp says for itself, and to both, what it is done with
    for (int i = 0; i < B::kStages; ++i) q_full[i].init(1), q_free[i].init(kWarps);
    for (int i = 0; i < B::kDoutStages; ++i) dout_full[i].init(1), dout_free[i].init(kWarps);
    for (int i = 0; i < B::kDxStages; ++i) dx_full[i].init(1), dx_free[i].init(kWarps);
    for (int i = 0; i < B::kConsumers; ++i) may_add[i].init(1), has_added[i].init(4);
    k_full.init(1), v_full.init(1);
    fence_mbarrier_init();
  }
};

// All threads of both blocks; a barrier of the block follows. As find_job() of sm90_backward_block.cuh.
template <class B>
__device__ __forceinline__ void find_pair_job(const BackwardArguments& a, PairMemory<B>& m) {
  const int rank = int(cluster_ctarank());
  if (a.counter != nullptr && rank == 0 && threadIdx.x == 0) m.index = atomicAdd(a.counter, 1);
  cluster_sync();  // also: barriers of both are initialised
  if (threadIdx.x >= 32) return;
  Tile tile;
  Sequence s;
  const int index = a.counter != nullptr ? ld_shared_cluster(0, m.index) : int(blockIdx.x) / B::kBlocks;
  const bool there = find_keys<B>(a, index, tile, s);
  if (threadIdx.x != 0) return;
  m.job = {};
  if (!there) return;
  const int key = tile.row_tile * B::kKeys, own = key + B::kOwnKeys * rank;
  const auto tiles_of_keys = [&](int first, int end) {
    return query_tiles<true>(s.band, first, end, s.query_rows, B::kRows);
  };
  const QueryTiles whole = tiles_of_keys(own, own + B::kOwnKeys);
  m.job = {s,
           tile.row_tile,
           tile.head % a.key_heads,
           tiles_of_keys(key, key + B::kKeys),
           whole.first_whole,
           whole.end_whole};
}

}  // namespace attention::gpu
