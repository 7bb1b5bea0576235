// A whole layer in one launch: a block on each multiprocessor, four barriers of all of them.
#pragma once

#include "kernels/common/gpu/warpgroup.cuh"
#include "kernels/decode/whole/attention.cuh"
#include "kernels/decode/whole/barrier.cuh"
#include "kernels/decode/whole/rows.cuh"

namespace decode::cuda {

// Four warpgroups multiply and attend. Of a fifth one warp asks for weights; it has four only so that their registers
// may be the others'.
constexpr int kWholeThreads = kFewThreads + kWarpgroup;
constexpr int kWorkerRegisters = 112, kStreamerRegisters = 32;

#ifdef DECODE_STAMPS
#define STAMP(i)                                                       \
  if (w.stamps && threadIdx.x == 0) {                                  \
    unsigned long long now_;                                           \
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_)::"memory"); \
    w.stamps[blockIdx.x * 32 + i] = now_;                              \
  }
#define STAMP_KEEPER(i)                                                                \
  if (w.stamps) {                                                                      \
    unsigned long long now_;                                                           \
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_)::"memory");                 \
    w.stamps[blockIdx.x * 32 + i] = now_;                                              \
    if (i == 4 || i == 18) w.stamps[blockIdx.x * 32 + (i == 4 ? 30 : 31)] = clock64(); \
  }
#else
#define STAMP(i)
#define STAMP_KEEPER(i)
#endif

struct WholeMemory {  // what is of a fixed size
  Whole w;            // the arguments: the constant cache is cold in each launch, and misses it one by one
  Barrier full[kMostPieces], empty[kMostPieces], norms;
  float squares[kFewWarps];
  unsigned turn;
};
static_assert(sizeof(WholeMemory) <= kFixedBytes);

template <class T>
__device__ __forceinline__ void stream(const Whole& w, const WeightRing& ring, Barrier& there, T* norms) {
  if (!w.early) wait_for_launch_before();
  if (threadIdx.x == kFewThreads) {
    const auto bytes = uint32_t(w.a.hidden * sizeof(T));
    there.arrive_expecting(2 * bytes);
    load_bytes(norms, w.a.input_norm, bytes, there);
    load_bytes(norms + w.a.hidden, w.a.post_norm, bytes, there);
  }
  __syncwarp();
  stream_weights<T>(w, ring);
}

// The workers' part of it. x, norms: in shared memory.
template <class T, int kRows, int kDim, int kGroup, bool kTold>
__device__ __forceinline__ void work(WholeMemory& memory, const WeightRing& ring, float* sums, T* x, const T* norms) {
  constexpr int kKeeper = kFewThreads - 32;  // the thread that meets other blocks: of a warp with little else to do
  const Whole& w = memory.w;
  auto& attention_memory = *reinterpret_cast<AttentionMemory<kDim, kGroup>*>(sums);  // and on into x
  const int rows = int(w.a.rows);
  GridBarrier barrier;
  Slot slot;
  Output<T, kRows, kTold> output;
  Tiles tiles = tiles_of(w.products[0]);
  const auto arrive = [&] {
    sync_workers();
    if (threadIdx.x == kKeeper) barrier.arrive();
  };
  const auto wait = [&](int stamp) {
    if (threadIdx.x == kKeeper) {
      barrier.wait();
      STAMP_KEEPER(stamp)
    }
    sync_workers();
  };
  wait_for_launch_before();
  next_launch_may_begin();
  STAMP(1)
  if (threadIdx.x == kKeeper) barrier.begin();
  if (kTold && threadIdx.x == kKeeper - 32) memory.turn = turns_so_far() + 1;
  const int position = int(*w.a.position);
  int shift = 0;  // 2^this runs of keys
  unsigned turn = 0;
#pragma unroll 1
  for (int product = 0;; ++product) {
    const Product& p = w.products[product];
    if (p.normed)
      put_normed<T, kTold>(w, p, product, x, norms + (product == 0 ? 0 : w.a.hidden), memory.norms, memory.squares,
                           turn);
    else if (product == 1 && shift > 0)
      put_attended<T, kDim>(w, x, 1 << shift);
    else
      put_rows<T, kTold>(w, p, product, x, turn);
    STAMP(product * 6 + 2)
    if (kTold) turn = memory.turn;
    if (product == 0) output.find(p, product, rows, tiles.begin, tiles.end, turn);
    multiply<T, kRows, kTold>(p, product, w.a, x, ring, slot, sums, tiles, output, turn);
    STAMP(product * 6 + 3)
    if (product == kProducts - 1) break;
    if (kTold)
      sync_workers();
    else
      arrive();
    if (product == 0) {
      const KeyRuns runs(w, position, Attention<T, kDim, kGroup, kTold>::kKeysAPass);
      shift = runs.shift;
      Attention<T, kDim, kGroup, kTold> attention(w, runs);
      const int items = attention.items();
      if (int(blockIdx.x) < items) attention.begin(attention_memory, blockIdx.x);
      if (kTold)
        sync_workers();
      else
        wait(4);
      for (int item = blockIdx.x; item < items; item += gridDim.x) {
        if (item != int(blockIdx.x)) {
          sync_workers();
          attention.begin(attention_memory, item);
          sync_workers();
        }
        attention.run(attention_memory, turn);
      }
      STAMP(5)
      arrive();
    }
    tiles = tiles_of(w.products[product + 1]);
    output.find(w.products[product + 1], product + 1, rows, tiles.begin, tiles.end, turn);
    if (!kTold || product == 0) wait(product * 6 + 6);
  }
  if (kTold && blockIdx.x == 0 && threadIdx.x == 0) told.turns = turn;  // all blocks have read it: there was a barrier
  STAMP(22)
}

template <class T, int kRows, int kDim, int kGroup, bool kTold>
__global__ void __launch_bounds__(kWholeThreads, 1) layer_kernel(const __grid_constant__ Whole given) {
  extern __shared__ __align__(128) uint8_t raw[];
  __shared__ WholeMemory memory;
  for (int i = threadIdx.x; i < int(sizeof(Whole) / 4); i += kWholeThreads)
    reinterpret_cast<uint32_t*>(&memory.w)[i] = reinterpret_cast<const uint32_t*>(&given)[i];
  if (threadIdx.x == 0) {
    for (int i = 0; i < given.pieces; ++i) memory.full[i].init(1), memory.empty[i].init(kFewWarps);
    memory.norms.init(1);
    publish_barriers();
  }
  __syncthreads();
  const Whole& w = memory.w;
  auto* const sums = reinterpret_cast<float*>(raw);
  T* const x = reinterpret_cast<T*>(raw + kSumsBytes);
  T* const norms = reinterpret_cast<T*>(raw + kSumsBytes + w.x_bytes);  // both norms' weights
  const WeightRing ring{raw + kSumsBytes + w.x_bytes + 2 * w.a.hidden * sizeof(T), memory.full, memory.empty, w.pieces};
  STAMP(0)
  if (threadIdx.x >= kFewThreads) {
    give_registers<kStreamerRegisters>();
    if (threadIdx.x < kFewThreads + 32) stream<T>(w, ring, memory.norms, norms);
  } else {
    take_registers<kWorkerRegisters>();
    work<T, kRows, kDim, kGroup, kTold>(memory, ring, sums, x, norms);
  }
}

}  // namespace decode::cuda
