#include "kernels/activation/activation.h"

#include "kernels/common/cpu/activations.h"
#include "kernels/common/cpu/nontemporal.h"

namespace activation::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

template <class Fn>
static void with_function(Function function, Fn fn) {
#define ACTIVATION_CASE(Name) \
  case Function::k##Name:     \
    return fn.template operator()<Name>();
  switch (function) { ACTIVATION_FUNCTIONS(ACTIVATION_CASE); }
#undef ACTIVATION_CASE
}

template <class T>
static T* row(const void* data, int64_t r, int64_t stride) {
  return static_cast<T*>(const_cast<void*>(data)) + r * stride;
}

// ---- y = act(x)
template <class Act, class T, bool kStream>
HOTSWAP_INLINE void forward_row(T* y, const T* x, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    if constexpr (kStream) prefetch(x + i);
    write<kStream>(y + i, Act::template value<kPrecisionOf<T>>(load(x + i, count)), count);
  });
}
template <class Act, class T, bool kStream>
HOTSWAP_INLINE void backward_row(T* dx, const T* dy, const T* x, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    if constexpr (kStream) prefetch(x + i), prefetch(dy + i);
    write<kStream>(dx + i, load(dy + i, count) * Act::template both<kPrecisionOf<T>>(load(x + i, count)).slope, count);
  });
}

template <class Act, class T, bool kBackward>
static void unary_rows(const Unary& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* out = row<T>(a.out, r, a.cols);
    const T *x = row<T>(a.x, r, a.x_stride), *dy = kBackward ? row<T>(a.dy, r, a.dy_stride) : nullptr;
    const int64_t left = a.numel - r * a.cols, n = left < a.cols ? left : a.cols;
    const bool stream = a.stream && can_stream(out);
    if constexpr (kBackward) {
      if (stream)
        backward_row<Act, T, true>(out, dy, x, n);
      else
        backward_row<Act, T, false>(out, dy, x, n);
    } else {
      if (stream)
        forward_row<Act, T, true>(out, x, n);
      else
        forward_row<Act, T, false>(out, x, n);
    }
  }
  if (a.stream) stream_fence();
}

static void forward(const Unary& a, int64_t begin, int64_t end) {
  with_function(a.function, [&]<class Act>() {
    with_dtype(a.dtype, [&]<class T>() { unary_rows<Act, T, false>(a, begin, end); });
  });
}
static void backward(const Unary& a, int64_t begin, int64_t end) {
  with_function(a.function,
                [&]<class Act>() { with_dtype(a.dtype, [&]<class T>() { unary_rows<Act, T, true>(a, begin, end); }); });
}

// ---- y = act(gate) * up
template <class Act, class T, bool kStream>
HOTSWAP_INLINE void and_mul_row(T* y, const T* gate, const T* up, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    if constexpr (kStream) prefetch(gate + i), prefetch(up + i);
    write<kStream>(y + i, Act::template value<kPrecisionOf<T>>(load(gate + i, count)) * load(up + i, count), count);
  });
}
template <class Act, class T, bool kStream>
HOTSWAP_INLINE void and_mul_backward_row(T* dgate, T* dup, const T* dy, const T* gate, const T* up, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F g = load(dy + i, count);
    const Both act = Act::template both<kPrecisionOf<T>>(load(gate + i, count));
    write<kStream>(dgate + i, g * load(up + i, count) * act.slope, count);
    write<kStream>(dup + i, g * act.value, count);
  });
}

template <class Act, class T, bool kBackward>
static void and_mul_rows(const AndMul& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* out = row<T>(a.out, r, kBackward ? 2 * a.cols : a.cols);
    const T* gate = row<T>(a.x, r, a.x_stride);
    const bool stream = a.stream && can_stream(out) && (!kBackward || can_stream(out + a.cols));
    if constexpr (kBackward) {
      const T* dy = row<T>(a.dy, r, a.dy_stride);
      if (stream)
        and_mul_backward_row<Act, T, true>(out, out + a.cols, dy, gate, gate + a.cols, a.cols);
      else
        and_mul_backward_row<Act, T, false>(out, out + a.cols, dy, gate, gate + a.cols, a.cols);
    } else {
      if (stream)
        and_mul_row<Act, T, true>(out, gate, gate + a.cols, a.cols);
      else
        and_mul_row<Act, T, false>(out, gate, gate + a.cols, a.cols);
    }
  }
  if (a.stream) stream_fence();
}

static void and_mul_forward(const AndMul& a, int64_t begin, int64_t end) {
  with_function(a.function, [&]<class Act>() {
    with_dtype(a.dtype, [&]<class T>() { and_mul_rows<Act, T, false>(a, begin, end); });
  });
}
static void and_mul_backward(const AndMul& a, int64_t begin, int64_t end) {
  with_function(a.function, [&]<class Act>() {
    with_dtype(a.dtype, [&]<class T>() { and_mul_rows<Act, T, true>(a, begin, end); });
  });
}

const Table kTable = {
    .forward = forward,
    .backward = backward,
    .and_mul_forward = and_mul_forward,
    .and_mul_backward = and_mul_backward,
};

}  // namespace activation::HOTSWAP_ISA
