// Dynamic tanh on the CPU. Compiled once per ISA.
#include "kernels/dyt/dyt.h"

#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/nontemporal.h"

namespace dyt::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

static const float* numbers(const Parameter& p) { return static_cast<const float*>(p.data); }

template <class T, bool kStream>
static void forward_rows(const Forward& a, int64_t begin, int64_t end) {
  const float alpha = *numbers(a.alpha);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    T* y = static_cast<T*>(a.y) + r * a.cols;
    sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      F v = tanh(load(x + i, count) * alpha) * load(numbers(a.gamma) + i, count);
      if (numbers(a.beta) != nullptr) v += load(numbers(a.beta) + i, count);
      write<kStream>(y + i, v, count);
    });
  }
  if (kStream) stream_fence();
}

static void forward(const Forward& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    const bool stream = a.stream && a.cols % kLanes == 0 && can_stream(static_cast<const T*>(a.y));
    stream ? forward_rows<T, true>(a, begin, end) : forward_rows<T, false>(a, begin, end);
  });
}

template <class T>
static void backward_chunk(const Backward& a, int64_t chunk) {
  const float alpha = *numbers(a.alpha);
  float *gammas = a.partial_gamma + chunk * a.cols, *betas = a.partial_beta + chunk * a.cols;
  __builtin_memset(gammas, 0, sizeof(float) * a.cols);
  __builtin_memset(betas, 0, sizeof(float) * a.cols);
  float alphas = 0.f;
  const int64_t last = (chunk + 1) * a.chunk < a.rows ? (chunk + 1) * a.chunk : a.rows;
  for (int64_t r = chunk * a.chunk; r < last; ++r) {
    const T *x = static_cast<const T*>(a.x) + r * a.x_stride, *dy = static_cast<const T*>(a.dy) + r * a.dy_stride;
    T* dx = static_cast<T*>(a.dx) + r * a.cols;
    alphas += sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      const F v = load(x + i, count), g = load(dy + i, count), t = tanh(v * alpha);
      const F s = g * load(numbers(a.gamma) + i, count) * (1.f - t * t);
      store(dx + i, s * alpha, count);
      store(gammas + i, load(gammas + i, count) + g * t, count);
      store(betas + i, load(betas + i, count) + g, count);
      return v * s;  // 0 past the end, as v is
    });
  }
  a.partial_alpha[chunk] = alphas;
}

static void backward(const Backward& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    for (int64_t chunk = begin; chunk < end; ++chunk) backward_chunk<T>(a, chunk);
  });
}

static void column_sum(const ColumnSum& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    sweep(end - begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      F total{};
      for (int64_t row = 0; row < a.rows; ++row) total += load(a.partial + row * a.cols + begin + i, count);
      store(static_cast<T*>(a.out) + begin + i, total, count);
    });
  });
}

const Table kTable = {.forward = forward, .backward = backward, .column_sum = column_sum};

}  // namespace dyt::HOTSWAP_ISA
