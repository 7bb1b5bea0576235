// Products of few rows an expert, as a decode step has them: weights are read once and are the left operand of mma; up
// to 16 rows are the right one. The order of the elements along a sum is free as long as both operands have the same
// one: a thread's eight neighbours are two steps of mma, and what it multiplies it has copied itself. Only the sums of
// a block's warps, each of which takes every eighth stretch, go to others.
//
// What such a product takes is the time that the weights take to come from memory. A block goes from one tile of some
// expert's outputs to the next, and a thread's copies are on their way across the ends of tiles: memory has something
// to do while a tile's sums meet. Which tiles a block has is told as it goes; no result depends on it.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/common/gpu/ptx/shared_address.cuh"
#include "kernels/moe/cuda/activations.cuh"
#include "kernels/moe/cuda/moe.h"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using kernels::divide_up;
using kernels::Divider;

using namespace moe::gpu;

constexpr int kWarps = 8, kThreads = 32 * kWarps, kBlocks = 2;  // kBlocks: of a multiprocessor
constexpr int kOuts = 32, kAtOnce = 16;                         // outputs of a tile; rows
constexpr int kStretch = 32, kAhead = 4;  // elements a warp multiplies at once; stretches on their way

// What a tile's outputs are: one after the other, and with an activation of gates and values half of them each.
struct Arguments {
  const void *rows, *w, *bias;
  void *y, *a;  // a: the activation, or null; then y may be null
  const int32_t* order;
  const Hit* hits;
  int32_t* asked;  // chunks that blocks have asked for
  Divider token_of;
  int64_t stride;
  int in, out, inner, tiles_an_expert, chunk;  // chunk: tiles
  Act act;
  bool halves, gate;  // of outputs, where there is an activation
  bool after_product;
  Limits limits;

  // Of a tile, one after the other.
  __device__ __forceinline__ int columns() const { return halves ? kOuts / 2 : kOuts; }
};

struct Shared {
  uint4 weights[kAhead][4][kThreads];  // of each thread by itself
  float parts[2][kWarps][kOuts][kAtOnce + 1];
  int chunks[4];  // which ones the block has, the last few
};

// Which tile of which expert, and which 16 of its rows, of the chunks of tiles that a block has one after the other.
struct Walk {
  const Arguments& a;
  const Shared& shared;
  const int tiles;
  int turn = 0, tile, end, number, block, first;
  Hit hit;

  __device__ __forceinline__ Walk(const Arguments& arguments, const Shared& s)
      : a(arguments), shared(s), tiles(arguments.hits[0].expert * arguments.tiles_an_expert) {
    begin();
  }
  __device__ __forceinline__ bool left() const { return tile < end; }
  __device__ __forceinline__ void begin() {
    tile = shared.chunks[turn % 4] * a.chunk;
    end = min(tile + a.chunk, tiles);
    if (!left()) return;
    number = tile / a.tiles_an_expert, block = tile - number * a.tiles_an_expert;
    hit = a.hits[1 + number];
    first = hit.begin;
  }
  // Whether other rows are wanted now.
  __device__ __forceinline__ bool go_on() {
    if ((first += kAtOnce) < hit.end) return true;
    first = hit.begin;
    if (++tile == end) {
      ++turn;
      begin();
      return true;
    }
    if (++block < a.tiles_an_expert) return hit.end - hit.begin > kAtOnce;
    block = 0;
    hit = a.hits[1 + ++number];
    first = hit.begin;
    return true;
  }
};

// As cp_async, and L2 is asked for the 256 bytes that they lie in: the other warps' will be there.
__device__ __forceinline__ void start_copy_of_line(void* shared, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(zeros ? 0 : 16)
               : "memory");
}

__device__ __forceinline__ uint4 load_again(const void* from, bool inside) {
  return inside ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

// Of a row's 32 outputs, one a lane.
template <class T>
__device__ __forceinline__ void store_activation(const Arguments& a, int block, int64_t row, float h) {
  const int lane = threadIdx.x % 32, cols = a.gate ? kOuts / 2 : kOuts, col = block * cols + lane;
  const float g = !a.gate ? h : __shfl_sync(kAllLanes, h, a.halves ? lane % 16 : lane * 2 % 32);
  const float u = !a.gate ? 0.f : __shfl_sync(kAllLanes, h, a.halves ? lane % 16 + 16 : lane * 2 % 32 + 1);
  const float value = value_of(a.act, a.limits, g, u);
  if (lane < cols && col < a.inner) static_cast<T*>(a.a)[row * a.inner + col] = from_float<T>(value);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) multiply_few(const __grid_constant__ Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // few_take refuses older ones
  extern __shared__ __align__(16) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  // After a product only its results are waited for, and what it has read itself is read before: weights are on their
  // way while its last blocks run. It lets this launch begin when all its blocks have waited for those before it.
  if (!a.after_product) {
    grid_dependency_wait();
    launch_dependents();
  }
  // Multiprocessors are not equally fast: a block begins with two chunks, and asks for one more when it begins one.
  if (threadIdx.x < 2) shared.chunks[threadIdx.x] = blockIdx.x + threadIdx.x * gridDim.x;
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, own = warp * kStretch + lane % 4 * 8;
  constexpr int kStep = kWarps * kStretch;
  const int stretches = (a.in + kStep - 1) / kStep;  // of a warp

  Walk ahead(a, shared), walk = ahead;
  int ahead_k = own, to = 0, at = 0;
  const int64_t pitch = int64_t{a.in} * sizeof(T), second = (a.halves ? int64_t{a.inner} : 16) * pitch;
  const auto copy_next = [&] {
    if (ahead.left()) {
      const int col = ahead.block * a.columns() + row, limit = a.halves ? a.inner : a.out;
      const char* from = static_cast<const char*>(a.w) + (int64_t{ahead.hit.expert} * a.out + col) * pitch +
                         int64_t{ahead_k} * sizeof(T);
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        const bool zeros = ahead_k >= a.in || col + (o % 2) * 8 + (o >= 2 && !a.halves ? 16 : 0) >= limit;
        start_copy_of_line(&shared.weights[to][o][threadIdx.x],
                           zeros ? a.w : from + (o % 2) * 8 * pitch + (o / 2) * second, zeros);
      }
      if ((ahead_k += kStep) - own >= a.in) ahead_k = own, ahead.go_on();
    }
    cp_async_commit();
    if (++to == kAhead) to = 0;
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) copy_next();
  if (a.after_product) {
    grid_dependency_wait();
    launch_dependents();
  }

  const T* from[2];
  bool there[2], others = true;
  uint4 x[2];
  const auto load_x = [&](int k) {
#pragma unroll
    for (int g = 0; g < 2; ++g) x[g] = load_again(from[g] + k, k < a.in && there[g]);
  };
  int tile = 0, asked = 0;
  bool fresh = true;  // a chunk's first rows
  while (walk.left()) {
    if (fresh && threadIdx.x == 0) asked = atomicAdd(a.asked, 1);
    const bool both = walk.first + 8 < walk.hit.end;
    if (others) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int slot = walk.first + row + 8 * g;
        there[g] = slot < walk.hit.end;
        const int64_t number = !there[g] ? 0 : a.order == nullptr ? slot : int64_t{a.token_of(a.order[slot])};
        from[g] = static_cast<const T*>(a.rows) + number * a.stride;
      }
      load_x(own);
    }
    float sums[2][2][4] = {};  // of 16 outputs each, by 8 rows
#pragma unroll 1
    for (int j = 0, k = own; j < stretches; ++j) {
      const uint4 v[2] = {x[0], x[1]};
      k = j + 1 == stretches ? own : k + kStep;
      load_x(k);  // the next one's, of the next tile too
      cp_async_wait<kAhead - 1>();
      uint4 w[4];
#pragma unroll
      for (int o = 0; o < 4; ++o) w[o] = shared.weights[at][o][threadIdx.x];
#pragma unroll
      for (int o = 0; o < 4; o += 2)
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          if (g == 1 && !both) continue;
          mma_m16n8k16<T>(sums[o / 2][g], {w[o].x, w[o + 1].x, w[o].y, w[o + 1].y}, v[g].x, v[g].y);
          mma_m16n8k16<T>(sums[o / 2][g], {w[o].z, w[o + 1].z, w[o].w, w[o + 1].w}, v[g].z, v[g].w);
        }
      if (++at == kAhead) at = 0;
      copy_next();  // where the weights lay that are multiplied now
    }
    auto& parts = shared.parts[tile++ % 2];
#pragma unroll
    for (int o = 0; o < 2; ++o)
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        if (g == 1 && !both) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[warp][16 * o + row + i / 2 * 8][8 * g + lane % 4 * 2 + i % 2] = sums[o][g][i];
      }
    if (fresh && threadIdx.x == 0) shared.chunks[(walk.turn + 2) % 4] = 2 * int(gridDim.x) + asked;
    __syncthreads();  // once a tile: sums of the one after it go elsewhere
    const int out = a.halves ? walk.block * (kOuts / 2) + lane % (kOuts / 2) : walk.block * kOuts + lane;
    const int output =
        a.halves && out >= a.inner ? a.out : min(a.halves && lane >= kOuts / 2 ? a.inner + out : out, a.out);
    for (int r = warp; r < kAtOnce && walk.first + r < walk.hit.end; r += kWarps) {
      float sum = a.bias == nullptr || output == a.out
                      ? 0.f
                      : to_float(static_cast<const T*>(a.bias)[int64_t{walk.hit.expert} * a.out + output]);
#pragma unroll
      for (int part = 0; part < kWarps; ++part) sum += parts[part][lane][r];
      const T h = from_float<T>(sum);
      const int64_t slot = walk.first + r;
      if (a.y != nullptr && output < a.out) static_cast<T*>(a.y)[slot * a.out + output] = h;
      if (a.a != nullptr) store_activation<T>(a, walk.block, slot, to_float(h));
    }
    const int turn = walk.turn;
    others = walk.go_on();
    fresh = walk.turn != turn;
  }
  cp_async_wait<0>();
#endif
}

}  // namespace

bool few_take(const Product& a) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(a.rows.data) | reinterpret_cast<uintptr_t>(a.w) |
                         uintptr_t(a.rows.stride * 2) | uintptr_t(a.rows.cols * 2);
  return a.hits != nullptr && !a.by_inputs && bits % kernels::kVectorBytes == 0 &&
         attribute<cudaDevAttrComputeCapabilityMajor>() >= 8 &&
         attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= int(sizeof(Shared));
}

bool want_hits(const Problem& p) { return p.tokens <= kFewTokens && !p.transposed && size_of(p.dtype) == 2; }

void multiply_few_rows(const Product& a, void* activated, Stream stream) {
  if (a.p.assignments() == 0) return;
  const bool gate = activated != nullptr && has_gate(a.p.act);
  const int64_t tiles = gate ? divide_up(a.p.inner, kOuts / 2) : divide_up(a.out, kOuts);
  // Copies are on their way in the next chunk, and never in the one after it.
  const int64_t chunk = kAhead / divide_up(a.rows.cols, kWarps * kStretch) + 1;
  const Arguments arguments{.rows = a.rows.data,
                            .w = a.w,
                            .bias = a.bias,
                            .y = a.y,
                            .a = activated,
                            .order = a.rows.tokens ? a.index.order : nullptr,
                            .hits = a.hits,
                            .asked = a.rows.tokens ? &a.hits->begin : &a.hits->end,
                            .token_of = Divider(a.p.top_k),
                            .stride = a.rows.stride,
                            .in = int(a.rows.cols),
                            .out = int(a.out),
                            .inner = int(a.p.inner),
                            .tiles_an_expert = int(tiles),
                            .chunk = int(chunk),
                            .act = a.p.act,
                            .halves = gate && !a.p.interleaved,
                            .gate = gate,
                            .after_product = a.after_product,
                            .limits = {a.p.alpha, a.p.limit}};
  const auto with_type = [&]<class T>() {
    launch_after_with_memory<multiply_few<T>, /*kMaxShared=*/true>(
        sizeof(Shared), std::min<int64_t>(divide_up(max_hits(a.p) * tiles, chunk), kBlocks * multiprocessors()),
        kThreads, /*cluster=*/1, stream, arguments);
  };
  a.p.dtype == DType::kBFloat16 ? with_type.template operator()<kernels::BFloat16>()
                                : with_type.template operator()<kernels::Half>();
}

}  // namespace moe::cuda
