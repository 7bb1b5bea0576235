// Products of few rows an expert, as a decode step has them: weights are read once, straight from memory into the
// registers of mma, 16 bytes a thread, and are the left operand; up to 16 rows are the right one. The order of the
// numbers along a sum is free as long as both operands have the same one: a thread's eight neighbours are two steps of
// mma, and nothing goes through shared memory but the sums of a block's warps, each of which takes every fourth
// stretch.
#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/mma.cuh"
#include "kernels/moe/activations.cuh"
#include "kernels/moe/moe_cuda.h"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using kernels::divide_up;
using kernels::Divider;

using namespace moe::gpu;

constexpr int kWarps = 8, kOuts = 32, kAtOnce = 16;  // outputs of a block; rows
constexpr int kStretch = 32, kAhead = 3;             // numbers a warp multiplies at once; stretches on their way

// What a block's outputs are: one after the other, and with an activation of gates and values half of them each.
struct Arguments {
  const void *rows, *w, *bias;
  void *y, *a;  // a: the activation, or null; then y may be null
  const int32_t *order, *offsets, *hits;
  Divider token_of;
  int64_t stride;
  int in, out, inner, blocks_an_expert;
  Act act;
  bool halves, gate;  // of outputs, where there is an activation
  bool after_product;
  Limits limits;
};

__device__ __forceinline__ uint4 load_piece(const void* from, bool inside) {
  return inside ? __ldcs(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
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

template <class T, bool kHits>  // kHits: blocks are of the experts that are hit
__global__ void __launch_bounds__(32 * kWarps, 2) multiply_few(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // few_take refuses older ones
  __shared__ float parts[kWarps][kOuts][kAtOnce + 1];
  const int number = int(blockIdx.x) / a.blocks_an_expert;
  const int block = int(blockIdx.x) - number * a.blocks_an_expert;
  // The output that is number n of the block's, or a.out.
  const auto output = [&](int n) {
    if (!a.halves) return min(block * kOuts + n, a.out);
    const int col = block * (kOuts / 2) + n % (kOuts / 2);
    return col >= a.inner ? a.out : n < kOuts / 2 ? col : a.inner + col;
  };
  // After a product only its results are waited for, and what it has read itself is read before: weights are on their
  // way while its last blocks run. It lets this launch begin when all its blocks have waited for those before it.
  bool waited = !kHits || !a.after_product;
  if (waited) wait_for_launch_before();
  if (kHits) next_launch_may_begin();
  const int expert = kHits ? a.hits[number] : number;
  if (expert < 0) return;
  const int begin = a.offsets[expert], end = a.offsets[expert + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, piece = lane % 4 * 8;
  const T* weights[4];
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    const int out = output(row + 8 * o);
    weights[o] = out == a.out ? nullptr : static_cast<const T*>(a.w) + (int64_t{expert} * a.out + out) * a.in;
  }
  for (int first = begin; first < end; first += kAtOnce) {
    const T* from[2];
    bool there[2];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int slot = first + row + 8 * g;
      there[g] = slot < end;
      const int64_t at = !there[g] ? 0 : a.order == nullptr ? slot : int64_t{a.token_of(a.order[slot])};
      from[g] = static_cast<const T*>(a.rows) + at * a.stride;
    }
    const bool both = first + 8 < end;
    float sums[2][2][4] = {};  // of 16 outputs each, by 8 rows
    for (int k0 = warp * kStretch; k0 < a.in; k0 += kWarps * kStretch * kAhead) {
      uint4 w[kAhead][4], x[kAhead][2];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {  // first what does not wait for the rows' places
        const int k = k0 + s * kWarps * kStretch + piece;
#pragma unroll
        for (int o = 0; o < 4; ++o) w[s][o] = load_piece(weights[o] + k, k < a.in && weights[o] != nullptr);
      }
      if (kHits && !waited) {
        wait_for_launch_before();
        waited = true;
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int k = k0 + s * kWarps * kStretch + piece;
        x[s][0] = load_again(from[0] + k, k < a.in && there[0]);
        x[s][1] = load_again(from[1] + k, k < a.in && there[1]);
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s)
#pragma unroll
        for (int o = 0; o < 4; o += 2)
#pragma unroll
          for (int g = 0; g < 2; ++g) {
            if (g == 1 && !both) continue;
            multiply_16x8<T>(sums[o / 2][g], {w[s][o].x, w[s][o + 1].x, w[s][o].y, w[s][o + 1].y}, x[s][g].x,
                             x[s][g].y);
            multiply_16x8<T>(sums[o / 2][g], {w[s][o].z, w[s][o + 1].z, w[s][o].w, w[s][o + 1].w}, x[s][g].z,
                             x[s][g].w);
          }
    }
    __syncthreads();  // the sums of the rows before are read
#pragma unroll
    for (int o = 0; o < 2; ++o)
#pragma unroll
      for (int g = 0; g < 2; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[warp][16 * o + row + i / 2 * 8][8 * g + lane % 4 * 2 + i % 2] = sums[o][g][i];
    __syncthreads();
    const int out = output(lane);
    for (int r = warp; r < kAtOnce && first + r < end; r += kWarps) {
      float sum = a.bias == nullptr || out == a.out
                      ? 0.f
                      : to_float(static_cast<const T*>(a.bias)[int64_t{expert} * a.out + out]);
#pragma unroll
      for (int part = 0; part < kWarps; ++part) sum += parts[part][lane][r];
      const T h = from_float<T>(sum);
      if (a.y != nullptr && out < a.out) static_cast<T*>(a.y)[int64_t{first + r} * a.out + out] = h;
      if (a.a != nullptr) store_activation<T>(a, block, first + r, to_float(h));
    }
  }
#endif
}

}  // namespace

bool few_take(const Product& a) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(a.rows.data) | reinterpret_cast<uintptr_t>(a.w) |
                         uintptr_t(a.rows.stride * 2) | uintptr_t(a.rows.cols * 2);
  return a.p.tokens <= kFewTokens && !a.by_inputs && size_of(a.p.dtype) == 2 && bits % kernels::kVectorBytes == 0 &&
         attribute<cudaDevAttrComputeCapabilityMajor>() >= 8;
}

bool want_hits(const Problem& p) {
  // From there on a step is long beside what is saved, and both products at a time disturb each other
  // (docs/notes/moe.md).
  constexpr int64_t kMostBytes = 640'000'000;
  constexpr int64_t kMost = 1024;  // assignments and experts that one block sorts
  const int64_t bytes = most_hits(p) * (p.columns() + p.inner) * p.hidden * 2;
  return p.tokens <= kFewTokens && p.assignments() <= kMost && p.experts <= kMost && bytes <= kMostBytes &&
         !p.transposed && size_of(p.dtype) == 2;
}

void multiply_few_rows(const Product& a, void* activated, Stream stream) {
  if (a.p.assignments() == 0) return;
  const bool gate = activated != nullptr && has_gate(a.p.act);
  const int64_t blocks = gate ? divide_up(a.p.inner, kOuts / 2) : divide_up(a.out, kOuts);
  const Arguments arguments{.rows = a.rows.data,
                            .w = a.w,
                            .bias = a.bias,
                            .y = a.y,
                            .a = activated,
                            .order = a.rows.tokens ? a.index.order : nullptr,
                            .offsets = a.index.offsets,
                            .hits = a.hits,
                            .token_of = Divider(a.p.top_k),
                            .stride = a.rows.stride,
                            .in = int(a.rows.cols),
                            .out = int(a.out),
                            .inner = int(a.p.inner),
                            .blocks_an_expert = int(blocks),
                            .act = a.p.act,
                            .halves = gate && !a.p.interleaved,
                            .gate = gate,
                            .after_product = a.after_product,
                            .limits = {a.p.alpha, a.p.limit}};
  const int64_t experts = a.hits == nullptr ? a.p.experts : most_hits(a.p);
  const auto run = [&](auto* kernel) { launch_after(kernel, experts * blocks, 32 * kWarps, stream, arguments); };
  const auto with_type = [&]<class T>() {
    a.hits == nullptr ? run(&multiply_few<T, false>) : run(&multiply_few<T, true>);
  };
  a.p.dtype == DType::kBFloat16 ? with_type.template operator()<kernels::BFloat16>()
                                : with_type.template operator()<kernels::Half>();
}

}  // namespace moe::cuda
