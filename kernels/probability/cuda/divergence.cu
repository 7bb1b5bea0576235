// Divergences of two rows on a GPU: of probabilities or their logarithms, and of logits, whose gradients take their
// place.
#include "kernels/common/gpu/tile/held_rows.h"
#include "kernels/common/gpu/tile/streamed_rows.h"
#include "kernels/probability/cuda/logits.cuh"
#include "kernels/probability/cuda/probability.h"

namespace probability::cuda {
namespace {

using namespace probability::gpu;

// fn(Many<n>, col, x's and target's elements) for all columns; the loads of kTogether vectors of both rows stand before
// the first use of one.
template <int N, class T, class Fn>
__device__ __forceinline__ void walk_both(int64_t cols, const T* x, const T* target, const Fn& fn) {
  constexpr int kTogether = 2;
  const int64_t whole = cols / N;
  for (int64_t first = threadIdx.x; first < whole; first += int64_t{blockDim.x} * kTogether) {
    Pack<T, N> xs[kTogether], targets[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v < whole) xs[k] = load<N>(x + v * N), targets[k] = load<N>(target + v * N);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v >= whole) break;
      float f[N], t[N];
      unpack(xs[k], f);
      unpack(targets[k], t);
      fn(Many<N>{}, v * N, f, t);
    }
  }
  if constexpr (N > 1) {
    const int64_t c = whole * N + threadIdx.x;
    if (c < cols) {
      float f[1] = {to_float(x[c])}, t[1] = {to_float(target[c])};
      fn(Many<1>{}, c, f, t);
    }
  }
}

constexpr int kDivergenceThreads = 512;

template <class T, int N, Kind kKind>
__global__ void __launch_bounds__(kDivergenceThreads, std::is_same_v<T, Half> ? 2 : 3)
    divergence_forward(const Divergence a) {
  constexpr bool kCoarse = sizeof(T) == 2;
  __shared__ RowSum<1>::Memory memory;
  RowSum<1> sum_of(memory, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* target = static_cast<const T*>(a.target) + row * a.target_stride;
    const bool counts = a.label == nullptr || a.label[row] != a.ignore_index;
    float sum[1] = {0.f};
    if (counts || a.by_element) {
      walk_both<N>(a.cols, x, target, [&](auto many, int64_t c, auto& f, auto& t) {
#pragma unroll
        for (int i = 0; i < many.N; ++i) {
          const float term = counts ? parts_of<kKind, kCoarse>(f[i], t[i], a.parameter).term : 0.f;
          if (a.by_element) a.loss[row * a.cols + c + i] = term;
          sum[0] += term;
        }
      });
    }
    if (a.by_element) continue;
    sum_of(sum);
    if (threadIdx.x == 0) a.loss[row] = sum[0];
  }
}

template <class T, int N, Kind kKind>
__global__ void __launch_bounds__(kDivergenceThreads, 2) divergence_backward(const Divergence a) {
  constexpr bool kCoarse = sizeof(T) == 2;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* target = static_cast<const T*>(a.target) + row * a.target_stride;
    T* dx = static_cast<T*>(a.dx) + row * a.cols;
    if (a.label != nullptr && a.label[row] == a.ignore_index) {
      walk<N>(a.cols, [&](auto many, int64_t c) {
        const float none[many.N] = {};
        store_floats<many.N>(dx + c, none);
      });
      continue;
    }
    const float of_row = a.by_element ? 0.f : a.dloss[row];
    walk_both<N>(a.cols, x, target, [&](auto many, int64_t c, auto& f, auto& t) {
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        const float g = a.by_element ? a.dloss[row * a.cols + c + i] : of_row;
        f[i] = g * parts_of<kKind, kCoarse>(f[i], t[i], a.parameter).slope;
      }
      store_floats<many.N>(dx + c, f);
    });
  }
}

// Total variation for training. Its slope is a sign, so that two bits an element are all that backward reads: byte
// [row, c / 4] holds of each of four columns whether x is above, and whether it is below the target.
template <class T, bool kWhole>
struct Quads {
  static constexpr int N = kWhole ? kPerVector<T> : 4;
  using Bits = std::conditional_t<N == 8, uint16_t, uint8_t>;
  static __device__ __forceinline__ void store_bits(uint8_t* signs, int64_t v, uint32_t bits) {
    reinterpret_cast<Bits*>(signs)[v] = Bits(bits);
  }
  static __device__ __forceinline__ uint32_t load_bits(const uint8_t* signs, int64_t v) {
    return reinterpret_cast<const Bits*>(signs)[v];
  }
  static __device__ __forceinline__ void load_elements(const T* row, int64_t v, int64_t cols, float (&f)[N]) {
    if constexpr (kWhole) {
      load_floats<N>(row + v * N, f);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = v * N + i < cols ? to_float(row[v * N + i]) : 0.f;
    }
  }
};

template <class T, bool kWhole, bool kByElement>
__global__ void __launch_bounds__(kDivergenceThreads, sizeof(T) == 2 ? 4 : 3) tvd_signs(const Divergence a) {
  using Some = Quads<T, kWhole>;
  constexpr int N = Some::N, kTogether = sizeof(T) == 2 ? 1 : 2;
  __shared__ RowSum<1>::Memory memory;
  RowSum<1> sum_of(memory, int(blockDim.x));
  const int64_t vectors = (a.cols + N - 1) / N, bytes = (a.cols + 3) / 4;
  grid_dependency_wait();
  launch_dependents();
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* target = static_cast<const T*>(a.target) + row * a.target_stride;
    uint8_t* signs = a.signs + row * bytes;
    const bool counts = a.label == nullptr || a.label[row] != a.ignore_index;
    float sum[1] = {0.f};
    for (int64_t first = threadIdx.x; first < vectors; first += int64_t{blockDim.x} * kTogether) {
      float f[kTogether][N] = {}, t[kTogether][N] = {};
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int64_t v = first + int64_t{k} * blockDim.x;
        if (v < vectors && counts)
          Some::load_elements(x, v, a.cols, f[k]), Some::load_elements(target, v, a.cols, t[k]);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int64_t v = first + int64_t{k} * blockDim.x;
        if (v >= vectors) break;
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float term = 0.5f * fabsf(f[k][i] - t[k][i]);
          if (kByElement && (kWhole || v * N + i < a.cols)) a.loss[row * a.cols + v * N + i] = term;
          sum[0] += term;
          bits |= (f[k][i] > t[k][i] ? 1u << 2 * i : 0u) | (f[k][i] < t[k][i] ? 2u << 2 * i : 0u);
        }
        Some::store_bits(signs, v, bits);
      }
    }
    if (kByElement) continue;
    sum_of(sum);
    if (threadIdx.x == 0) a.loss[row] = sum[0];
  }
}

// A block has kSignVectors vectors of each of its threads, side by side: what is written at a time is contiguous.
constexpr int kSignVectors = 4;

template <class T, bool kWhole, bool kByElement>
__global__ void __launch_bounds__(kDivergenceThreads)
    tvd_of_signs(const Divergence a, int64_t blocks_of_row, const Divider by_blocks) {
  using Some = Quads<T, kWhole>;
  constexpr int N = Some::N;
  const int64_t vectors = (a.cols + N - 1) / N, bytes = (a.cols + 3) / 4;
  grid_dependency_wait();
  for (int64_t block = blockIdx.x; block < a.rows * blocks_of_row; block += gridDim.x) {
    const int64_t row = a.rows * blocks_of_row > INT32_MAX ? block / blocks_of_row : by_blocks(uint32_t(block));
    const int64_t first = (block - row * blocks_of_row) * kSignVectors * blockDim.x + threadIdx.x;
    const uint8_t* signs = a.signs + row * bytes;
    T* dx = static_cast<T*>(a.dx) + row * a.cols;
    const float of_row = kByElement ? 0.f : 0.5f * a.dloss[row];
    uint32_t bits[kSignVectors];
#pragma unroll
    for (int k = 0; k < kSignVectors; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      bits[k] = v < vectors ? Some::load_bits(signs, v) : 0;
    }
#pragma unroll
    for (int k = 0; k < kSignVectors; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v >= vectors) break;
      float f[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const bool has = kWhole || v * N + i < a.cols;
        const float g = !kByElement ? of_row : has ? 0.5f * a.dloss[row * a.cols + v * N + i] : 0.f;
        const uint32_t above = bits[k] & 1u << 2 * i, below = bits[k] & 2u << 2 * i;
        f[i] = above ? g : below ? -g : 0.f;
        if (!kWhole && has) dx[v * N + i] = from_float<T>(f[i]);
      }
      if constexpr (kWhole) store_floats<N>(dx + v * N, f);
    }
  }
}

// Three walks over both rows: their log softmax, z - top - log_sum, whose two parts stay apart so that an offset that a
// row's logits have in common costs no bits; the sums of terms and slopes; the gradients.
template <class T, int N, Kind kKind>
__global__ void __launch_bounds__(kMaxThreads) divergence_of_logits(const OfLogits a) {
  __shared__ RowMax<2>::Memory tops;
  __shared__ RowSum<2>::Memory sums;
  RowMax<2> max_of(tops);
  RowSum<2> sum_of(sums, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    T* z = static_cast<T*>(a.z) + row * a.z_stride;
    const T* target = static_cast<const T*>(a.target) + row * a.target_stride;
    const auto both = [&](auto many, int64_t c, auto& f, auto& t) {
      load_floats<many.N>(z + c, f);
      load_floats<many.N>(target + c, t);
#pragma unroll
      for (int i = 0; i < many.N; ++i) f[i] *= a.scale, t[i] *= a.scale;
    };
    SoftmaxState<> mine[2];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N], t[many.N];
      both(many, c, f, t);
      join(mine[0], f);
      join(mine[1], t);
    });
    float top[2] = {mine[0].max, mine[1].max};
    max_of(top);
    float log_sum[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) log_sum[k] = mine[k].sum * mine[k].weight_at(top[k]);
    sum_of(log_sum);
#pragma unroll
    for (int k = 0; k < 2; ++k) log_sum[k] = logf(log_sum[k]);
    const auto log_softmax = [&](float z, int k) { return (z - top[k]) - log_sum[k]; };
    float all[2] = {0.f, 0.f};  // terms, slopes
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N], t[many.N];
      both(many, c, f, t);
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        const Parts parts = parts_of<kKind, sizeof(T) == 2>(log_softmax(f[i], 0), log_softmax(t[i], 1), a.beta);
        all[0] += parts.term, all[1] += parts.slope;
      }
    });
    sum_of(all);
    if (threadIdx.x == 0) a.loss[row] = all[0];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N], t[many.N];
      both(many, c, f, t);
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        const float x = log_softmax(f[i], 0);
        f[i] = (parts_of<kKind, sizeof(T) == 2>(x, log_softmax(t[i], 1), a.beta).slope -
                softmax_exp<sizeof(T) == 2>(x) * all[1]) *
               a.scale;
      }
      store_floats<many.N>(z + c, f);
    });
  }
}

template <class Fn>
void with_kind(Kind kind, const Fn& fn) {
  switch (kind) {
    case Kind::kKl:
      return fn.template operator()<Kind::kKl>();
    case Kind::kForward:
      return fn.template operator()<Kind::kForward>();
    case Kind::kReverse:
      return fn.template operator()<Kind::kReverse>();
    case Kind::kMixed:
      return fn.template operator()<Kind::kMixed>();
    case Kind::kTvd:
      return fn.template operator()<Kind::kTvd>();
  }
}

template <class T, int N>
void launch_divergence(const Divergence& a, Stream stream) {
  const int threads = std::min(kDivergenceThreads, threads_for(a.cols, 2 * N));
  if (a.signs != nullptr) {
    const auto run = [&]<bool kByElement>() {
      constexpr bool kWhole = N > 1;
      if (a.dx == nullptr)
        return launch_after(&tvd_signs<T, kWhole, kByElement>, blocks_for(a.rows), threads, stream, a);
      constexpr int64_t kOfThread = Quads<T, kWhole>::N * kSignVectors;
      const int some = std::min(kDivergenceThreads, threads_for(a.cols, kOfThread));
      const int64_t blocks = std::max<int64_t>(1, divide_up(a.cols, kOfThread * some));
      launch_after(&tvd_of_signs<T, kWhole, kByElement>, blocks_for(a.rows * blocks), some, stream, a, blocks,
                   Divider(blocks));
    };
    return a.by_element ? run.template operator()<true>() : run.template operator()<false>();
  }
  with_kind(a.kind, [&]<Kind kKind>() {
    const auto kernel = a.dx == nullptr ? &divergence_forward<T, N, kKind> : &divergence_backward<T, N, kKind>;
    launch(kernel, blocks_for(a.rows), threads, stream, a);
  });
}
constexpr int64_t kMaxHeld = 1024;  // vectors of a row that a block's registers hold; longer ones are streamed

// False where both rows do not fit on the chip.
template <class T, Kind kKind>
bool launch_on_chip(const OfLogits& a, Stream stream) {
  constexpr int N = kPerVector<T>, kVectors = kLogitsElements / N, kHeldVectors = 4;
  if (a.cols % N != 0) return false;
  const int64_t vectors = a.cols / N;
  if (vectors <= kMaxHeld) {
    const HeldPlan p = plan_held(
        {.rows = a.rows, .cols = a.cols, .element_size = size_of(a.dtype), .aligned = true},
        {.max_cluster = 1, .vectors = kHeldVectors, .long_vectors = kHeldVectors, .cluster_vectors = kHeldVectors});
    if (p.vectors == 0 || a.rows > p.rows_per_launch) return false;
    launch_after(p.groups > 1 ? &logits_held<T, kHeldVectors, Hold::kGroups, kKind>
                              : &logits_held<T, kHeldVectors, Hold::kBlock, kKind>,
                 p.blocks(a.rows), p.threads(), stream, a, p.lanes);
    return true;
  }
  if (max_cluster() == 1) return false;
  const auto cluster_of = [&](int threads) {
    int cluster = 2;
    while (int64_t{cluster} * kVectors * threads < vectors) cluster *= 2;
    return cluster;
  };
  const auto streamed = [&]<int kThreads>(int most) {
    constexpr auto kKernel = &logits_streamed<T, kKind, kThreads>;
    const int cluster = cluster_of(most);
    if (cluster > (sizeof(T) == 2 ? max_cluster() : kLogitsCluster)) return false;
    const int threads = kThreads > 0 ? kThreads : int(divide_up(divide_up(vectors, cluster * kVectors), 32) * 32);
    const int64_t bytes = kVectorBytes * kLogitsDepth * 2 * kVectors * threads;
    const int64_t clusters = std::min(a.rows, clusters_at_once<kKernel>(bytes, threads, cluster));
    if (clusters > 0) launch_after_with_memory<kKernel>(bytes, clusters * cluster, threads, cluster, stream, a);
    return clusters > 0;
  };
  if constexpr (sizeof(T) == 2) {
    if (vectors > 2 * kVectors * kLogitsFewThreads)
      return cluster_of(384) == cluster_of(512) ? streamed.template operator()<384>(384)
                                                : streamed.template operator()<512>(512);
  }
  return streamed.template operator()<0>(kLogitsFewThreads);  // of 32 bits no more fit into shared memory
}

template <class T, int N, Kind kKind>
void launch_logits(const OfLogits& a, Stream stream) {
  if constexpr (N > 1) {
    if (launch_on_chip<T, kKind>(a, stream)) return;
  }
  launch(&divergence_of_logits<T, N, kKind>, blocks_for(a.rows), threads_for(a.cols, N), stream, a);
}
template <class T, int N>
void launch_of_logits(const OfLogits& a, Stream stream) {
  if (a.kind == Kind::kForward)
    launch_logits<T, N, Kind::kForward>(a, stream);
  else if (a.kind == Kind::kReverse)
    launch_logits<T, N, Kind::kReverse>(a, stream);
  else
    launch_logits<T, N, Kind::kMixed>(a, stream);
}

}  // namespace

void divergence(const Divergence& a, Stream stream) {
  if (a.rows == 0) return;
  const auto at = [&](const void* data, int64_t stride) { return addresses(data, stride, a.dtype, a.rows); };
  // Of what is read and written: with signs backward reads no rows. Their bytes end where a row's vectors do.
  const bool reads = a.x != nullptr;
  const bool whole = whole_vectors(a.rows, reads ? at(a.x, a.x_stride) | at(a.target, a.target_stride) : uint64_t{0},
                                   a.dx == nullptr ? uint64_t{0} : at(a.dx, a.cols)) &&
                     (a.signs == nullptr || a.cols * size_of(a.dtype) % kVectorBytes == 0);
  with_dtype(a.dtype, [&]<typename T>() {
    whole ? launch_divergence<T, kPerVector<T>>(a, stream) : launch_divergence<T, 1>(a, stream);
  });
}

void of_logits(const OfLogits& a, Stream stream) {
  if (a.rows == 0) return;
  const auto at = [&](const void* data, int64_t stride) { return addresses(data, stride, a.dtype, a.rows); };
  const bool whole = whole_vectors(a.rows, at(a.z, a.z_stride), at(a.target, a.target_stride));
  with_dtype(a.dtype, [&]<typename T>() {
    whole ? launch_of_logits<T, kPerVector<T>>(a, stream) : launch_of_logits<T, 1>(a, stream);
  });
}

}  // namespace probability::cuda
