// A decode step of one token in two launches by TMA (sm_90). Nothing is sorted: each block finds out by
// itself which experts are hit. The first launch makes A, a row for each of those; the second y: a block of it has a
// few outputs and goes through all experts that are hit, so that it sums over them, too.
//
// What such a step takes is the time that the weights take to come from memory, and what must never happen is that
// memory has nothing to do. Each warp has a piece of shared memory, asks for rows of weights as they lie in memory and
// multiplies them by itself: a column of the activation in the first launch, the block's outputs of an expert in the
// second. Blocks of the second launch fit a multiprocessor beside one of the first: what they ask for is on its way
// while the first launch runs and ends.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"
#include "kernels/moe/cuda/decode_arguments.cuh"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using namespace moe::gpu;
using kernels::divide_up;

constexpr int kMax = 64, kMaxExperts = 1024;  // kMax: assignments
constexpr int kUpWarps = 12, kDownWarps = 8, kOuts = 4;
constexpr int kPieces = 3, kMaxChunk = kPieces * 256;  // elements of a row that a warp of the second launch has at once
constexpr int kMaxHidden = 4096;

using Arguments = DecodeArguments;

// Which experts are hit.
struct Routing {
  int32_t place[kMax];  // of an assignment: its expert's among those that are hit, or -1
  int32_t hit[kMax];
  uint32_t named[kMaxExperts / 32];
  int32_t before[kMaxExperts / 32];
  int32_t hits;

  // By the whole block; a barrier of the block lies between the two.
  __device__ __forceinline__ void clear() {
    if (threadIdx.x < kMaxExperts / 32) named[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void find(const Arguments& a) {
    const int t = threadIdx.x;
    const int own = expert_of(a, t);
    if (own >= 0) atomicOr(&named[own / 32], 1u << own % 32);
    __syncthreads();
    if (t < 32) {
      uint32_t mine = named[t];
      const int count = __popc(mine);
      int sum = count;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(kAllLanes, sum, o);
        if (t >= o) sum += other;
      }
      if (t == 31) hits = sum;
      before[t] = sum - count;
      for (int to = sum - count; mine != 0; mine &= mine - 1) hit[to++] = 32 * t + __ffs(int(mine)) - 1;
    }
    __syncthreads();
    if (t < a.assignments)  // read behind another barrier
      place[t] = own < 0 ? -1 : before[own / 32] + __popc(named[own / 32] & ((1u << own % 32) - 1));
  }
};

template <class T>
__device__ __forceinline__ void numbers(const uint4& v, float (&f)[8]) {
  const float2 p[4] = {unpack_pair<T>(v.x), unpack_pair<T>(v.y), unpack_pair<T>(v.z), unpack_pair<T>(v.w)};
#pragma unroll
  for (int i = 0; i < 4; ++i) f[2 * i] = p[i].x, f[2 * i + 1] = p[i].y;
}
template <class T>
__device__ __forceinline__ void add_products(const float (&x)[8], const uint4& w, float (&sums)[2]) {
  float f[8];
  numbers<T>(w, f);
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i % 2] = fmaf(x[i], f[i], sums[i % 2]);
}

template <class T>
__global__ void __launch_bounds__(32 * kUpWarps, 2) one_token_up(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // one_token_takes refuses older ones
  extern __shared__ __align__(128) uint8_t raw[];
  __shared__ Routing routing;
  __shared__ Mbarrier full[kUpWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t row_bytes = uint32_t(a.hidden) * sizeof(T), column_bytes = (a.gate ? 2 : 1) * row_bytes;
  T* x = reinterpret_cast<T*>(raw + kUpWarps * column_bytes);
  if (threadIdx.x < kUpWarps) {
    full[threadIdx.x].init(1);
    fence_mbarrier_init();
  }
  routing.clear();
  __syncthreads();
  grid_dependency_wait();
  launch_dependents();
  for (int k = threadIdx.x * 8; k < a.hidden; k += 32 * kUpWarps * 8)
    *reinterpret_cast<uint4*>(x + k) = *reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + k);
  routing.find(a);

  const int columns = routing.hits * a.inner;
  const int begin = int(int64_t{columns} * blockIdx.x / gridDim.x);
  const int end = int(int64_t{columns} * (blockIdx.x + 1) / gridDim.x);
  uint8_t* mine = raw + warp * column_bytes;
  const int64_t width = a.gate ? 2 * a.inner : a.inner;
  const auto ask = [&](int column) {
    if (column >= end || lane > 0) return;
    const int number = column / a.inner, c = column - number * a.inner;
    const T* from = static_cast<const T*>(a.w_up) + routing.hit[number] * width * a.hidden;
    full[warp].arrive_expect_tx(column_bytes);
    if (a.gate && !a.interleaved) {
      bulk_load(mine, from + int64_t{c} * a.hidden, row_bytes, full[warp]);
      bulk_load(mine + row_bytes, from + int64_t{a.inner + c} * a.hidden, row_bytes, full[warp]);
    } else {
      bulk_load(mine, from + int64_t{a.gate ? 2 * c : c} * a.hidden, column_bytes, full[warp]);
    }
  };
  ask(begin + warp);
  if (a.h != nullptr) __syncthreads();  // for places
  uint32_t parity = 0;
#pragma unroll 1
  for (int column = begin + warp; column < end; column += kUpWarps, parity ^= 1) {
    full[warp].wait(parity);
    float g[2] = {}, v[2] = {};
#pragma unroll 4
    for (int k = lane * 8; k < a.hidden; k += 256) {
      float f[8];
      numbers<T>(*reinterpret_cast<const uint4*>(x + k), f);
      add_products<T>(f, *reinterpret_cast<const uint4*>(mine + k * sizeof(T)), g);
      if (a.gate) add_products<T>(f, *reinterpret_cast<const uint4*>(mine + row_bytes + k * sizeof(T)), v);
    }
    __syncwarp();  // all lanes have read the weights
    ask(column + kUpWarps);
    float sum = g[0] + g[1], other = v[0] + v[1];
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, o), other += __shfl_xor_sync(kAllLanes, other, o);
    const int number = column / a.inner, c = column - number * a.inner;
    const int of_g = a.gate && a.interleaved ? 2 * c : c, of_v = a.interleaved ? 2 * c + 1 : a.inner + c;
    if (a.b_up != nullptr) {
      const T* bias = static_cast<const T*>(a.b_up) + routing.hit[number] * width;
      sum += to_float(bias[of_g]);
      if (a.gate) other += to_float(bias[of_v]);
    }
    sum = rounded<T>(sum), other = rounded<T>(other);
    if (lane == 0)
      static_cast<T*>(a.a)[int64_t{number} * a.inner + c] = from_float<T>(value_of(a.act, a.limits, sum, other));
    if (a.h == nullptr) continue;
    for (int i = lane; i < a.assignments; i += 32) {
      if (routing.place[i] != number) continue;
      T* h = static_cast<T*>(a.h) + a.slots[i] * width;
      h[of_g] = from_float<T>(sum);
      if (a.gate) h[of_v] = from_float<T>(other);
    }
  }
#endif
}

// Before its wait this one reads what it was given and not what the launch before it writes: that launch has waited for
// all before it, in each of its blocks, when it lets this one begin.
template <class T>
__global__ void __launch_bounds__(32 * kDownWarps, 4) one_token_down(const Arguments a, const int chunk) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t raw[];
  __shared__ Routing routing;
  __shared__ Mbarrier full[kDownWarps];
  __shared__ float scores[kMax], results[kMax][kOuts];  // results: Y of an expert that is hit
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, out = int(blockIdx.x) * kOuts;
  if (threadIdx.x < kDownWarps) {
    full[threadIdx.x].init(1);
    fence_mbarrier_init();
  }
  routing.clear();
  __syncthreads();
  if (int(threadIdx.x) < a.assignments)
    scores[threadIdx.x] = a.wide_scores ? static_cast<const float*>(a.scores)[threadIdx.x]
                                        : to_float(static_cast<const T*>(a.scores)[threadIdx.x]);
  routing.find(a);

  T* weights = reinterpret_cast<T*>(raw) + warp * kOuts * chunk;
  int number = warp, k0 = 0;  // of the expert that is hit; of its elements
  const auto ask = [&] {
    if (number >= routing.hits) return;
    const int n = min(chunk, a.inner - k0);
    const T* from = static_cast<const T*>(a.w_down) + (int64_t{routing.hit[number]} * a.hidden + out) * a.inner + k0;
    const bool whole = n == a.inner;
    if (lane == 0) full[warp].arrive_expect_tx(uint32_t(kOuts * n) * sizeof(T));
    __syncwarp();
    if (lane < (whole ? 1 : kOuts))
      bulk_load(weights + lane * n, from + int64_t{lane} * a.inner, uint32_t(whole ? kOuts * n : n) * sizeof(T),
                full[warp]);
  };
  ask();
  grid_dependency_wait();
  launch_dependents();

  uint32_t parity = 0;
  float sums[kOuts][2] = {};
#pragma unroll 1
  while (number < routing.hits) {
    const int n = min(chunk, a.inner - k0);
    const T* row = static_cast<const T*>(a.a) + int64_t{number} * a.inner + k0;
    float x[kPieces][8];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int k = lane * 8 + 256 * i;
      numbers<T>(k < n ? __ldcg(reinterpret_cast<const uint4*>(row + k)) : make_uint4(0, 0, 0, 0), x[i]);
    }
    full[warp].wait(parity);
    parity ^= 1;
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int k = lane * 8 + 256 * i;
        if (k < n) add_products<T>(x[i], *reinterpret_cast<const uint4*>(weights + o * n + k), sums[o]);
      }
    }
    __syncwarp();  // all lanes have read the weights
    const int done = number;
    const bool last = k0 + n == a.inner;
    k0 += n;
    if (last) k0 = 0, number += kDownWarps;
    ask();
    if (!last) continue;
    // Lanes share the sums out: each step halves the outputs that a lane sums.
    float v[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) v[o] = sums[o][0] + sums[o][1], sums[o][0] = sums[o][1] = 0.f;
    int bit = 16;
#pragma unroll
    for (int left = kOuts / 2; left > 0; left /= 2, bit /= 2) {
      const bool high = lane & bit;
#pragma unroll
      for (int o = 0; o < left; ++o) {
        const float sent = high ? v[o] : v[o + left], kept = high ? v[o + left] : v[o];
        v[o] = kept + __shfl_xor_sync(kAllLanes, sent, bit);
      }
    }
    for (; bit > 0; bit /= 2) v[0] += __shfl_xor_sync(kAllLanes, v[0], bit);
    const int o = lane / (32 / kOuts);
    if (lane % (32 / kOuts) == 0) {
      float y = v[0];
      if (a.b_down != nullptr)
        y += to_float(static_cast<const T*>(a.b_down)[int64_t{routing.hit[done]} * a.hidden + out + o]);
      results[done][o] = rounded<T>(y);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kOuts) return;
  float sum = 0.f;
#pragma unroll 8
  for (int i = 0; i < a.assignments; ++i)
    if (routing.place[i] >= 0) sum += scores[i] * results[routing.place[i]][threadIdx.x];
  static_cast<T*>(a.y)[out + threadIdx.x] = from_float<T>(sum);
#endif
}

}  // namespace

bool one_token_takes(const Decode& d) {
  const Problem& p = d.p;
  uint64_t bits = uint64_t(p.hidden | p.inner) * 2;
  for (const void* data : {d.x, d.w_up, d.w_down}) bits |= reinterpret_cast<uintptr_t>(data);
  constexpr int kMemory = 208 << 10;  // of the first launch, of the widest rows
  // Where there is more to read, it is less of it that launches take, and by few experts of wide rows warps of the
  // second launch have nothing to do.
  constexpr int64_t kMaxBytes = 160'000'000;
  const int64_t bytes = std::min(p.assignments(), p.experts) * (p.columns() + p.inner) * p.hidden * 2;
  return p.tokens == 1 && p.assignments() <= kMax && p.assignments() > 0 && p.experts <= kMaxExperts &&
         p.hidden <= kMaxHidden && bytes <= kMaxBytes && size_of(p.dtype) == 2 && !p.transposed && !p.scale_input &&
         bits % kernels::kVectorBytes == 0 && attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 &&
         attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= kMemory;
}

void one_token(const Decode& d, Stream stream) {
  const Problem& p = d.p;
  const Arguments a = arguments_of(d);
  const auto run = [&]<class T>() {
    const int64_t columns = std::min(p.assignments(), p.experts) * p.inner;
    const int64_t up = (kUpWarps * (a.gate ? 2 : 1) + 1) * p.hidden * 2;
    const int64_t chunk = divide_up(divide_up(p.inner, divide_up(p.inner, kMaxChunk)), 8) * 8;
    launch_after_with_memory<one_token_up<T>, /*kMaxShared=*/true>(up, std::min<int64_t>(columns, multiprocessors()),
                                                                   32 * kUpWarps, /*cluster=*/1, stream, a);
    launch_after_with_memory<one_token_down<T>, /*kMaxShared=*/true>(
        kDownWarps * kOuts * chunk * 2, p.hidden / kOuts, 32 * kDownWarps, /*cluster=*/1, stream, a, int(chunk));
  };
  p.dtype == DType::kBFloat16 ? run.template operator()<kernels::BFloat16>() : run.template operator()<kernels::Half>();
}

}  // namespace moe::cuda
