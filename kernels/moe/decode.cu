// A decode step's handful of tokens in two launches: nothing is sorted, and rows lie in the order of assignments. Each
// block finds out by itself who goes where, which is a few hundred comparisons. The first launch makes A, the second y:
// a block of it has 16 outputs and goes through all experts that are hit, so that it sums over a token's experts, too.
//
// Such a step takes as long as the weights take to come from memory (decode_ring.cuh says how they do). Both launches
// fit a multiprocessor together: the second fills its rings while the first is at work.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/moe/activations.cuh"
#include "kernels/moe/decode_ring.cuh"
#include "kernels/moe/moe_cuda.h"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using namespace moe::gpu;
using kernels::divide_up;

constexpr int kMost = 64, kMostTokens = 8;  // assignments
constexpr int kThreads = 32 * kRingWarps;

struct Arguments {
  const void *index, *x, *w_up, *b_up, *w_down, *b_down, *scores;
  const int32_t* slots;
  void *h, *a, *y;
  int64_t x_stride;
  int assignments, top_k, experts, hidden, inner;
  Act act;
  Limits limits;
  bool index64, wide_scores, interleaved, gate;
};

// Who goes where.
struct Routing {
  int32_t expert[kMost];  // of an assignment, or -1
  int32_t hit[kMost];     // the experts that are hit
  int32_t hits;

  // By the whole block, of at least kMost threads.
  __device__ __forceinline__ void find(const Arguments& a) {
    const int t = threadIdx.x;
    int own = -1;
    if (t < a.assignments) {
      const int64_t e = a.index64 ? static_cast<const int64_t*>(a.index)[t] : static_cast<const int32_t*>(a.index)[t];
      own = e >= 0 && e < a.experts ? int(e) : -1;
    }
    if (t < kMost) expert[t] = own;
    __syncthreads();
    bool first = own >= 0;
    for (int i = 0; own >= 0 && i < t; ++i) first &= expert[i] != own;
    __shared__ uint32_t firsts[kMost / 32];
    const uint32_t mask = __ballot_sync(kAllLanes, first);
    if (t < kMost && t % 32 == 0) firsts[t / 32] = mask;
    __syncthreads();
    if (t == 0) hits = __popc(firsts[0]) + __popc(firsts[1]);
    if (first) hit[(t < 32 ? 0 : __popc(firsts[0])) + __popc(mask & ((1u << t % 32) - 1))] = own;
    __syncthreads();
  }
  // Bit n: assignment n goes to the expert.
  __device__ __forceinline__ uint64_t rows_of(int of) const {
    const int lane = threadIdx.x % 32;
    const uint32_t low = __ballot_sync(kAllLanes, expert[lane] == of);
    return uint64_t{__ballot_sync(kAllLanes, expert[lane + 32] == of)} << 32 | low;
  }
};

// The number of the n-th bit, or -1.
__device__ __forceinline__ int bit_of(uint64_t bits, int n) {
  for (; n > 0; --n) bits &= bits - 1;
  return __ffsll(int64_t(bits)) - 1;
}

// A block's units of the first product: columns of the activation of an expert that is hit, 8 with a gate and else 16,
// by 8 of its rows.
struct UpWalk {
  const Arguments& a;
  const Routing& routing;
  int columns, units, number;  // of an expert; of all; this one
  int unit = 0, group = 0;     // group: of 8 rows
  uint64_t rows;

  __device__ __forceinline__ UpWalk(const Arguments& arguments, const Routing& r)
      : a(arguments),
        routing(r),
        columns((a.inner + width() - 1) / width()),
        units(r.hits * columns),
        number(blockIdx.x) {
    begin();
  }
  __device__ __forceinline__ int width() const { return a.gate ? 8 : 16; }
  __device__ __forceinline__ bool left() const { return number < units; }
  __device__ __forceinline__ int expert() const { return routing.hit[number / columns]; }
  __device__ __forceinline__ int col() const { return number % columns * width(); }
  __device__ __forceinline__ void begin() { rows = left() ? routing.rows_of(expert()) : 0; }
  __device__ __forceinline__ void next() {
    ++unit;
    if (8 * ++group < __popcll(rows)) return;
    group = 0, number += gridDim.x;
    begin();
  }
  __device__ __forceinline__ RowsAt rows_at() const {
    const int64_t first = int64_t{expert()} * (a.gate ? 2 * a.inner : a.inner);
    const int64_t low = first + (a.gate && a.interleaved ? 2 * col() : col());
    const int64_t high = low + (!a.gate ? 8 : a.interleaved ? 1 : a.inner);
    return {low * a.hidden, high * a.hidden, a.gate && a.interleaved ? 2 : 1, a.inner - col(), !a.gate};
  }
};

// h and A of one column and row of a unit, from two sums of it: gate and value, or two columns 8 apart.
template <class T>
__device__ __forceinline__ void store_up(const Arguments& a, const UpWalk& u, int col, int assignment, float low,
                                         float high) {
  const int columns = a.gate ? 2 * a.inner : a.inner;
  const T* bias = static_cast<const T*>(a.b_up) + int64_t{u.expert()} * columns;
  T* h = a.h == nullptr ? nullptr : static_cast<T*>(a.h) + int64_t{a.slots[assignment]} * columns;
  T* to = static_cast<T*>(a.a) + int64_t{assignment} * a.inner;
  const auto finish = [&](float sum, int of) {
    const T v = from_float<T>(a.b_up == nullptr ? sum : sum + to_float(bias[of]));
    if (h != nullptr) h[of] = v;
    return to_float(v);
  };
  if (a.gate) {
    if (col >= a.inner) return;
    const float g = finish(low, a.interleaved ? 2 * col : col);
    to[col] = from_float<T>(value_of(a.act, a.limits, g, finish(high, a.interleaved ? 2 * col + 1 : a.inner + col)));
  } else {
    if (col < a.inner) to[col] = from_float<T>(value_of(a.act, a.limits, finish(low, col), 0.f));
    if (col + 8 < a.inner) to[col + 8] = from_float<T>(value_of(a.act, a.limits, finish(high, col + 8), 0.f));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) decode_up(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // decode_takes refuses older ones
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ Routing routing;
  __shared__ float parts[2][kRingWarps][16][8];  // two units take turns
  wait_for_launch_before();
  next_launch_may_begin();
  routing.find(a);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  stream(
      reinterpret_cast<WarpRing<T>*>(raw)[warp], static_cast<const T*>(a.w_up), a.hidden, UpWalk(a, routing),
      [&](const UpWalk& u, int row) -> const T* {
        const int assignment = bit_of(u.rows, 8 * u.group + row);
        return assignment < 0 ? nullptr : static_cast<const T*>(a.x) + assignment / a.top_k * a.x_stride;
      },
      [] {},
      [&](const UpWalk& u, const float(&sums)[4]) {
        auto& of = parts[u.unit % 2];
#pragma unroll
        for (int i = 0; i < 4; ++i) of[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sums[i];
        __syncthreads();
        if (threadIdx.x >= 64) return;
        const int row = threadIdx.x / 8, col = threadIdx.x % 8, assignment = bit_of(u.rows, 8 * u.group + row);
        if (assignment < 0) return;
        float low = 0.f, high = 0.f;
#pragma unroll
        for (int w = 0; w < kRingWarps; ++w) low += of[w][col][row], high += of[w][col + 8][row];
        store_up<T>(a, u, u.col() + col, assignment, low, high);
      });
#endif
}

// A block's units of the second product: 16 outputs of each expert that is hit, by 8 of its rows.
struct DownWalk {
  const Arguments& a;
  const Routing& routing;
  int number = 0, unit = 0, group = 0;
  uint64_t rows;

  __device__ __forceinline__ DownWalk(const Arguments& arguments, const Routing& r) : a(arguments), routing(r) {
    begin();
  }
  __device__ __forceinline__ bool left() const { return number < routing.hits; }
  __device__ __forceinline__ int expert() const { return routing.hit[number]; }
  __device__ __forceinline__ int out() const { return int(blockIdx.x) * 16; }
  __device__ __forceinline__ void begin() { rows = left() ? routing.rows_of(expert()) : 0; }
  __device__ __forceinline__ void next() {
    ++unit;
    if (8 * ++group < __popcll(rows)) return;
    group = 0, ++number;
    begin();
  }
  __device__ __forceinline__ RowsAt rows_at() const {
    const int64_t low = int64_t{expert()} * a.hidden + out();
    return {low * a.inner, (low + 8) * a.inner, 1, a.hidden - out(), true};
  }
};

// Before its wait this one reads what it was given and not what the launch before it writes: that launch has waited for
// all before it, in each of its blocks, when it lets this one begin.
template <class T>
__global__ void __launch_bounds__(kThreads) decode_down(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ Routing routing;
  next_launch_may_begin();
  routing.find(a);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* parts = reinterpret_cast<float*>(raw + kRingWarps * sizeof(WarpRing<T>));  // [warps, assignments, 16]
  stream(
      reinterpret_cast<WarpRing<T>*>(raw)[warp], static_cast<const T*>(a.w_down), a.inner, DownWalk(a, routing),
      [&](const DownWalk& u, int row) -> const T* {
        const int assignment = bit_of(u.rows, 8 * u.group + row);
        return assignment < 0 ? nullptr : static_cast<const T*>(a.a) + int64_t{assignment} * a.inner;
      },
      [] { wait_for_launch_before(); },
      [&](const DownWalk& u, const float(&sums)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int assignment = bit_of(u.rows, 8 * u.group + lane % 4 * 2 + i % 2);
          if (assignment >= 0) parts[(warp * a.assignments + assignment) * 16 + lane / 4 + i / 2 * 8] = sums[i];
        }
      });
  __syncthreads();
  const int token = threadIdx.x / 16, out = threadIdx.x % 16, col = int(blockIdx.x) * 16 + out;
  if (token * a.top_k >= a.assignments || col >= a.hidden) return;
  float sum = 0.f;
  for (int n = token * a.top_k; n < (token + 1) * a.top_k; ++n) {
    const int expert = routing.expert[n];
    if (expert < 0) continue;
    float y = a.b_down == nullptr ? 0.f : to_float(static_cast<const T*>(a.b_down)[int64_t{expert} * a.hidden + col]);
#pragma unroll
    for (int w = 0; w < kRingWarps; ++w) y += parts[(w * a.assignments + n) * 16 + out];
    const float s =
        a.wide_scores ? static_cast<const float*>(a.scores)[n] : to_float(static_cast<const T*>(a.scores)[n]);
    sum += s * rounded<T>(y);
  }
  static_cast<T*>(a.y)[int64_t{token} * a.hidden + col] = from_float<T>(sum);
#endif
}

// As launch_after() does, with as much of a multiprocessor's memory being shared memory as can be: the first launch
// leaves it as it is while it runs, and the second one would have no room beside it.
template <auto kKernel>
void launch_beside(int64_t blocks, int64_t bytes, const Arguments& a, Stream stream) {
  allow_memory<kKernel>();
  cudaLaunchAttribute wanted[2]{};
  wanted[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  wanted[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  wanted[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  wanted[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = size_t(bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = wanted;
  config.numAttrs = attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 ? 2 : 1;
  checked(cudaLaunchKernelEx(&config, kKernel, a), "kernel launch");
}
static_assert(kMostTokens * 16 <= kThreads && kMost <= kThreads);

}  // namespace

bool decode_takes(const Decode& d) {
  const Problem& p = d.p;
  uint64_t bits = uint64_t(d.x_stride | p.hidden | p.inner) * 2;
  for (const void* data : {d.x, d.w_up, d.w_down}) bits |= reinterpret_cast<uintptr_t>(data);
  constexpr int kMemory = 136 << 10;  // of either launch, at most
  return p.tokens <= kMostTokens && p.assignments() <= kMost && p.assignments() > 0 && size_of(p.dtype) == 2 &&
         !p.transposed && !p.scale_input && bits % kernels::kVectorBytes == 0 &&
         attribute<cudaDevAttrComputeCapabilityMajor>() >= 8 &&
         attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= kMemory;
}

void decode(const Decode& d, Stream stream) {
  const Problem& p = d.p;
  const Arguments a{.index = d.index,
                    .x = d.x,
                    .w_up = d.w_up,
                    .b_up = d.b_up,
                    .w_down = d.w_down,
                    .b_down = d.b_down,
                    .scores = d.scores,
                    .slots = d.slots,
                    .h = d.h,
                    .a = d.a,
                    .y = d.y,
                    .x_stride = d.x_stride,
                    .assignments = int(p.assignments()),
                    .top_k = int(p.top_k),
                    .experts = int(p.experts),
                    .hidden = int(p.hidden),
                    .inner = int(p.inner),
                    .act = p.act,
                    .limits = {p.alpha, p.limit},
                    .index64 = d.index64,
                    .wide_scores = p.score_dtype == DType::kFloat32,
                    .interleaved = p.interleaved,
                    .gate = has_gate(p.act)};
  const auto run = [&]<class T>() {
    const int64_t units = std::min(p.assignments(), p.experts) * divide_up(p.inner, a.gate ? 8 : 16);
    const int64_t rings = kRingWarps * sizeof(WarpRing<T>), parts = kRingWarps * 16 * sizeof(float) * p.assignments();
    launch_beside<&decode_up<T>>(std::min<int64_t>(units, multiprocessors()), rings, a, stream);
    launch_beside<&decode_down<T>>(divide_up(p.hidden, 16), rings + parts, a, stream);
  };
  p.dtype == DType::kBFloat16 ? run.template operator()<kernels::BFloat16>() : run.template operator()<kernels::Half>();
}

}  // namespace moe::cuda
