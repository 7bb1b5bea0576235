// Softmax and sparsemax on a GPU: rows in registers (held.cuh), longer ones of softmax streamed (streamed.cuh); those
// that fit nowhere or are not at whole vectors are read again from L1 or L2, where they have just been.
#include "kernels/common/gpu/tile/held_rows.h"
#include "kernels/probability/cuda/held.cuh"
#include "kernels/probability/cuda/probability.h"
#include "kernels/probability/cuda/streamed.cuh"

namespace probability::cuda {
namespace {

using namespace probability::gpu;

struct Shared {
  RowMax<1>::Memory top;
  RowSum<1>::Memory one;
  RowSum<2>::Memory two;
};

template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) softmax_forward(const Softmax a) {
  __shared__ Shared shared;
  RowMax<1> max_of(shared.top);
  RowSum<1> sum_of(shared.one, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* y = static_cast<T*>(a.out) + row * a.cols;
    SoftmaxState<> mine;
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
      join(mine, f);
    });
    float top[1] = {mine.max};
    max_of(top);
    float total[1] = {mine.sum * mine.weight_at(top[0])};
    sum_of(total);
    const float share = 1.f / total[0];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
#pragma unroll
      for (int i = 0; i < many.N; ++i) f[i] = expf(f[i] - top[0]) * share;
      store_floats<many.N>(y + c, f);
    });
  }
}

// The threshold as on the CPU; every thread knows the same sums, and so takes as many steps.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) sparsemax_forward(const Softmax a) {
  __shared__ Shared shared;
  RowMax<1> max_of(shared.top);
  RowSum<2> sums_of(shared.two, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* y = static_cast<T*>(a.out) + row * a.cols;
    float top[1] = {-INFINITY};
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
#pragma unroll
      for (int i = 0; i < many.N; ++i) top[0] = fmaxf(top[0], f[i]);
    });
    max_of(top);
    float threshold = -1.f, before = INFINITY;
    while (true) {
      float above[2] = {0.f, 0.f};  // their sum and their number
      walk<N>(a.cols, [&](auto many, int64_t c) {
        float f[many.N];
        load_floats<many.N>(x + c, f);
#pragma unroll
        for (int i = 0; i < many.N; ++i) {
          const float v = f[i] - top[0];
          if (v > threshold) above[0] += v, above[1] += 1.f;
        }
      });
      sums_of(above);
      if (!(above[1] < before)) break;
      threshold = (above[0] - 1.f) / above[1];
      before = above[1];
    }
    const float from = top[0] + threshold;
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
#pragma unroll
      for (int i = 0; i < many.N; ++i) f[i] = f[i] - from < 0.f ? 0.f : f[i] - from;
      store_floats<many.N>(y + c, f);
    });
  }
}

template <class T, int N, bool kSparse>
__global__ void __launch_bounds__(kMaxThreads) softmax_backward(const Softmax a) {
  __shared__ Shared shared;
  RowSum<2> sums_of(shared.two, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* y = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* dy = static_cast<const T*>(a.dy) + row * a.dy_stride;
    T* dx = static_cast<T*>(a.out) + row * a.cols;
    float sums[2] = {0.f, 0.f};  // sparse: of dy over y > 0, and their number; else of dy y
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float p[many.N], g[many.N];
      load_floats<many.N>(y + c, p);
      load_floats<many.N>(dy + c, g);
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        if constexpr (kSparse) {
          if (p[i] > 0.f) sums[0] += g[i], sums[1] += 1.f;
        } else {
          sums[0] += p[i] * g[i];
        }
      }
    });
    sums_of(sums);
    const float level = kSparse ? sums[0] / sums[1] : sums[0];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float p[many.N], g[many.N];
      load_floats<many.N>(y + c, p);
      load_floats<many.N>(dy + c, g);
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        if constexpr (kSparse)
          g[i] = p[i] > 0.f ? g[i] - level : 0.f;
        else
          g[i] = p[i] * (g[i] - level);
      }
      store_floats<many.N>(dx + c, g);
    });
  }
}

template <class T, int N>
void launch_two_pass(const Softmax& a, Stream stream) {
  const auto kernel = a.dy == nullptr ? (a.sparse ? &sparsemax_forward<T, N> : &softmax_forward<T, N>)
                      : a.sparse      ? &softmax_backward<T, N, true>
                                      : &softmax_backward<T, N, false>;
  launch(kernel, blocks_for(a.rows), threads_for(a.cols, N), stream, a);
}

// Vectors of a thread: in rows of a block, in longer ones, and in those of a cluster. Its barriers hide behind what
// other blocks have in flight: eight vectors a thread, or two tensors of four. Sparsemax has more of them, and does
// with fewer threads. 0: longer rows are streamed.
struct Vectors {
  int block, longer, cluster;
};
constexpr Vectors kForward{4, 8, 0}, kSparse{8, 8, 8}, kBackward{4, 4, 4};

template <Vectors kEach, class Fn>  // fn<kVectors, kHold>()
void with_hold(const HeldPlan& p, const Fn& fn) {
  if constexpr (kEach.cluster > 0) {
    if (p.cluster > 1) return fn.template operator()<kEach.cluster, Hold::kCluster>();
  }
  if (p.groups == 1) {
    if (p.vectors == kEach.block) return fn.template operator()<kEach.block, Hold::kBlock>();
    return fn.template operator()<kEach.longer, Hold::kBlock>();
  }
  if (p.vectors == 4) return fn.template operator()<4, Hold::kGroups>();
  return p.vectors == 2 ? fn.template operator()<2, Hold::kGroups>() : fn.template operator()<1, Hold::kGroups>();
}

// False where the rows are too long for a cluster.
template <class T>
bool launch_streamed(const Softmax& a, Stream stream) {
  const int64_t vectors = a.cols / kPerVector<T>;
  const auto cluster_of = [&](int threads) {
    int cluster = 2;
    while (int64_t{cluster} * kStreamVectors * threads < vectors) cluster *= 2;
    return cluster;
  };
  const auto streamed = [&]<int kThreads>() {
    constexpr int64_t kBytes = kVectorBytes * kStreamDepth * kStreamVectors * kThreads;
    constexpr auto kKernel = &softmax_streamed<T, kThreads>;
    const int cluster = cluster_of(kThreads);
    if (cluster > max_cluster()) return false;
    const int64_t clusters = std::min(a.rows, clusters_at_once<kKernel>(kBytes, kThreads, cluster));
    if (clusters > 0) launch_after_with_memory<kKernel>(kBytes, clusters * cluster, kThreads, cluster, stream, a);
    return clusters > 0;
  };
  return cluster_of(384) == cluster_of(512) ? streamed.template operator()<384>() : streamed.template operator()<512>();
}

template <auto kKernel>
void launch_held(const Softmax& a, const HeldPlan& p, Stream stream) {
  for (int64_t first = 0; first < a.rows; first += p.rows_per_launch) {
    Softmax some = a;
    some.x = moved(a.x, first, a.x_stride, a.dtype);
    some.dy = moved(a.dy, first, a.dy_stride, a.dtype);
    some.out = moved(a.out, first, a.cols, a.dtype);
    some.rows = std::min(p.rows_per_launch, a.rows - first);
    launch_after_with_memory<kKernel>(0, p.blocks(some.rows), p.threads(), p.cluster, stream, some, p.lanes);
  }
}

}  // namespace

void softmax(const Softmax& a, Stream stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const auto at = [&](const void* data, int64_t stride) { return addresses(data, stride, a.dtype, a.rows); };
  const bool whole = whole_vectors(a.rows, at(a.x, a.x_stride), at(a.out, a.cols),
                                   a.dy == nullptr ? uint64_t{0} : at(a.dy, a.dy_stride));
  with_dtype(a.dtype, [&]<typename T>() {
    const auto run = [&]<Vectors kEach>(const auto& held) {
      const HeldPlan p = plan_held({.rows = a.rows, .cols = a.cols, .element_size = size_of(a.dtype), .aligned = whole},
                                   {.max_cluster = kEach.cluster > 0 ? max_cluster() : 1,
                                    .vectors = kEach.block,
                                    .long_vectors = kEach.longer,
                                    .cluster_vectors = kEach.cluster});
      if constexpr (kEach.cluster == 0) {
        if (p.vectors == 0 && whole && a.cols % kPerVector<T> == 0 && launch_streamed<T>(a, stream)) return;
      }
      if (p.vectors == 0)
        return whole ? launch_two_pass<T, kPerVector<T>>(a, stream) : launch_two_pass<T, 1>(a, stream);
      with_hold<kEach>(p, [&]<int kVectors, Hold kHold>() { held.template operator()<kVectors, kHold>(p); });
    };
    if (a.dy == nullptr && a.sparse)
      run.template operator()<kSparse>([&]<int kVectors, Hold kHold>(const HeldPlan& p) {
        launch_held<&sparsemax_held<T, kVectors, kHold>>(a, p, stream);
      });
    else if (a.dy == nullptr)
      run.template operator()<kForward>([&]<int kVectors, Hold kHold>(const HeldPlan& p) {
        launch_held<&softmax_held<T, kVectors, kHold>>(a, p, stream);
      });
    else
      run.template operator()<kBackward>([&]<int kVectors, Hold kHold>(const HeldPlan& p) {
        a.sparse ? launch_held<&softmax_backward_held<T, kVectors, kHold, true>>(a, p, stream)
                 : launch_held<&softmax_backward_held<T, kVectors, kHold, false>>(a, p, stream);
      });
  });
}

}  // namespace probability::cuda
