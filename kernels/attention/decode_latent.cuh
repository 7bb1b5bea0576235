// Decode of latent attention (MLA) with many heads, for sm_90a: values are the keys' first numbers, and all heads read
// the same keys, so that products decide, not memory. A block has 64 rows (heads, for each query row) and a part of the
// keys, 64 at a time in shared memory. One warpgroup loads; two multiply: of scores each half of the numbers, of which
// they tell each other the sums, so that both hold all weights as the A operand of their half of the outputs' columns.
// decode_wide.cuh does the same for few rows, and on every GPU.
#pragma once

#include "kernels/attention/decode_part.cuh"
#include "kernels/common/gpu/tma.cuh"
#include "kernels/common/gpu/warpgroup.cuh"
#include "kernels/common/gpu/wgmma.cuh"

namespace attention::gpu {

template <class Number>
struct LatentTraits {
  using T = Number;
  static constexpr int kRows = 64, kKeys = 64, kStages = 2, kWorkers = 2;
  static constexpr int kPanels = 9, kColumns = 256;  // of keys, 64 numbers each; of outputs, a worker's
  // The workers' numbers: five panels less a half, the last of which they share. Of queries the first two panels are in
  // registers, so that shared memory has room for two tiles of keys.
  static constexpr int kQueryPanels = 5;
  static constexpr int kThreads = kWarpgroup * (1 + kWorkers), kLoaderRegisters = 24, kWorkerRegisters = 240;
};

template <class L>
struct LatentMemory {
  uint16_t k[L::kStages][L::kPanels][L::kKeys][64];
  uint16_t q[L::kQueryPanels][L::kRows][64];
  float4 scores[L::kWorkers][L::kKeys / 8][kWarpgroup];  // of a worker's numbers, as its threads hold them
  Barrier full[L::kStages], free[L::kStages];

  __device__ void init() {  // one thread
    for (int i = 0; i < L::kStages; ++i) full[i].init(L::kKeys / kDecodeKeys), free[i].init(4 * L::kWorkers);
    publish_barriers();
  }
};

struct LatentKeys {
  CUtensorMap map;  // [cache, key head, row, number], boxes of a chunk's rows
  bool usable;
};

// Chunks of the part's tiles, one of each tile for each warp; behind the last chunk zeros. All threads of the first
// warpgroup. Chunks of which all keys are in the cache come by the copy engine.
template <class L>
__device__ __forceinline__ void load_latent(const DecodeArguments& a, const LatentKeys& keys, const DecodePart& part,
                                            LatentMemory<L>& m, Span chunks) {
  using T = typename L::T;
  constexpr int kChunks = L::kKeys / kDecodeKeys, kLanes = 8;  // threads a row, each 16 bytes of every 128
  const int lane = threadIdx.x % 32, warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  const auto find_page = [&](int chunk) { return chunk < chunks.end ? part.page_of(a, chunk) : 0; };
  int page = find_page(chunks.first + warp);
  Ring<L::kStages> stage;
  for (int first = chunks.first; first < chunks.end; first += kChunks) {
    const int chunk = first + warp, next = find_page(chunk + kChunks);
    int row = chunk * kDecodeKeys;  // in its page
    if (a.block_table != nullptr) row -= int(a.chunks_of_page(chunk)) * a.page_rows;
    auto& to = m.k[stage.index];
    Barrier& full = m.full[stage.index];
    m.free[stage.index].wait(stage.parity ^ 1);
    if (keys.usable && chunk < chunks.end && (chunk + 1) * kDecodeKeys <= part.length) {
      if (lane == 0) {
        full.arrive_expecting(L::kPanels * kDecodeKeys * 128);
#pragma unroll
        for (int i = 0; i < L::kPanels; ++i)
          load_box(to[i][warp * kDecodeKeys], keys.map, full, 64 * i, row, part.key_head, page);
      }
    } else {
      const int piece = lane % kLanes, limit = min(part.total, chunks.end * kDecodeKeys);
#pragma unroll 1
      for (int r = lane / kLanes; r < kDecodeKeys; r += 32 / kLanes) {
        const int key = chunk * kDecodeKeys + r;
        const T* from = key < part.length ? static_cast<const T*>(a.k.data) + page * a.k.batch +
                                                part.key_head * a.k.head + (row + r) * a.k.row
                                          : static_cast<const T*>(a.k.fresh) + part.batch * a.k.fresh_batch +
                                                part.key_head * a.k.fresh_head + (key - part.length) * a.k.fresh_row;
        const int numbers = key < limit ? a.k.dim - 8 * piece : 0;  // from the thread's first ones on
        if (numbers <= 0) from = static_cast<const T*>(a.k.data);
        uint16_t* place = &to[0][warp * kDecodeKeys + r][(piece ^ r % 8) * 8];
#pragma unroll
        for (int i = 0; i < L::kPanels; ++i)
          start_copy(place + i * (L::kKeys * 64), from + 8 * piece + 64 * i, 64 * i >= numbers);
      }
      commit_copies();
      wait_copies<0>();
      publish_shared_writes();
      __syncwarp();
      if (lane == 0) full.arrive();
    }
    page = next;
    stage.next();
  }
}

template <class L>
struct LatentWorker {
  using T = typename L::T;
  static constexpr int kRegisterSteps = 8;
  static constexpr int kPairBarrier = 1, kQueriesBarrier = 5;  // of the same warps of both workers; of both workers

  const DecodeArguments& a;
  const DecodePart& part;
  LatentMemory<L>& m;
  const int number = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) - 1;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  uint32_t q[kRegisterSteps][4];
  float scores[L::kKeys / 2];
  float out[L::kColumns / 2] = {};
  uint32_t p[L::kKeys / 16][4];

  __device__ __forceinline__ const T* query(int row) const {
    return static_cast<const T*>(a.q) + part.batch * a.q_batch + row / a.group * a.q_row +
           (part.key_head * a.group + row % a.group) * a.q_head;
  }
  // Two numbers; zeros where there are none.
  __device__ __forceinline__ uint32_t query_pair(int row, int column) const {
    const bool inside = row < a.group * a.query_rows && column < a.k.dim;
    return inside ? *reinterpret_cast<const uint32_t*>(query(row) + column) : 0;
  }
  __device__ __forceinline__ void load_queries() {
    const int first = part.row_tile * L::kRows;
#pragma unroll
    for (int i = 0; i < 4 * kRegisterSteps; ++i)
      q[i / 4][i % 4] = query_pair(first + 16 * warp + lane / 4 + i % 2 * 8,
                                   320 * number + i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2);
    constexpr int kPieces = L::kQueryPanels * 8, kThreads = L::kWorkers * kWarpgroup;  // of a row, 16 bytes each
#pragma unroll
    for (int i = 0; i < L::kRows * kPieces / kThreads; ++i) {  // all under way at once
      const int at = i * kThreads + int(threadIdx.x) - kWarpgroup, row = at / kPieces, panel = at % kPieces / 8;
      const int piece = at % 8, column = (panel < 3 ? panel + 2 : panel + 4) * 64 + 8 * piece;
      const bool inside = first + row < a.group * a.query_rows && column < a.k.dim;
      start_copy(&m.q[panel][row][(piece ^ row % 8) * 8],
                 inside ? query(first + row) + column : static_cast<const T*>(a.q), !inside);
    }
    commit_copies();
    wait_copies<0>();
    publish_shared_writes();
    barrier_wait(kQueriesBarrier, L::kWorkers * kWarpgroup);
  }

  // Sums of this worker's numbers.
  __device__ __forceinline__ void start_scores(int stage) {
    constexpr int kPanelBytes = L::kKeys * 64 * 2;
    const Operand k = operand_by_rows(m.k[stage][5 * number]), later = operand_by_rows(m.k[stage][5 * number + 2]);
    const Operand shared = operand_by_rows(m.k[stage][4]), q_later = operand_by_rows(m.q[3 * number]);
    const Operand q_shared = operand_by_rows(m.q[2]);
    begin_products();
#pragma unroll
    for (int i = 0; i < kRegisterSteps; ++i)
      multiply<T, L::kKeys, false>(scores, q[i], moved(k, i / 4 * kPanelBytes + i % 4 * 32), i > 0);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      multiply<T, L::kKeys>(scores, moved(q_later, i / 4 * kPanelBytes + i % 4 * 32),
                            moved(later, i / 4 * kPanelBytes + i % 4 * 32), true);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      multiply<T, L::kKeys>(scores, moved(q_shared, (2 * number + i) * 32), moved(shared, (2 * number + i) * 32), true);
    commit_products();
  }
  __device__ __forceinline__ void start_outputs(int stage) {
    const Operand values = operand_by_columns(m.k[stage][4 * number], sizeof(m.k[0][0]));
    begin_products();
#pragma unroll
    for (int i = 0; i < L::kKeys / 16; ++i) multiply<T, L::kColumns>(out, p[i], moved(values, i * 16 * 128), true);
    commit_products();
  }

  // Adds the other worker's sums. Both get the same bits: there are two numbers to add.
  __device__ __forceinline__ void exchange_scores() {
#pragma unroll
    for (int i = 0; i < L::kKeys / 8; ++i)
      m.scores[number][i][thread] = make_float4(scores[4 * i], scores[4 * i + 1], scores[4 * i + 2], scores[4 * i + 3]);
    barrier_wait(kPairBarrier + warp, 64);
#pragma unroll
    for (int i = 0; i < L::kKeys / 8; ++i) {
      const float4 more = m.scores[1 - number][i][thread];
      scores[4 * i] += more.x, scores[4 * i + 1] += more.y, scores[4 * i + 2] += more.z, scores[4 * i + 3] += more.w;
    }
    barrier_wait(kPairBarrier + warp, 64);
  }

  __device__ __forceinline__ void run(RowSoftmax& softmax, Span chunks) {
    constexpr int kChunks = L::kKeys / kDecodeKeys;
    const int tiles = (max(0, chunks.end - chunks.first) + kChunks - 1) / kChunks;
    if (tiles == 0) return;
    load_queries();
    DecodeRows<L::kRows> rows(a, part);
    for (Span& seen : rows.seen) seen.end = min(seen.end, chunks.end * kDecodeKeys);
    settle(out);
    m.full[0].wait(0);
    start_scores(0);
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % L::kStages, next = (t + 1) % L::kStages;
      wait_products<0>();
      settle(scores), settle(out);
      exchange_scores();
      rows.finish(scores, a, chunks.first * kDecodeKeys + t * L::kKeys + lane % 4 * 2);
      float shrink[2];
      softmax.add(scores, shrink);
      if (__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
        for (int i = 0; i < L::kColumns / 2; ++i) out[i] *= shrink[i / 2 % 2];
      }
#pragma unroll
      for (int i = 0; i < L::kKeys / 4; ++i) p[i / 4][i % 4] = pack_pair<T>(scores[2 * i], scores[2 * i + 1]);
      start_outputs(stage);
      // Products run on only where none is conditional: behind the last tile of whatever lies there, and nobody looks.
      if (t + 1 < tiles) m.full[next].wait((t + 1) / L::kStages % 2);
      start_scores(next);
      wait_products<1>();
      __syncwarp();
      if (lane == 0) m.free[stage].arrive();
    }
    wait_products<0>();
    settle(out);
  }

  // Both have the sums of all weights, and each its columns of the outputs.
  __device__ __forceinline__ void store(const RowSoftmax& softmax) const {
    store_columns<T, L::kColumns>(a, part, softmax, out, part.row_tile * L::kRows + 16 * warp, number, lane);
  }
};

template <class L>
__global__ void __launch_bounds__(L::kThreads, 1)
    decode_latent_kernel(const __grid_constant__ DecodeArguments a, const __grid_constant__ LatentKeys keys) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  wait_for_launch_before();
  next_launch_may_begin();
  // Panels begin at multiples of 1024 bytes (wgmma.cuh).
  extern __shared__ __align__(1024) uint8_t raw_latent[];
  if (shared_address(raw_latent) % 1024 != 0) __trap();
  auto& m = *reinterpret_cast<LatentMemory<L>*>(raw_latent);
  if (threadIdx.x == 0) prefetch(keys.map), m.init();
  const DecodePart part(a);
  if (part.total > 0 && a.k.fresh != nullptr && part.row_tile == 0 && part.split == 0)
    append<typename L::T>(a, part, a.k);
  const Span chunks = part.chunks<L::kRows>(a);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<L::kLoaderRegisters>();
    load_latent<L>(a, keys, part, m, chunks);
  } else {
    take_registers<L::kWorkerRegisters>();
    RowSoftmax softmax(a.score_scale);
    LatentWorker<L> worker{a, part, m};
    worker.run(softmax, chunks);
    worker.store(softmax);
  }
#endif
}

}  // namespace attention::gpu
