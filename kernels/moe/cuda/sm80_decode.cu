// A decode step's handful of tokens in two launches: nothing is sorted, and rows lie in the order of assignments. Each
// block finds out by itself who goes where, which is a few hundred comparisons. The first launch makes A, the second y:
// a block of it has 16 outputs and goes through all experts that are hit, so that it sums over a token's experts, too.
//
// What such a step takes is the time that the weights take to come from memory. Each warp has a ring of its own in
// shared memory, which cp.async fills ahead of the products, also from one unit of work to the next. Both launches fit
// a multiprocessor together: the second fills its rings while the first is at work. As in sm80_products_few.cu weights
// are the left operand of mma, up to 8 rows the right one, and a thread's eight neighbours along a sum are two steps of
// it.
#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/moe/cuda/decode_arguments.cuh"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using namespace moe::gpu;
using kernels::divide_up;

constexpr int kMax = 64, kMaxTokens = 8;  // assignments
constexpr int kUpWarps = 6, kDownWarps = 8;
constexpr int kStages = 3, kStretch = 128, kPitch = kStretch + 32;  // elements: two rows beside each other in the banks

struct Arguments : DecodeArguments {
  int64_t x_stride;
  int top_k;
};

// Token-to-expert assignment of this block.
struct Routing {
  int32_t expert[kMax];  // of an assignment, or -1
  int32_t hit[kMax];     // the experts that are hit
  int32_t hits;

  // By the whole block, of at least kMax threads.
  __device__ __forceinline__ void find(const Arguments& a) {
    const int t = threadIdx.x;
    const int own = expert_of(a, t);
    if (t < kMax) expert[t] = own;
    __syncthreads();
    bool first = own >= 0;
    for (int i = 0; own >= 0 && i < t; ++i) first &= expert[i] != own;
    __shared__ uint32_t firsts[kMax / 32];
    const uint32_t mask = __ballot_sync(kAllLanes, first);
    if (t < kMax && t % 32 == 0) firsts[t / 32] = mask;
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

// A unit of work is 16 rows of weights by up to 8 rows of an expert. Lane l copies 16 bytes of rows l / 16, l / 16 + 2,
// ... of the 16: rows 0 to 7 begin `low`, 8 to 15 `high` elements into the weights, each `step` rows after the one
// before it.
struct RowsAt {
  int64_t low, high;
  int step, left;  // how many columns there are from the unit's first on
  bool both;       // rows 8 to 15 are other columns
};

template <class T>
struct WarpRing {
  T w[kStages][16][kPitch];
};

// fn(unit, sums) for each of a warp's units: sums[i] of row lane / 4 + i / 2 * 8 of the weights and row lane % 4 * 2 +
// i % 2 of the others. from(unit, row): where the latter lies, or null. wait(): called once, before they are read.
template <class T, class Walk, class From, class Wait, class Fn>
__device__ __forceinline__ void stream(WarpRing<T>& ring, const T* weights, int in, Walk walk, const From& from,
                                       const Wait& wait, const Fn& fn) {
  const int lane = threadIdx.x % 32, half = lane / 16, piece = lane % 16 * 8, row = lane / 4, quarter = lane % 4 * 8;
  Walk ahead = walk;
  int ahead_k = 0, to = 0, at = 0;
  const auto copy_next = [&] {
    if (ahead.left()) {
      const RowsAt rows = ahead.rows_at();
      const int k = ahead_k + piece;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = 2 * (i % 4) + half;  // of 8
        const bool zeros = k >= in || r + (i >= 4 && rows.both ? 8 : 0) >= rows.left;
        const T* source = weights + (i < 4 ? rows.low : rows.high) + int64_t{r} * rows.step * in + k;
        cp_async(&ring.w[to][2 * i + half][piece], zeros ? weights : source, zeros);
      }
      if ((ahead_k += kStretch) >= in) ahead_k = 0, ahead.next();
    }
    cp_async_commit();
    if (++to == kStages) to = 0;
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy_next();
  wait();
  for (; walk.left(); walk.next()) {
    const T* x = from(walk, row);  // null: no such row
    float sums[4] = {};
    for (int k0 = 0; k0 < in; k0 += kStretch) {
      uint4 v[kStretch / 32];
#pragma unroll
      for (int i = 0; i < kStretch / 32; ++i) {
        const int k = k0 + 32 * i + quarter;
        v[i] = x != nullptr && k < in ? *reinterpret_cast<const uint4*>(x + k) : make_uint4(0, 0, 0, 0);
      }
      cp_async_wait<kStages - 2>();
      __syncwarp();  // all lanes' copies are there, and the stage before is read
      copy_next();
#pragma unroll
      for (int i = 0; i < kStretch / 32; ++i) {
        const uint4 low = *reinterpret_cast<const uint4*>(&ring.w[at][row][32 * i + quarter]);
        const uint4 high = *reinterpret_cast<const uint4*>(&ring.w[at][row + 8][32 * i + quarter]);
        mma_m16n8k16<T>(sums, {low.x, high.x, low.y, high.y}, v[i].x, v[i].y);
        mma_m16n8k16<T>(sums, {low.z, high.z, low.w, high.w}, v[i].z, v[i].w);
      }
      if (++at == kStages) at = 0;
    }
    fn(walk, sums);
  }
  cp_async_wait<0>();
}

// A warp's units of the first product: columns of the activation of each expert that is hit, 8 with a gate and else 16.
struct UpWalk {
  const Arguments& a;
  const Routing& routing;
  int columns, units, number;  // of an expert; of all
  uint64_t rows;
  int group = 0;  // of 8 rows

  __device__ __forceinline__ UpWalk(const Arguments& arguments, const Routing& r)
      : a(arguments),
        routing(r),
        columns((a.inner + width() - 1) / width()),
        units(r.hits * columns),
        number(threadIdx.x / 32 * gridDim.x + blockIdx.x) {
    begin();
  }
  __device__ __forceinline__ int width() const { return a.gate ? 8 : 16; }
  __device__ __forceinline__ bool left() const { return number < units; }
  __device__ __forceinline__ int expert() const { return routing.hit[number / columns]; }
  __device__ __forceinline__ int col() const { return number % columns * width(); }
  __device__ __forceinline__ void begin() { rows = left() ? routing.rows_of(expert()) : 0; }
  __device__ __forceinline__ void next() {
    if (8 * ++group < __popcll(rows)) return;
    group = 0, number += kUpWarps * gridDim.x;
    begin();
  }
  __device__ __forceinline__ RowsAt rows_at() const {
    const int64_t first = int64_t{expert()} * (a.gate ? 2 * a.inner : a.inner);
    const int64_t low = first + (a.gate && a.interleaved ? 2 * col() : col());
    const int64_t high = low + (!a.gate ? 8 : a.interleaved ? 1 : a.inner);
    return {low * a.hidden, high * a.hidden, a.gate && a.interleaved ? 2 : 1, a.inner - col(), !a.gate};
  }
};

template <class T>
__global__ void __launch_bounds__(32 * kUpWarps) decode_up(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // decode_takes refuses older ones
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ Routing routing;
  grid_dependency_wait();
  launch_dependents();
  routing.find(a);
  const int lane = threadIdx.x % 32;
  stream<T>(
      reinterpret_cast<WarpRing<T>*>(raw)[threadIdx.x / 32], static_cast<const T*>(a.w_up), a.hidden,
      UpWalk(a, routing),
      [&](const UpWalk& u, int row) -> const T* {
        const int assignment = bit_of(u.rows, 8 * u.group + row);
        return assignment < 0 ? nullptr : static_cast<const T*>(a.x) + assignment / a.top_k * a.x_stride;
      },
      [] {},
      [&](const UpWalk& u, const float(&sums)[4]) {
        const int columns = a.gate ? 2 * a.inner : a.inner;
        const T* bias = static_cast<const T*>(a.b_up) + int64_t{u.expert()} * columns;
        const int col = u.col() + lane / 4;
        const auto biased = [&](float sum, int of) {
          return rounded<T>(a.b_up == nullptr ? sum : sum + to_float(bias[of]));
        };
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int assignment = bit_of(u.rows, 8 * u.group + lane % 4 * 2 + i);
          if (assignment < 0) continue;
          T* to = static_cast<T*>(a.a) + int64_t{assignment} * a.inner;
          T* h = a.h == nullptr ? nullptr : static_cast<T*>(a.h) + int64_t{a.slots[assignment]} * columns;
          const auto keep = [&](float v, int of) {
            if (h != nullptr) h[of] = from_float<T>(v);
            return v;
          };
          if (a.gate) {
            if (col >= a.inner) continue;
            const int of_g = a.interleaved ? 2 * col : col, of_v = a.interleaved ? 2 * col + 1 : a.inner + col;
            const float g = keep(biased(sums[i], of_g), of_g), v = keep(biased(sums[i + 2], of_v), of_v);
            to[col] = from_float<T>(value_of(a.act, a.limits, g, v));
          } else {
#pragma unroll
            for (int high = 0; high < 2; ++high) {
              const int of = col + 8 * high;
              if (of < a.inner)
                to[of] = from_float<T>(value_of(a.act, a.limits, keep(biased(sums[i + 2 * high], of), of), 0.f));
            }
          }
        }
      });
#endif
}

// A warp's units of the second product: 16 outputs of every so many experts that are hit.
struct DownWalk {
  const Arguments& a;
  const Routing& routing;
  int number;  // of the expert
  uint64_t rows;
  int group = 0;

  __device__ __forceinline__ DownWalk(const Arguments& arguments, const Routing& r)
      : a(arguments), routing(r), number(threadIdx.x / 32) {
    begin();
  }
  __device__ __forceinline__ bool left() const { return number < routing.hits; }
  __device__ __forceinline__ int expert() const { return routing.hit[number]; }
  __device__ __forceinline__ int out() const { return int(blockIdx.x) * 16; }
  __device__ __forceinline__ void begin() { rows = left() ? routing.rows_of(expert()) : 0; }
  __device__ __forceinline__ void next() {
    if (8 * ++group < __popcll(rows)) return;
    group = 0, number += kDownWarps;
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
__global__ void __launch_bounds__(32 * kDownWarps) decode_down(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ Routing routing;
  __shared__ float results[kMax][16];  // Y of an assignment
  routing.find(a);
  const int lane = threadIdx.x % 32;
  stream<T>(
      reinterpret_cast<WarpRing<T>*>(raw)[threadIdx.x / 32], static_cast<const T*>(a.w_down), a.inner,
      DownWalk(a, routing),
      [&](const DownWalk& u, int row) -> const T* {
        const int assignment = bit_of(u.rows, 8 * u.group + row);
        return assignment < 0 ? nullptr : static_cast<const T*>(a.a) + int64_t{assignment} * a.inner;
      },
      [] { grid_dependency_wait(); },
      [&](const DownWalk& u, const float(&sums)[4]) {
        const T* bias = static_cast<const T*>(a.b_down) + int64_t{u.expert()} * a.hidden;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int assignment = bit_of(u.rows, 8 * u.group + lane % 4 * 2 + i % 2), out = lane / 4 + i / 2 * 8;
          if (assignment < 0 || u.out() + out >= a.hidden) continue;
          results[assignment][out] =
              rounded<T>(a.b_down == nullptr ? sums[i] : sums[i] + to_float(bias[u.out() + out]));
        }
      });
  __syncthreads();
  const int token = threadIdx.x / 16, out = threadIdx.x % 16, col = int(blockIdx.x) * 16 + out;
  if (token * a.top_k >= a.assignments || col >= a.hidden) return;
  float sum = 0.f;
  for (int n = token * a.top_k; n < (token + 1) * a.top_k; ++n) {
    if (routing.expert[n] < 0) continue;
    const float s =
        a.wide_scores ? static_cast<const float*>(a.scores)[n] : to_float(static_cast<const T*>(a.scores)[n]);
    sum += s * results[n][out];
  }
  static_cast<T*>(a.y)[int64_t{token} * a.hidden + col] = from_float<T>(sum);
#endif
}

// As launch_after() does, with as much of a multiprocessor's memory being shared memory as can be: the first launch
// leaves it as it is while it runs, and the second one would have no room beside it.
template <auto kKernel, class T>
void launch_beside(int64_t blocks, int warps, const Arguments& a, Stream stream) {
  allow_memory<kKernel>();
  cudaLaunchAttribute wanted[2]{};
  wanted[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  wanted[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  wanted[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  wanted[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(32 * warps));
  config.dynamicSmemBytes = warps * sizeof(WarpRing<T>);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = wanted;
  config.numAttrs = attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 ? 2 : 1;
  checked(cudaLaunchKernelEx(&config, kKernel, a), "kernel launch");
}
static_assert(kMaxTokens * 16 <= 32 * kDownWarps && kMax <= 32 * kUpWarps);

}  // namespace

bool decode_takes(const Decode& d) {
  const Problem& p = d.p;
  uint64_t bits = uint64_t(d.x_stride | p.hidden | p.inner) * 2;
  for (const void* data : {d.x, d.w_up, d.w_down}) bits |= reinterpret_cast<uintptr_t>(data);
  constexpr int kMemory = 132 << 10;  // of either launch
  // What it saves is launches; weights come at three quarters of the rate that sm80_products_few.cu reaches with many
  // of them (docs/notes/moe.md).
  constexpr int64_t kMaxBytes = 90'000'000;
  const int64_t bytes = std::min(p.assignments(), p.experts) * (p.columns() + p.inner) * p.hidden * 2;
  return p.tokens <= kMaxTokens && p.assignments() <= kMax && p.assignments() > 0 && bytes <= kMaxBytes &&
         size_of(p.dtype) == 2 && !p.transposed && !p.scale_input && bits % kernels::kVectorBytes == 0 &&
         attribute<cudaDevAttrComputeCapabilityMajor>() >= 8 &&
         attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= kMemory;
}

void decode(const Decode& d, Stream stream) {
  const Problem& p = d.p;
  const Arguments a{arguments_of(d), d.x_stride, int(p.top_k)};
  const auto run = [&]<class T>() {
    const int64_t units = std::min(p.assignments(), p.experts) * divide_up(p.inner, a.gate ? 8 : 16);
    launch_beside<&decode_up<T>, T>(std::min<int64_t>(units, multiprocessors()), kUpWarps, a, stream);
    launch_beside<&decode_down<T>, T>(divide_up(p.hidden, 16), kDownWarps, a, stream);
  };
  p.dtype == DType::kBFloat16 ? run.template operator()<kernels::BFloat16>() : run.template operator()<kernels::Half>();
}

}  // namespace moe::cuda
