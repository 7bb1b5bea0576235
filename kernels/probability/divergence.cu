// Divergences of two rows on a GPU: of probabilities or their logarithms, and of logits, whose gradients take their
// place.
#include "kernels/probability/probability_cuda.h"
#include "kernels/probability/rows.cuh"

namespace probability::cuda {
namespace {

using namespace probability::gpu;

struct Parts {
  float term, slope;
};
__device__ __forceinline__ float zero_where_zero(float probability, float v) { return probability == 0.f ? 0.f : v; }

template <Kind kKind>
__device__ __forceinline__ Parts parts_of(float x, float target, float parameter) {
  if constexpr (kKind == Kind::kKl) {
    return {zero_where_zero(target, target * (logf(fmaxf(target, parameter)) - x)), -target};
  } else if constexpr (kKind == Kind::kForward) {
    const float p = expf(target);
    return {zero_where_zero(p, p * (target - x)), -p};
  } else if constexpr (kKind == Kind::kReverse) {
    const float q = expf(x), term = zero_where_zero(q, q * (x - target));
    return {term, term + q};
  } else if constexpr (kKind == Kind::kMixed) {
    // log m from the larger of both, so that the differences to it are as exact as the one between them.
    const float beta = parameter, d = target - x, p = expf(target), q = expf(x);
    const bool more = d >= 0.f;
    const float of_larger = more ? beta : 1.f - beta;
    const float rest = logf(of_larger + (1.f - of_larger) * expf(-fabsf(d)));
    const float to_x = (more ? -d : 0.f) - rest, to_target = (more ? 0.f : d) - rest;
    const float slope = zero_where_zero(q, (1.f - beta) * q * to_x);
    return {zero_where_zero(p, beta * p * to_target) + slope, slope};
  } else {
    return {0.5f * fabsf(x - target), x > target ? 0.5f : x < target ? -0.5f : 0.f};
  }
}

template <class T, int N, Kind kKind>
__global__ void __launch_bounds__(kMostThreads) divergence_forward(const Divergence a) {
  __shared__ RowSum<1>::Memory memory;
  RowSum<1> sum_of(memory, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* target = static_cast<const T*>(a.target) + row * a.target_stride;
    const bool counts = a.label == nullptr || a.label[row] != a.ignore_index;
    float sum[1] = {0.f};
    if (counts || a.by_element) {
      walk<N>(a.cols, [&](auto many, int64_t c) {
        float f[many.N], t[many.N];
        load_floats<many.N>(x + c, f);
        load_floats<many.N>(target + c, t);
#pragma unroll
        for (int i = 0; i < many.N; ++i) {
          const float term = counts ? parts_of<kKind>(f[i], t[i], a.parameter).term : 0.f;
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
__global__ void __launch_bounds__(kMostThreads) divergence_backward(const Divergence a) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* target = static_cast<const T*>(a.target) + row * a.target_stride;
    T* dx = static_cast<T*>(a.dx) + row * a.cols;
    const bool counts = a.label == nullptr || a.label[row] != a.ignore_index;
    const float of_row = a.by_element || !counts ? 0.f : a.dloss[row];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N] = {}, t[many.N];
      if (counts) {
        load_floats<many.N>(x + c, f);
        load_floats<many.N>(target + c, t);
#pragma unroll
        for (int i = 0; i < many.N; ++i) {
          const float g = a.by_element ? a.dloss[row * a.cols + c + i] : of_row;
          f[i] = g * parts_of<kKind>(f[i], t[i], a.parameter).slope;
        }
      }
      store_floats<many.N>(dx + c, f);
    });
  }
}

// Three walks over both rows: their log softmax, z - top - log_sum, whose two parts stay apart so that an offset that a
// row's logits have in common costs no bits; the sums of terms and slopes; the gradients.
template <class T, int N, Kind kKind>
__global__ void __launch_bounds__(kMostThreads) divergence_of_logits(const OfLogits a) {
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
    Online mine[2];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N], t[many.N];
      both(many, c, f, t);
      mine[0].add(f);
      mine[1].add(t);
    });
    float top[2] = {mine[0].top, mine[1].top};
    max_of(top);
    float log_sum[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) log_sum[k] = mine[k].total * expf(mine[k].top - finite_or_zero(top[k]));
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
        const Parts parts = parts_of<kKind>(log_softmax(f[i], 0), log_softmax(t[i], 1), a.beta);
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
        f[i] = (parts_of<kKind>(x, log_softmax(t[i], 1), a.beta).slope - expf(x) * all[1]) * a.scale;
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
  with_kind(a.kind, [&]<Kind kKind>() {
    const auto kernel = a.dx == nullptr ? &divergence_forward<T, N, kKind> : &divergence_backward<T, N, kKind>;
    launch(kernel, blocks_for(a.rows), threads_for(a.cols, N), stream, a);
  });
}
template <class T, int N>
void launch_of_logits(const OfLogits& a, Stream stream) {
  const auto run = [&](auto kernel) { launch(kernel, blocks_for(a.rows), threads_for(a.cols, N), stream, a); };
  if (a.kind == Kind::kForward)
    run(&divergence_of_logits<T, N, Kind::kForward>);
  else if (a.kind == Kind::kReverse)
    run(&divergence_of_logits<T, N, Kind::kReverse>);
  else
    run(&divergence_of_logits<T, N, Kind::kMixed>);
}

}  // namespace

void divergence(const Divergence& a, Stream stream) {
  if (a.rows == 0) return;
  const auto at = [&](const void* data, int64_t stride) { return addresses(data, stride, a.dtype, a.rows); };
  const bool whole = whole_vectors(a.rows, at(a.x, a.x_stride), at(a.target, a.target_stride),
                                   a.dx == nullptr ? uint64_t{0} : at(a.dx, a.cols));
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
