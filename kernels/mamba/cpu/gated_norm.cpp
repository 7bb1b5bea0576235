// Loops of gated_norm.h: a group is read twice, the second time from L1. Compiled once per ISA.
#include "kernels/mamba/gated_norm.h"

#include "kernels/mamba/cpu/gate.h"

namespace mamba::gated_norm::HOTSWAP_ISA {
namespace {

using namespace mamba::HOTSWAP_ISA;

template <class T>
T* row(const void* data, int64_t r, int64_t stride) {
  return static_cast<T*>(const_cast<void*>(data)) + r * stride;
}

// fn<T, kNormFirst>()
template <class Fn>
void with_kind(const Problem& p, Fn fn) {
  with_dtype(p.type, [&]<typename T>() {
    p.norm_first ? fn.template operator()<T, true>() : fn.template operator()<T, false>();
  });
}

template <class T, bool kNormFirst>
void forward_group(const Forward& a, int64_t r, int64_t g) {
  const Problem& p = a.of;
  const int64_t first = g * p.group;
  const T *x = row<T>(p.x, r, p.x_stride) + first, *z = row<T>(p.z, r, p.z_stride) + first;
  T* y = row<T>(a.y, r, p.cols) + first;
  const auto normed = [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F v = load(x + i, count);
    return kNormFirst ? v : v * gate_of(load(z + i, count)).value;
  };
  const float squares = sweep_sum(p.group, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F u = normed(i, count);
    return u * u;
  });
  const float rstd = 1.f / __builtin_sqrtf(squares / float(p.group) + p.eps);
  if (a.rstd != nullptr) a.rstd[r * (p.cols / p.group) + g] = rstd;
  sweep(p.group, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    F v = normed(i, count) * rstd * load(p.weight + first + i, count);
    if constexpr (kNormFirst) v *= gate_of(load(z + i, count)).value;
    store(y + i, v, count);
  });
}

void forward(const Forward& a, int64_t begin, int64_t end) {
  with_kind(a.of, [&]<typename T, bool kNormFirst>() {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t g = 0; g < a.of.cols / a.of.group; ++g) forward_group<T, kNormFirst>(a, r, g);
    }
  });
}

template <class T, bool kNormFirst>
void backward_group(const Backward& a, int64_t r, int64_t g, float* dweight) {
  const Problem& p = a.of;
  const int64_t first = g * p.group;
  const T *x = row<T>(p.x, r, p.x_stride) + first, *z = row<T>(p.z, r, p.z_stride) + first;
  const T* dy = row<T>(a.dy, r, a.dy_stride) + first;
  T *dx = row<T>(a.dx, r, p.cols) + first, *dz = row<T>(a.dz, r, p.cols) + first;
  const float* weight = p.weight + first;
  const float rstd = a.rstd[r * (p.cols / p.group) + g];
  // g u is dy weight x silu(z) either way
  const float dot = sweep_sum(p.group, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    return load(dy + i, count) * load(weight + i, count) * load(x + i, count) * gate_of(load(z + i, count)).value;
  });
  const float slope = dot * rstd * rstd / float(p.group);  // n mean(g n) = u slope
  sweep(p.group, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F d = load(dy + i, count), v = load(x + i, count), g_all = d * load(weight + i, count);
    const Gate gate = gate_of(load(z + i, count));
    if constexpr (kNormFirst) {
      store(dx + i, rstd * (g_all * gate.value - v * slope), count);
      store(dz + i, g_all * v * rstd * gate.slope, count);
    } else {
      const F du = rstd * (g_all - v * gate.value * slope);
      store(dx + i, du * gate.value, count);
      store(dz + i, du * v * gate.slope, count);
    }
    store(dweight + first + i, load(dweight + first + i, count) + d * v * rstd * gate.value, count);
  });
}

void backward(const Backward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  with_kind(p, [&]<typename T, bool kNormFirst>() {
    for (int64_t k = begin; k < end; ++k) {
      float* dweight = a.partial + k * p.cols;
      sweep(p.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(dweight + i, F{}, count); });
      const int64_t last = (k + 1) * p.chunk() < p.rows ? (k + 1) * p.chunk() : p.rows;
      for (int64_t r = k * p.chunk(); r < last; ++r) {
        for (int64_t g = 0; g < p.cols / p.group; ++g) backward_group<T, kNormFirst>(a, r, g, dweight);
      }
    }
  });
}

void sum_partial(const Backward& a, int64_t begin, int64_t end) {
  const int64_t chunks = a.of.chunks(), cols = a.of.cols;
  with_dtype(a.weight_type, [&]<typename W>() {
    sweep(end - begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      F total{};
      for (int64_t k = 0; k < chunks; ++k) total += load(a.partial + k * cols + begin + i, count);
      store(static_cast<W*>(a.dweight) + begin + i, total, count);
    });
  });
}

}  // namespace

const Table kTable = {.forward = forward, .backward = backward, .sum_partial = sum_partial};

}  // namespace mamba::gated_norm::HOTSWAP_ISA
