// AdamW on a GPU: the list travels in the kernel's parameters, a block takes a piece of one tensor.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/optimizer/coefficients.h"
#include "kernels/optimizer/cuda/optimizer.h"
#include "kernels/optimizer/philox.h"

namespace optimizer::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kThreads = 256, kEach = int(kPerDraw);  // elements of a thread at once: a draw's
constexpr int kRounds = 4;                            // of a block
constexpr int64_t kPiece = int64_t{kThreads} * kEach * kRounds;
constexpr int kItems = 512;  // of a launch: its parameters stay below the 32764 bytes that a kernel may have

struct Items {
  Item of[kItems];
  int first_piece[kItems + 1];  // of each item among the launch's pieces
  int count, first_index;       // the first item's index in the whole list
};
static_assert(sizeof(Items) + sizeof(Update) <= 32764);

struct Moments {
  float average, average_square;
};

__device__ __forceinline__ Moments moments(const Coefficients& c, float gradient, float average, float square) {
  const float g = __fmul_rn(gradient, c.inverse_scale);
  return {__fmaf_rn(c.one_minus_beta1, __fsub_rn(g, average), average),
          __fmaf_rn(c.one_minus_beta2, __fmul_rn(g, g), __fmul_rn(c.beta2, square))};
}
__device__ __forceinline__ float updated(const Coefficients& c, float parameter, const Moments& m) {
  const float direction = __fdiv_rn(m.average, __fmaf_rn(__fsqrt_rn(m.average_square), c.inverse_root, c.eps));
  return __fmaf_rn(c.minus_step_size, direction, __fmul_rn(parameter, c.decay));
}

struct Random {
  bool on;
  uint64_t seed;
  uint32_t step, index;
};

// N elements from `element` on, stored to nearest or stochastically. N is 1, or kEach at a multiple of it.
template <class T, int N>
__device__ __forceinline__ void write(T* p, const float (&v)[N], const Random& random, Rounded what, int64_t element) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (random.on) {
      const RandomWords words =
          random_words(random.seed, random.step, random.index, what, uint64_t(element / kPerDraw));
      float rounded_values[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const uint32_t bits = random_bits(words, N == 1 ? int(element % kPerDraw) : i);
        rounded_values[i] = to_float(BFloat16{stochastic_bfloat16(__float_as_uint(v[i]), bits)});
      }
      return store(p, pack<T>(rounded_values));
    }
  }
  store(p, pack<T>(v));
}

template <int N, class T>
__device__ __forceinline__ void read(const T* p, float (&v)[N]) {
  unpack(load<N>(p), v);
}

template <class T, class State, bool kMaster, int N>
__device__ __forceinline__ void update_elements(const Coefficients& c, const Item& item, const Random& random,
                                                int64_t i) {
  T* parameter = static_cast<T*>(item.parameter) + i;
  State *average = static_cast<State*>(item.average) + i, *square = static_cast<State*>(item.average_square) + i;
  float gradients[N], averages[N], squares[N], values[N];
  read<N>(static_cast<const T*>(item.gradient) + i, gradients);
  read<N>(average, averages);
  read<N>(square, squares);
  if constexpr (kMaster)
    read<N>(item.master + i, values);
  else
    read<N>(parameter, values);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const Moments m = moments(c, gradients[k], averages[k], squares[k]);
    averages[k] = m.average, squares[k] = m.average_square;
    values[k] = updated(c, values[k], m);
  }
  write<State, N>(average, averages, random, Rounded::kAverage, i);
  write<State, N>(square, squares, random, Rounded::kAverageSquare, i);
  if constexpr (kMaster) {
    store(item.master + i, pack<float>(values));
    store(parameter, pack<T>(values));
  } else {
    write<T, N>(parameter, values, random, Rounded::kParameter, i);
  }
}

__device__ __forceinline__ bool at_vectors(const Item& item) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const uintptr_t all = address(item.parameter) | address(item.gradient) | address(item.average) |
                        address(item.average_square) | address(item.master);
  return all % kVectorBytes == 0;
}

// The item that a piece belongs to.
__device__ __forceinline__ int item_of(const Items& items, int piece) {
  int low = 0, high = items.count;  // first_piece[low] <= piece < first_piece[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (items.first_piece[middle] <= piece ? low : high) = middle;
  }
  return low;
}

template <class T, class State, bool kMaster>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ Items items, const __grid_constant__ Update u) {
  __shared__ Coefficients shared;
  const int index = item_of(items, int(blockIdx.x));
  const Item item = items.of[index];
  const float scale = *u.scale;
  if (!isfinite(scale)) return;
  if (threadIdx.x == 0) shared = coefficients(u.rates, *item.step, scale);
  __syncthreads();
  const Coefficients c = shared;
  const Random random{u.stochastic, u.seed, uint32_t(*item.step), uint32_t(items.first_index + index)};
  const int64_t begin = (int64_t{blockIdx.x} - items.first_piece[index]) * kPiece;
  const int64_t end = begin + kPiece < item.size ? begin + kPiece : item.size;
  int64_t single = begin;  // elements from here on are updated one at a time
  if (at_vectors(item)) {
    for (int64_t i = begin + threadIdx.x * kEach; i + kEach <= end; i += kThreads * kEach)
      update_elements<T, State, kMaster, kEach>(c, item, random, i);
    single = begin + (end - begin) / kEach * kEach;
  }
  for (int64_t i = single + threadIdx.x; i < end; i += kThreads)
    update_elements<T, State, kMaster, 1>(c, item, random, i);
}

}  // namespace

void adamw(const Update& u, const Item* items, int64_t count, Stream stream) {
  for (int64_t first = 0; first < count;) {
    Items some{};
    some.first_index = int(first);
    int64_t pieces = 0;
    for (; first < count && some.count < kItems; ++first) {
      some.of[some.count] = items[first];
      some.first_piece[some.count++] = int(pieces);
      pieces += divide_up(items[first].size, kPiece);
    }
    some.first_piece[some.count] = int(pieces);
    if (pieces == 0) continue;
    with_forms(u, [&]<typename T, typename State, bool kMaster>() {
      launch(&adamw_kernel<T, State, kMaster>, pieces, kThreads, stream, some, u);
    });
  }
}

}  // namespace optimizer::cuda
