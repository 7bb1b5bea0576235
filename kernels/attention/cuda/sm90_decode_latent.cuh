// Decode of latent attention (MLA) with many heads, for sm_90a: values are the keys' first elements, and all heads read
// the same keys, so that products decide, not memory. A block has 64 rows (heads, for each query row) and a part of the
// keys, two tiles of 64 at a time in shared memory. One warpgroup loads; two multiply: each the scores of one of the
// two tiles, whose weights it gives to the other, and half of the outputs' columns of both. So one computes
// exponentials while the other multiplies. A tile comes and goes in three pieces, as early as each is free: what is
// left and right of the outputs' columns, and the elements that are no values. sm80_decode_wide.cuh does the same for
// few rows, and on every GPU.
#pragma once

#include "kernels/attention/cuda/sm80_decode_part.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"
#include "kernels/common/gpu/ptx/wgmma.cuh"

namespace attention::gpu {

template <class Number>
struct LatentTraits {
  using T = Number;
  static constexpr int kRows = 64, kKeys = 64, kConsumers = 2;
  static constexpr int kPanels = 9, kColumns = 256;  // of keys, 64 elements each; of outputs, a consumer's
  // Of queries the last panel is in registers: shared memory is full.
  static constexpr int kQueryPanels = 8;
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers), kProducerRegisters = 24, kConsumerRegisters = 240;
};

enum LatentPiece { kLeftPiece, kRightPiece, kLastPiece, kLatentPieces };  // panels 0 to 3, 4 to 7, 8

template <class L>
struct LatentMemory {
  uint16_t k[2][L::kPanels][L::kKeys][64];
  uint16_t q[L::kQueryPanels][L::kRows][64];
  uint4 weights[2][L::kKeys / 16][kWarpgroup];  // of each tile, as its consumer's threads hold them
  float max[2][L::kRows];
  Mbarrier full[2][kLatentPieces], free[2][kLatentPieces];

  __device__ void init() {  // one thread
    for (int t = 0; t < 2; ++t)
      for (int i = 0; i < kLatentPieces; ++i) full[t][i].init(L::kKeys / kDecodeKeys), free[t][i].init(4);
    fence_mbarrier_init();
  }
};

struct LatentKeys {
  CUtensorMap map;  // [cache, key head, row, number], boxes of a chunk's rows
  bool usable;
};

// Tiles of the part's chunks in pairs, one chunk of each tile for each warp; behind the last chunk zeros. All threads
// of the first warpgroup. Chunks of which all keys are in the cache come by TMA.
template <class L>
struct LatentProducer {
  using T = typename L::T;
  static constexpr int kChunks = L::kKeys / kDecodeKeys, kLanes = 8;  // threads a row, each 16 bytes of every 128

  const DecodeArguments& a;
  const LatentKeys& keys;
  const DecodePart& part;
  LatentMemory<L>& m;
  const Span chunks;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  int first, pages[2];  // of the pair's first tile; of this warp's chunks
  uint32_t parity = 1;

  __device__ __forceinline__ int find_page(int chunk) const { return chunk < chunks.end ? part.page_of(a, chunk) : 0; }

  template <int kTile, LatentPiece kPiece>
  __device__ __forceinline__ void load() {
    constexpr int kFirst = kPiece == kLeftPiece    ? 0
                           : kPiece == kRightPiece ? 4
                                                   : 8,
                  kCount = kPiece == kLastPiece ? 1 : 4;
    const int chunk = first + kTile * kChunks + warp, page = pages[kTile];
    const int row = part.row_in_page(a, chunk);
    Mbarrier& full = m.full[kTile][kPiece];
    m.free[kTile][kPiece].wait(parity);
    if (keys.usable && chunk < chunks.end && part.is_whole(chunk)) {
      if (lane == 0) {
        full.arrive_expect_tx(kCount * kDecodeKeys * 128);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          tma_load(m.k[kTile][kFirst + i][warp * kDecodeKeys], keys.map, full, 64 * (kFirst + i), row, part.key_head,
                   page);
      }
      return;
    }
    const int piece = lane % kLanes, limit = min(part.total, chunks.end * kDecodeKeys);
#pragma unroll 1
    for (int r = lane / kLanes; r < kDecodeKeys; r += 32 / kLanes) {
      const int key = chunk * kDecodeKeys + r;
      const T* from = key < part.length ? static_cast<const T*>(a.k.data) + page * a.k.batch +
                                              part.key_head * a.k.head + (row + r) * a.k.row
                                        : static_cast<const T*>(a.k.fresh) + part.batch * a.k.fresh_batch +
                                              part.key_head * a.k.fresh_head + (key - part.length) * a.k.fresh_row;
      const int elements = key < limit ? a.k.dim - 8 * piece - 64 * kFirst : 0;  // from the thread's first ones on
      if (elements <= 0) from = static_cast<const T*>(a.k.data);
      uint16_t* place = &m.k[kTile][kFirst][warp * kDecodeKeys + r][(piece ^ r % 8) * 8];
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        cp_async(place + i * (L::kKeys * 64), from + 8 * piece + 64 * (kFirst + i), 64 * i >= elements);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) full.arrive();
  }

  // The next pair's chunks into L2.
  __device__ __forceinline__ void fetch(int tile, int page) const {
    const int chunk = first + (2 + tile) * kChunks + warp;
    if (lane != 0 || !keys.usable || chunk >= chunks.end || !part.is_whole(chunk)) return;
    const int row = part.row_in_page(a, chunk);
#pragma unroll
    for (int i = 0; i < L::kPanels; ++i)
      asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&keys.map), "r"(64 * i),
                   "r"(row), "r"(part.key_head), "r"(page)
                   : "memory");
  }

  // In the order in which consumers are done with them.
  __device__ __forceinline__ void run() {
    first = chunks.first;
    pages[0] = find_page(first + warp), pages[1] = find_page(first + kChunks + warp);
    for (; first < chunks.end; first += 2 * kChunks) {
      const int next[2] = {find_page(first + 2 * kChunks + warp), find_page(first + 3 * kChunks + warp)};
      load<0, kLastPiece>();
      load<0, kLeftPiece>();
      load<1, kLastPiece>();
      load<1, kRightPiece>();
      load<0, kRightPiece>();
      load<1, kLeftPiece>();
      pages[0] = next[0], pages[1] = next[1], parity ^= 1;
    }
  }
};

// kNumber: its tile of a pair, and its half of the outputs' columns.
template <class L, int kNumber>
struct LatentConsumer {
  using T = typename L::T;
  static constexpr int kOther = 1 - kNumber, kSteps = L::kKeys / 16;
  static constexpr LatentPiece kOwnPiece = kNumber == 0 ? kLeftPiece : kRightPiece,
                               kOtherPiece = kNumber == 0 ? kRightPiece : kLeftPiece;
  // Of the same warps of both consumers: the first tile's weights are there, the second one's; of both consumers.
  static constexpr int kFirstBarrier = 1, kSecondBarrier = 5, kBothBarrier = 9;

  const DecodeArguments& a;
  const DecodePart& part;
  LatentMemory<L>& m;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = __shfl_sync(kAllLanes, thread / 32, 0);
  uint32_t q[4][4];  // the last panel
  float scores[L::kKeys / 2];
  float out[L::kColumns / 2] = {};
  uint32_t p[kSteps][4], more[kSteps][4];  // own weights, the other's

  // Four threads a row, each 16 bytes of every 64. Rows and elements behind the last ones are zeros. The last panel
  // comes by way of the weights' place.
  __device__ __forceinline__ void load_queries() {
    const int at = int(threadIdx.x) - kWarpgroup, to = at / 4, piece = at % 4, row = part.row_tile * L::kRows + to;
    const bool inside = row < a.group * a.query_rows;
    const int elements = inside ? a.k.dim - 8 * piece : 0;  // from the thread's first ones on
    const T* from = static_cast<const T*>(a.q);
    if (inside) {
      const int query_row = a.by_group(row);
      from += part.batch * a.q_batch + query_row * a.q_row +
              (part.key_head * a.group + row - query_row * a.group) * a.q_head + 8 * piece;
    }
    using Panel = uint16_t[L::kRows][64];
    auto& last = *reinterpret_cast<Panel*>(m.weights);
#pragma unroll
    for (int i = 0; i < 2 * L::kPanels; ++i) {
      auto& panel = i / 2 < L::kQueryPanels ? m.q[i / 2] : last;
      const bool zeros = 32 * i >= elements;
      cp_async(&panel[to][(piece + i % 2 * 4 ^ to % 8) * 8], zeros ? static_cast<const T*>(a.q) : from + 32 * i, zeros);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async_shared();
    barrier_wait(kBothBarrier, L::kConsumers * kWarpgroup);
    const int mine = 16 * warp + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) ldmatrix_x4(q[i], &last[mine][(2 * i + lane / 16 ^ mine % 8) * 8]);
    barrier_wait(kBothBarrier, L::kConsumers * kWarpgroup);
  }

  __device__ __forceinline__ void wait_for(LatentPiece piece, uint32_t parity) { m.full[kNumber][piece].wait(parity); }
  __device__ __forceinline__ void free(int tile, LatentPiece piece) {
    __syncwarp();
    if (lane == 0) m.free[tile][piece].arrive();
  }

  // Of the own tile, piece by piece as they come.
  __device__ __forceinline__ void start_scores(uint32_t parity) {
    const Operand k = operand_by_rows(m.k[kNumber][0]), queries = operand_by_rows(m.q[0]);
    constexpr int kPanelBytes = L::kKeys * 64 * 2;
    const auto add_half = [&](int first) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int at = (first + i / 4) * kPanelBytes + i % 4 * 32;
        wgmma<T, L::kKeys>(scores, moved(queries, at), moved(k, at), true);
      }
    };
    wait_for(kLastPiece, parity);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<T, L::kKeys, false>(scores, q[i], moved(k, 8 * kPanelBytes + i * 32), i > 0);
    wait_for(kOwnPiece, parity);
    add_half(4 * kNumber);
    wait_for(kOtherPiece, parity);
    add_half(4 * kOther);
    wgmma_commit();
  }
  // Weights times the own columns of a tile's values.
  __device__ __forceinline__ void start_outputs(const uint32_t (&weights)[kSteps][4], int tile) {
    const Operand values = operand_by_columns(m.k[tile][4 * kNumber], sizeof(m.k[0][0]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) wgmma<T, L::kColumns>(out, weights[i], moved(values, i * 16 * 128), true);
    wgmma_commit();
  }

  __device__ __forceinline__ void give_weights(const RowSoftmax& softmax) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) m.weights[kNumber][i][thread] = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
    if (lane % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) m.max[kNumber][16 * warp + lane / 4 + 8 * r] = softmax.state[r].max;
    }
  }
  __device__ __forceinline__ void take_weights() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint4 w = m.weights[kOther][i][thread];
      more[i][0] = w.x, more[i][1] = w.y, more[i][2] = w.z, more[i][3] = w.w;
    }
  }
  // Goes on from the other's largest scores: what own sums are to be multiplied by.
  __device__ __forceinline__ void take_max(RowSoftmax& softmax, float (&shrink)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) shrink[r] = softmax.move_to(r, m.max[kOther][16 * warp + lane / 4 + 8 * r]);
  }
  __device__ __forceinline__ void multiply_out(const float (&shrink)[2]) {
    if (!__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) return;
#pragma unroll
    for (int i = 0; i < L::kColumns / 2; ++i) out[i] *= shrink[i / 2 % 2];
  }
  __device__ __forceinline__ void multiply_more(const float (&shrink)[2]) {
    if (!__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) return;
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) {
      const float2 w = unpack_pair<T>(more[i / 4][i % 4]);
      more[i / 4][i % 4] = pack_pair<T>(w.x * shrink[i % 2], w.y * shrink[i % 2]);
    }
  }

  // Scores of the own tile become weights; `shrink` is what was summed before to be multiplied by.
  __device__ __forceinline__ void add_scores(RowSoftmax& softmax, const DecodeRows<L::kRows>& rows, int key,
                                             float (&shrink)[2]) {
    if (!__all_sync(kAllLanes, rows.sees_all(key, key + L::kKeys)) || a.cap_scale > 0 || a.slopes != nullptr)
      rows.finish(scores, a, key + lane % 4 * 2);
    softmax.add(scores, shrink);
#pragma unroll
    for (int i = 0; i < L::kKeys / 4; ++i) p[i / 4][i % 4] = pack_pair<T>(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ __forceinline__ void run(RowSoftmax& softmax, Span chunks) {
    constexpr int kChunks = 2 * L::kKeys / kDecodeKeys;
    if (chunks.end <= chunks.first) return;
    load_queries();
    DecodeRows<L::kRows> rows(a, part);
    for (Span& seen : rows.seen) seen.end = min(seen.end, chunks.end * kDecodeKeys);
    wgmma_fence_operand(out);
    uint32_t parity = 0;
    for (int chunk = chunks.first; chunk < chunks.end; chunk += kChunks, parity ^= 1) {
      const int key = chunk * kDecodeKeys + kNumber * L::kKeys;
      float shrink[2], others[2];
      start_scores(parity);
      wgmma_wait<0>();
      wgmma_fence_operand(scores), wgmma_fence_operand(out);
      free(kNumber, kLastPiece);
      if constexpr (kNumber == 0) {
        add_scores(softmax, rows, key, shrink);
        give_weights(softmax);
        barrier_arrive(kFirstBarrier + warp, 64);
        multiply_out(shrink);
        start_outputs(p, 0);
        wgmma_wait<0>();
        wgmma_fence_operand(out);
        free(0, kLeftPiece);
        barrier_wait(kSecondBarrier + warp, 64);
        take_weights();
        take_max(softmax, others);
        multiply_out(others);
        m.full[1][kLeftPiece].wait(parity);  // the other has waited for it; what TMA wrote is seen by who waits
        start_outputs(more, 1);
        wgmma_wait<0>();
        wgmma_fence_operand(out);
        free(1, kLeftPiece);
      } else {
        barrier_wait(kFirstBarrier + warp, 64);
        take_max(softmax, others);
        take_weights();  // before the barrier behind which the other writes its next ones
        add_scores(softmax, rows, key, shrink);
        give_weights(softmax);
        barrier_arrive(kSecondBarrier + warp, 64);
        multiply_more(shrink);
#pragma unroll
        for (int r = 0; r < 2; ++r) others[r] *= shrink[r];
        multiply_out(others);
        m.full[0][kRightPiece].wait(parity);  // as above
        start_outputs(p, 1);
        start_outputs(more, 0);
        wgmma_wait<1>();
        free(1, kRightPiece);
        wgmma_wait<0>();
        wgmma_fence_operand(out);
        free(0, kRightPiece);
      }
    }
    add_sums(softmax);
  }

  // Each has summed its own tiles' weights. By way of the weights' place: the last ones have been read.
  __device__ __forceinline__ void add_sums(RowSoftmax& softmax) {
    barrier_wait(kBothBarrier, L::kConsumers * kWarpgroup);
    auto* sums = reinterpret_cast<float2(*)[kWarpgroup]>(m.weights);
    sums[kNumber][thread] = make_float2(softmax.state[0].sum, softmax.state[1].sum);
    barrier_wait(kBothBarrier, L::kConsumers * kWarpgroup);
    const float2 x = sums[0][thread], y = sums[1][thread];
    softmax.state[0].sum = x.x + y.x, softmax.state[1].sum = x.y + y.y;
  }

  // Both have the sums of all weights, and each its columns of the outputs.
  __device__ __forceinline__ void store(const RowSoftmax& softmax) const {
    store_columns<T, L::kColumns>(a, part, softmax, out, part.row_tile * L::kRows + 16 * warp, kNumber, lane);
  }
};

template <class L, int kNumber>
__device__ __forceinline__ void work_on_latent(const DecodeArguments& a, const DecodePart& part, LatentMemory<L>& m,
                                               Span chunks) {
  RowSoftmax softmax(a.score_scale);
  LatentConsumer<L, kNumber> consumer{a, part, m};
  consumer.run(softmax, chunks);
  consumer.store(softmax);
}

template <class L>
__global__ void __launch_bounds__(L::kThreads, 1)
    decode_latent_kernel(const __grid_constant__ DecodeArguments a, const __grid_constant__ LatentKeys keys) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  // Panels begin at multiples of 1024 bytes (wgmma.cuh).
  extern __shared__ __align__(1024) uint8_t raw_latent[];
  if (shared_address(raw_latent) % 1024 != 0) __trap();
  auto& m = *reinterpret_cast<LatentMemory<L>*>(raw_latent);
  if (threadIdx.x == 0) prefetch_tensormap(keys.map), m.init();
  DecodePart part(a);
  part.begin(a);
  if (part.total > 0 && a.k.fresh != nullptr && part.row_tile == 0 && part.split == 0)
    append<typename L::T>(a, part, a.k);
  const Span chunks = part.chunks<L::kRows>(a);
  __syncthreads();
  const int group = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0);
  if (group == 0) {
    setmaxnreg_dec<L::kProducerRegisters>();
    LatentProducer<L>{a, keys, part, m, chunks}.run();
  } else if (group == 1) {
    setmaxnreg_inc<L::kConsumerRegisters>();
    work_on_latent<L, 0>(a, part, m, chunks);
  } else {
    setmaxnreg_inc<L::kConsumerRegisters>();
    work_on_latent<L, 1>(a, part, m, chunks);
  }
#endif
}

}  // namespace attention::gpu
