// Rows of probabilities on the CPU. Compiled once per ISA.
#include "kernels/probability/probability.h"

#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/cpu/tree_max.h"

namespace probability::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

constexpr float kInf = __builtin_inff();

template <class T>
static const T* row_of(const void* data, int64_t row, int64_t stride) {
  return static_cast<const T*>(data) + row * stride;
}
template <class T>
static T* row_of(void* data, int64_t row, int64_t stride) {
  return static_cast<T*>(data) + row * stride;
}

template <class T>
static float row_max(const T* x, int64_t n) {
  F most = splat<F>(-kInf);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = max(load(x + i), most);
  float top = tree_max(most);
  for (; i < n; ++i) top = to_float(x[i]) > top ? to_float(x[i]) : top;
  return top;
}

template <Precision kPrecision>
HOTSWAP_INLINE F exp_to(F x) {
  const auto e = exp_parts<kPrecision>(clamp(x, -104.f, 89.f));
  return scale2(e.p, e.n, e.n_bits);
}

template <Precision kPrecision = Precision::kFull, class T>
static float row_exps(const T* x, int64_t n, float top, float scale = 1.f) {  // sum of e^(scale (x - top))
  return sweep_sum(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    return keep(exp_to<kPrecision>((load(x + i, count) - top) * scale), count);
  });
}

struct Pair {
  float a, b;
};
// Sums over a row of two terms at once, fn(i, count, a, b) adding to a and b; a block at a time, so that what is added
// is never much smaller than its sum.
template <class Fn>
HOTSWAP_INLINE Pair sum_pairs(int64_t n, Fn fn) {
  constexpr int64_t kBlock = 1024;
  Pair total{0.f, 0.f};
  for (int64_t first = 0; first < n; first += kBlock) {
    F a{}, b{};
    sweep(n - first < kBlock ? n - first : kBlock,
          [&](int64_t i, auto count) HOTSWAP_LAMBDA { fn(first + i, count, a, b); });
    total.a += sum(a);
    total.b += sum(b);
  }
  return total;
}

// The sum and the number of term(i, count) where chosen(i, count).
template <class Chosen, class Term>
HOTSWAP_INLINE Pair sum_where(int64_t n, Chosen chosen, Term term) {
  return sum_pairs(n, [&](int64_t i, auto count, F& of, F& number) HOTSWAP_LAMBDA {
    const I mask = chosen(i, count);
    of += keep(select(mask, term(i, count), F{}), count);
    number += keep(select(mask, splat<F>(1.f), F{}), count);
  });
}

// ---- softmax and sparsemax

// x - top - threshold is a probability where it is positive. The threshold rises from -1, below all: the mean of what
// is above it, less 1 / their number; what it then leaves below only falls. Exact after as many steps as sets change.
template <class T>
static float sparse_threshold(const T* x, int64_t n, float top) {
  float threshold = -1.f, before = kInf;
  while (true) {
    const Pair above = sum_where(
        n, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return (I)(load(x + i, count) - top > threshold); },
        [&](int64_t i, auto count) HOTSWAP_LAMBDA { return load(x + i, count) - top; });
    if (!(above.b < before)) return threshold;
    threshold = (above.a - 1.f) / above.b;
    before = above.b;
  }
}

template <bool kStream, class T>
static void softmax_row(const Softmax& a, const T* x, T* y) {
  const float top = row_max(x, a.cols);
  if (a.sparse) {
    const float from = top + sparse_threshold(x, a.cols, top);
    sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      const F v = load(x + i, count) - from;
      write<kStream>(y + i, select((I)(v < splat<F>(0.f)), F{}, v), count);
    });
    return;
  }
  constexpr Precision kPrecision = kPrecisionOf<T>;
  constexpr int64_t kKept = 1024;  // elements whose exponentials stay in the first cache
  if (a.cols <= kKept) {
    float kept[kKept + kLanes];
    const float share = 1.f / sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
                          const F e = keep(exp_to<kPrecision>(load(x + i, count) - top), count);
                          store(kept + i, e);
                          return e;
                        });
    sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { write<kStream>(y + i, load(kept + i) * share, count); });
    return;
  }
  const float share = 1.f / row_exps<kPrecision>(x, a.cols, top);
  sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    write<kStream>(y + i, exp_to<kPrecision>(load(x + i, count) - top) * share, count);
  });
}

template <bool kStream, class T>
static void softmax_gradient_row(const Softmax& a, const T* y, const T* dy, T* dx) {
  if (a.sparse) {
    const auto above = [&](int64_t i, auto count) HOTSWAP_LAMBDA { return (I)(load(y + i, count) > splat<F>(0.f)); };
    const Pair s = sum_where(a.cols, above, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return load(dy + i, count); });
    const float mean = s.a / s.b;
    sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      write<kStream>(dx + i, select(above(i, count), load(dy + i, count) - mean, F{}), count);
    });
    return;
  }
  const float dot =
      sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return load(dy + i, count) * load(y + i, count); });
  sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    write<kStream>(dx + i, load(y + i, count) * (load(dy + i, count) - dot), count);
  });
}

template <bool kStream, class T>
static void softmax_rows(const Softmax& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row_of<T>(a.x, r, a.x_stride);
    T* out = row_of<T>(a.out, r, a.cols);
    a.dy == nullptr ? softmax_row<kStream>(a, x, out)
                    : softmax_gradient_row<kStream>(a, x, row_of<T>(a.dy, r, a.dy_stride), out);
  }
  if (kStream) stream_fence();
}

static void softmax(const Softmax& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    const bool stream = a.stream && a.cols % kLanes == 0 && can_stream(static_cast<const T*>(a.out));
    stream ? softmax_rows<true, T>(a, begin, end) : softmax_rows<false, T>(a, begin, end);
  });
}

// ---- divergences

struct Parts {
  F term, slope;
};
HOTSWAP_INLINE F zero_where_zero(F probability, F v) { return select((I)(probability == splat<F>(0.f)), F{}, v); }

struct Kl {
  float eps;
  __attribute__((always_inline)) Parts operator()(F x, F p) const {
    return {zero_where_zero(p, p * (log(max(p, splat<F>(eps))) - x)), -p};
  }
};
struct Forward {
  float beta;
  __attribute__((always_inline)) Parts operator()(F x, F target) const {
    const F p = exp(target);
    return {zero_where_zero(p, p * (target - x)), -p};
  }
};
struct Reverse {
  float beta;
  __attribute__((always_inline)) Parts operator()(F x, F target) const {
    const F q = exp(x), term = zero_where_zero(q, q * (x - target));
    return {term, term + q};
  }
};
struct Mixed {
  float beta;
  __attribute__((always_inline)) Parts operator()(F x, F target) const {
    // log m from the larger of both, so that the differences to it are as exact as the one between them.
    const F d = target - x, p = exp(target), q = exp(x);
    const I more = (I)(d >= splat<F>(0.f));
    const F of_larger = select(more, splat<F>(beta), splat<F>(1.f - beta));
    const F rest = log(of_larger + (1.f - of_larger) * exp(-abs(d)));
    const F to_x = select(more, -d, F{}) - rest, to_target = select(more, F{}, d) - rest;
    const F slope = zero_where_zero(q, (1.f - beta) * q * to_x);
    return {zero_where_zero(p, beta * p * to_target) + slope, slope};
  }
};
struct Tvd {
  float unused;
  __attribute__((always_inline)) Parts operator()(F x, F target) const {
    const F half = splat<F>(0.5f);
    return {half * abs(x - target), select((I)(x > target), half, select((I)(x < target), -half, F{}))};
  }
};

template <class Fn>
HOTSWAP_INLINE void with_kind(Kind kind, float parameter, Fn fn) {
  switch (kind) {
    case Kind::kKl:
      return fn(Kl{parameter > 1.2e-38f ? parameter : 1.2e-38f});  // log wants a normal number
    case Kind::kForward:
      return fn(Forward{parameter});
    case Kind::kReverse:
      return fn(Reverse{parameter});
    case Kind::kMixed:
      return fn(Mixed{parameter});
    case Kind::kTvd:
      return fn(Tvd{parameter});
  }
}

template <class T, class Of>
static void forward_rows(const Divergence& a, Of of, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T *x = row_of<T>(a.x, r, a.x_stride), *target = row_of<T>(a.target, r, a.target_stride);
    float* loss = a.loss + (a.by_element ? r * a.cols : r);
    const auto term = [&](int64_t i, auto count)
                          HOTSWAP_LAMBDA { return of(load(x + i, count), load(target + i, count)).term; };
    const bool counts = a.label == nullptr || a.label[r] != a.ignore_index;
    if (!a.by_element)
      *loss = counts
                  ? sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return keep(term(i, count), count); })
                  : 0.f;
    else if (counts)
      sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(loss + i, term(i, count), count); });
    else
      __builtin_memset(loss, 0, sizeof(float) * a.cols);
  }
}

template <class T, class Of>
static void backward_rows(const Divergence& a, Of of, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T *x = row_of<T>(a.x, r, a.x_stride), *target = row_of<T>(a.target, r, a.target_stride);
    T* dx = row_of<T>(a.dx, r, a.cols);
    if (a.label != nullptr && a.label[r] == a.ignore_index) {
      __builtin_memset(dx, 0, sizeof(T) * a.cols);
      continue;
    }
    const float* dloss = a.dloss + (a.by_element ? r * a.cols : r);
    sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      const F g = a.by_element ? load(dloss + i, count) : splat<F>(*dloss);
      store(dx + i, g * of(load(x + i, count), load(target + i, count)).slope, count);
    });
  }
}

// ---- tvd by its signs, four columns a byte

template <class T>
static void write_signs(const Divergence& a, int64_t begin, int64_t end) {
  const int64_t bytes = (a.cols + 3) / 4;
  for (int64_t r = begin; r < end; ++r) {
    const T *x = row_of<T>(a.x, r, a.x_stride), *target = row_of<T>(a.target, r, a.target_stride);
    uint8_t* signs = a.signs + r * bytes;
    if (a.label != nullptr && a.label[r] == a.ignore_index) {
      __builtin_memset(signs, 0, size_t(bytes));
      continue;
    }
    for (int64_t b = 0; b < bytes; ++b) {
      unsigned bits = 0;
      for (int64_t i = 0; i < 4 && 4 * b + i < a.cols; ++i) {
        const float f = to_float(x[4 * b + i]), t = to_float(target[4 * b + i]);
        bits |= unsigned((f > t) | (f < t) << 1) << 2 * i;
      }
      signs[b] = uint8_t(bits);
    }
  }
}

template <class T>
static void rows_of_signs(const Divergence& a, int64_t begin, int64_t end) {
  constexpr float kSlope[4] = {0.f, 0.5f, -0.5f, 0.f};
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* signs = a.signs + r * ((a.cols + 3) / 4);
    const float* dloss = a.dloss + (a.by_element ? r * a.cols : r);
    T* dx = row_of<T>(a.dx, r, a.cols);
    for (int64_t c = 0; c < a.cols; ++c) {
      const float slope = kSlope[signs[c / 4] >> 2 * (c % 4) & 3];
      // 0 also times infinity: an ignored row has no gradient
      dx[c] = from_float<T>(slope == 0.f ? 0.f : slope * dloss[a.by_element ? c : 0]);
    }
  }
}

static void divergence_forward(const Divergence& a, int64_t begin, int64_t end) {
  if (a.signs != nullptr) with_dtype(a.dtype, [&]<typename T>() { write_signs<T>(a, begin, end); });
  with_dtype(a.dtype, [&]<typename T>() {
    with_kind(a.kind, a.parameter, [&](auto of) { forward_rows<T>(a, of, begin, end); });
  });
}
static void divergence_backward(const Divergence& a, int64_t begin, int64_t end) {
  if (a.signs != nullptr) return with_dtype(a.dtype, [&]<typename T>() { rows_of_signs<T>(a, begin, end); });
  with_dtype(a.dtype, [&]<typename T>() {
    with_kind(a.kind, a.parameter, [&](auto of) { backward_rows<T>(a, of, begin, end); });
  });
}

// ---- of logits, whose gradients take their place

// log softmax(scale z) = scale (z - top) - log_sum: an offset that all of z have in common is gone before it can cost
// bits.
struct LogSoftmax {
  float top, scale, log_sum;
  template <class V>
  __attribute__((always_inline)) V operator()(V z) const {
    return (z - top) * scale - log_sum;
  }
};
template <class T>
static LogSoftmax log_softmax_of(const T* z, int64_t n, float scale) {
  const float top = row_max(z, n);
  return {top, scale, __builtin_logf(row_exps(z, n, top, scale))};
}

template <class T, class Of>
static void logits_rows(const OfLogits& a, Of of, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* z = row_of<T>(a.z, r, a.z_stride);
    const T* target = row_of<T>(a.target, r, a.target_stride);
    const LogSoftmax of_z = log_softmax_of(z, a.cols, a.scale), of_target = log_softmax_of(target, a.cols, a.scale);
    const Pair sums = sum_pairs(a.cols, [&](int64_t i, auto count, F& terms, F& slopes) HOTSWAP_LAMBDA {
      const Parts parts = of(of_z(load(z + i, count)), of_target(load(target + i, count)));
      terms += keep(parts.term, count);
      slopes += keep(parts.slope, count);
    });
    a.loss[r] = sums.a;
    sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      const F x = of_z(load(z + i, count));
      const Parts parts = of(x, of_target(load(target + i, count)));
      store(z + i, (parts.slope - exp(x) * sums.b) * a.scale, count);
    });
  }
}

static void of_logits(const OfLogits& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype,
             [&]<typename T>() { with_kind(a.kind, a.beta, [&](auto of) { logits_rows<T>(a, of, begin, end); }); });
}

const Table kTable = {
    .softmax = softmax,
    .divergence_forward = divergence_forward,
    .divergence_backward = divergence_backward,
    .of_logits = of_logits,
};

}  // namespace probability::HOTSWAP_ISA
