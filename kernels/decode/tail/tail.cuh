// What follows attention in a layer, in one launch: a block on each multiprocessor, two barriers of all of them.
#pragma once

#include "kernels/decode/tail/barrier.cuh"
#include "kernels/decode/tail/rows.cuh"

namespace decode::cuda {

constexpr int kTailThreads = kFewThreads + 32;  // and the warp that asks for weights

#ifdef DECODE_STAMPS
#define STAMP(i, who)                                                  \
  if (t.stamps && threadIdx.x == who) {                                \
    unsigned long long now_;                                           \
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_)::"memory"); \
    t.stamps[blockIdx.x * 32 + i] = now_;                              \
  }
#else
#define STAMP(i, who)
#endif

struct TailMemory {  // what is of a fixed size
  Tail t;            // the arguments, where they are read without missing a cache
  Barrier full[kMostPieces], empty[kMostPieces], norm;
  float squares[kFewWarps];
};
static_assert(sizeof(TailMemory) <= kFixedBytes);

// The workers' part of it. x, norm: in shared memory.
template <class T, int kRows>
__device__ __forceinline__ void work(TailMemory& memory, const WeightRing& ring, float* sums, T* x, const T* norm) {
  constexpr int kKeeper = kFewThreads - 32;  // the thread that meets other blocks: of a warp with little else to do
  const Tail& t = memory.t;
  GridBarrier barrier;
  Slot slot;
  // The first product's residual is older than the launch before this one.
  Tiles tiles = tiles_of(t.products[0]);
  Output<T, kRows> output;
  output.find(t.products[0], t.rows, tiles.begin, tiles.end);
  wait_for_launch_before();
  next_launch_may_begin();
  STAMP(1, 0)
  if (threadIdx.x == kKeeper) barrier.begin();
#pragma unroll 1
  for (int product = 0;; ++product) {
    const Product& p = t.products[product];
    if (p.normed)
      put_normed<T>(t, p, x, norm, memory.norm, memory.squares);
    else
      put_rows<T>(t, p, x);
    STAMP(product * 4 + 2, 0)
    multiply<T, kRows>(p, t, x, ring, slot, sums, tiles, output);
    STAMP(product * 4 + 3, 0)
    if (product == kProducts - 1) break;
    sync_workers();
    if (threadIdx.x == kKeeper) barrier.arrive();
    tiles = tiles_of(t.products[product + 1]);
    output.find(t.products[product + 1], t.rows, tiles.begin, tiles.end);
    if (threadIdx.x == kKeeper) barrier.wait();
    STAMP(product * 4 + 4, kKeeper)
    sync_workers();
  }
}

// Two blocks' registers: of a multiprocessor's other half are the launches before and after.
template <class T, int kRows>
__global__ void __launch_bounds__(kTailThreads, 2) tail_kernel(const __grid_constant__ Tail given) {
  extern __shared__ __align__(128) uint8_t raw[];
  __shared__ TailMemory memory;
  for (int i = threadIdx.x; i < int(sizeof(Tail) / 4); i += kTailThreads)
    reinterpret_cast<uint32_t*>(&memory.t)[i] = reinterpret_cast<const uint32_t*>(&given)[i];
  if (threadIdx.x == 0) {
    for (int i = 0; i < given.pieces; ++i) memory.full[i].init(1), memory.empty[i].init(kFewWarps);
    memory.norm.init(1);
    publish_barriers();
  }
  __syncthreads();
  const Tail& t = memory.t;
  auto* const sums = reinterpret_cast<float*>(raw);
  T* const x = reinterpret_cast<T*>(raw + kSumsBytes);
  T* const norm = reinterpret_cast<T*>(raw + kSumsBytes + t.x_bytes);
  const WeightRing ring{raw + kSumsBytes + t.x_bytes + t.hidden * sizeof(T), memory.full, memory.empty, t.pieces};
  STAMP(0, 0)
  if (threadIdx.x < kFewThreads) {
    work<T, kRows>(memory, ring, sums, x, norm);
    return;
  }
  // Attention, the launch before this one, writes no weights.
  if (threadIdx.x == kFewThreads) {
    memory.norm.arrive_expecting(uint32_t(t.hidden * sizeof(T)));
    load_bytes(norm, t.norm, uint32_t(t.hidden * sizeof(T)), memory.norm);
  }
  __syncwarp();
  stream_weights<T>(t, ring);
}

}  // namespace decode::cuda
