#include "kernels/norm/norm.h"

#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/cpu/vec.h"

namespace norms::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

static float inverse_sqrt(float v) { return 1.f / __builtin_sqrtf(v); }

template <class T>
static T* row(const void* data, int64_t r, int64_t stride) {
  return static_cast<T*>(const_cast<void*>(data)) + r * stride;
}

static void scale(const Scale& a, int64_t begin, int64_t end) {
  float* out = a.scale + begin;
  const int64_t n = end - begin;
  with_dtype(a.weight_dtype, [&]<typename W>() {
    const W* w = static_cast<const W*>(a.weight) + begin;
    sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(out + i, load(w + i, count), count); });
  });
  const auto round_after_adding = [&](DType dtype, float offset) {
    if (dtype == DType::kFloat32 && offset == 0.f) return;
    with_dtype(dtype, [&]<typename T>() {
      sweep(n, [&](int64_t i, auto count)
                   HOTSWAP_LAMBDA { store(out + i, rounded<T>(load(out + i, count) + offset), count); });
    });
  };
  if (a.before != a.weight_dtype) round_after_adding(a.before, 0.f);
  if (a.after != a.before || a.offset != 0.f) round_after_adding(a.after, a.offset);
}

// x's type, y's type and whether n is rounded, as template arguments, once per call. n of float32 has nothing to round.
template <class Fn>
static void with_types(DType dtype, DType y_dtype, bool round_n, Fn fn) {
  with_dtype(dtype, [&]<typename T>() {
    if constexpr (__is_same(T, float))
      return fn.template operator()<float, float, false>();
    else if (y_dtype != dtype)
      return fn.template operator()<T, float, true>();  // only "llama" widens y
    else if (round_n)
      return fn.template operator()<T, T, true>();
    else
      return fn.template operator()<T, T, false>();
  });
}

// ---- RMSNorm. A row is read twice, the second time from L1; h is recomputed rather than read back.
template <class T, class Y, bool kRound, bool kAdd, bool kStream>
HOTSWAP_INLINE void rms_norm_row(const RmsNormForward& a, int64_t r) {
  const T *x = row<T>(a.x, r, a.x_stride), *residual = kAdd ? row<T>(a.residual, r, a.residual_stride) : nullptr;
  Y* y = row<Y>(a.y, r, a.cols);
  T* h = kAdd ? row<T>(a.h, r, a.cols) : nullptr;
  const auto value = [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    F v = load(x + i, count);
    if constexpr (kAdd) v = rounded<T>(v + load(residual + i, count));
    return v;
  };
  const float squares = sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    if constexpr (kStream) prefetch(x + i);
    if constexpr (kStream && kAdd) prefetch(residual + i);
    const F v = value(i, count);
    return v * v;
  });
  const float rstd = inverse_sqrt(squares / float(a.cols) + a.eps);
  if (a.rstd != nullptr) a.rstd[r] = rstd;
  sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F v = value(i, count);
    if constexpr (kAdd) write<kStream>(h + i, v, count);
    F n = v * rstd;
    if constexpr (kRound) n = rounded<T>(n);
    write<kStream>(y + i, n * load(a.scale + i, count), count);
  });
}

template <class T, class Y, bool kRound, bool kAdd>
static void rms_norm_rows(const RmsNormForward& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const bool aligned = can_stream(row<Y>(a.y, r, a.cols)) && (!kAdd || can_stream(row<T>(a.h, r, a.cols)));
    if (a.stream && aligned)
      rms_norm_row<T, Y, kRound, kAdd, true>(a, r);
    else
      rms_norm_row<T, Y, kRound, kAdd, false>(a, r);
  }
  if (a.stream) stream_fence();
}

static void rms_norm_forward(const RmsNormForward& a, int64_t begin, int64_t end) {
  with_types(a.dtype, a.y_dtype, a.round_n, [&]<typename T, typename Y, bool kRound>() {
    if (a.residual != nullptr)
      rms_norm_rows<T, Y, kRound, true>(a, begin, end);
    else
      rms_norm_rows<T, Y, kRound, false>(a, begin, end);
  });
}

// Backward goes through kRows rows side by side, so that dweight's running sums are loaded and stored once for all of
// them; they are added in the order of the rows, whatever kRows is.
template <class T>
constexpr int kSideBySide = __is_same(T, Half) ? 1 : 4;  // float16 is rare: half the code

template <class T, class Y, bool kRound, bool kAdd, bool kStream, int kRows>
HOTSWAP_INLINE void rms_norm_backward_rows(const RmsNormBackward& a, int64_t r, float* dweight) {
  float slope[kRows];
  for (int k = 0; k < kRows; ++k) {
    const T* x = row<T>(a.x, r + k, a.x_stride);
    const Y* dy = row<Y>(a.dy, r + k, a.dy_stride);
    const float dot = sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      return load(dy + i, count) * load(a.scale + i, count) * load(x + i, count);
    });
    slope[k] = dot * a.rstd[r + k] * a.rstd[r + k] / float(a.cols);  // n * mean(g * n) = x * slope
  }
  sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    F total = load(dweight + i, count);
    const F scale = load(a.scale + i, count);
#pragma GCC unroll 4
    for (int k = 0; k < kRows; ++k) {
      const float rstd = a.rstd[r + k];
      const F g = load(row<Y>(a.dy, r + k, a.dy_stride) + i, count),
              v = load(row<T>(a.x, r + k, a.x_stride) + i, count);
      F d = (g * scale - v * slope[k]) * rstd;
      if constexpr (kAdd) d += load(row<T>(a.dh, r + k, a.dh_stride) + i, count);
      write<kStream>(row<T>(a.dx, r + k, a.cols) + i, d, count);
      F n = v * rstd;
      if constexpr (kRound) n = rounded<T>(n);
      total += g * n;
    }
    store(dweight + i, total, count);
  });
}

static void zero(float* p, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(p + i, F{}, count); });
}

// Rows of [rows, cols] of T that may be written by streaming stores side by side.
template <class T>
static bool can_stream_rows(const void* data, int64_t cols) {
  return cols % kLanes == 0 && can_stream(static_cast<const T*>(data));
}

template <class T, class Y, bool kRound, bool kAdd>
static void rms_norm_backward_chunks(const RmsNormBackward& a, int64_t begin, int64_t end) {
  const bool stream = a.stream && can_stream_rows<T>(a.dx, a.cols);
  for (int64_t k = begin; k < end; ++k) {
    float* dweight = a.partial + k * a.cols;
    zero(dweight, a.cols);
    const int64_t last = (k + 1) * a.chunk < a.rows ? (k + 1) * a.chunk : a.rows;
    int64_t r = k * a.chunk;
    for (; r + kSideBySide<T> <= last; r += kSideBySide<T>) {
      if (stream)
        rms_norm_backward_rows<T, Y, kRound, kAdd, true, kSideBySide<T>>(a, r, dweight);
      else
        rms_norm_backward_rows<T, Y, kRound, kAdd, false, kSideBySide<T>>(a, r, dweight);
    }
    for (; r < last; ++r) rms_norm_backward_rows<T, Y, kRound, kAdd, false, 1>(a, r, dweight);
  }
  if (stream) stream_fence();
}

static void rms_norm_backward(const RmsNormBackward& a, int64_t begin, int64_t end) {
  with_types(a.dtype, a.dy_dtype, a.round_n, [&]<typename T, typename Y, bool kRound>() {
    if (a.dh != nullptr)
      rms_norm_backward_chunks<T, Y, kRound, true>(a, begin, end);
    else
      rms_norm_backward_chunks<T, Y, kRound, false>(a, begin, end);
  });
}

// ---- LayerNorm: mean, then the squared distances from it (one pass over both would cancel), then y; all but the
// first pass from L1.
template <class T, bool kBias, bool kStream>
HOTSWAP_INLINE void layer_norm_row(const LayerNormForward& a, int64_t r) {
  const T* x = row<T>(a.x, r, a.x_stride);
  T* y = row<T>(a.y, r, a.cols);
  const float mean =
      sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return load(x + i, count); }) / float(a.cols);
  const float squares = sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F d = keep(load(x + i, count) - mean, count);
    return d * d;
  });
  const float rstd = inverse_sqrt(squares / float(a.cols) + a.eps);
  if (a.mean != nullptr) a.mean[r] = mean, a.rstd[r] = rstd;
  sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    F v = (load(x + i, count) - mean) * rstd * load(a.weight + i, count);
    if constexpr (kBias) v += load(a.bias + i, count);
    write<kStream>(y + i, v, count);
  });
}

static void layer_norm_forward(const LayerNormForward& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    for (int64_t r = begin; r < end; ++r) {
      const bool stream = a.stream && can_stream(row<T>(a.y, r, a.cols));
      if (a.bias != nullptr && stream)
        layer_norm_row<T, true, true>(a, r);
      else if (a.bias != nullptr)
        layer_norm_row<T, true, false>(a, r);
      else if (stream)
        layer_norm_row<T, false, true>(a, r);
      else
        layer_norm_row<T, false, false>(a, r);
    }
  });
  if (a.stream) stream_fence();
}

template <class T, bool kStream, int kRows>
HOTSWAP_INLINE void layer_norm_backward_rows(const LayerNormBackward& a, int64_t r, float* dweight, float* dbias) {
  float level[kRows], slope[kRows];
  for (int k = 0; k < kRows; ++k) {
    const T *x = row<T>(a.x, r + k, a.x_stride), *dy = row<T>(a.dy, r + k, a.dy_stride);
    const float total = sweep_sum(
        a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA { return load(dy + i, count) * load(a.weight + i, count); });
    const float dot = sweep_sum(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      return load(dy + i, count) * load(a.weight + i, count) * (load(x + i, count) - a.mean[r + k]);
    });
    level[k] = total / float(a.cols);                // mean(g)
    slope[k] = dot * a.rstd[r + k] / float(a.cols);  // mean(g * n)
  }
  sweep(a.cols, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    F weights = load(dweight + i, count), biases = load(dbias + i, count);
    const F weight = load(a.weight + i, count);
#pragma GCC unroll 4
    for (int k = 0; k < kRows; ++k) {
      const float rstd = a.rstd[r + k];
      const F g = load(row<T>(a.dy, r + k, a.dy_stride) + i, count);
      const F n = (load(row<T>(a.x, r + k, a.x_stride) + i, count) - a.mean[r + k]) * rstd;
      write<kStream>(row<T>(a.dx, r + k, a.cols) + i, (g * weight - level[k] - n * slope[k]) * rstd, count);
      weights += g * n;
      biases += g;
    }
    store(dweight + i, weights, count);
    store(dbias + i, biases, count);
  });
}

static void layer_norm_backward(const LayerNormBackward& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    const bool stream = a.stream && can_stream_rows<T>(a.dx, a.cols);
    for (int64_t k = begin; k < end; ++k) {
      float *dweight = a.partial_weight + k * a.cols, *dbias = a.partial_bias + k * a.cols;
      zero(dweight, a.cols);
      zero(dbias, a.cols);
      const int64_t last = (k + 1) * a.chunk < a.rows ? (k + 1) * a.chunk : a.rows;
      int64_t r = k * a.chunk;
      for (; r + kSideBySide<T> <= last; r += kSideBySide<T>) {
        if (stream)
          layer_norm_backward_rows<T, true, kSideBySide<T>>(a, r, dweight, dbias);
        else
          layer_norm_backward_rows<T, false, kSideBySide<T>>(a, r, dweight, dbias);
      }
      for (; r < last; ++r) layer_norm_backward_rows<T, false, 1>(a, r, dweight, dbias);
    }
  });
  if (a.stream) stream_fence();
}

static void column_sum(const ColumnSum& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename W>() {
    W* out = static_cast<W*>(a.out) + begin;
    sweep(end - begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      F total{};
      for (int64_t k = 0; k < a.chunks; ++k) total += load(a.partial + k * a.cols + begin + i, count);
      store(out + i, total, count);
    });
  });
}

const Table kTable = {
    .scale = scale,
    .rms_norm_forward = rms_norm_forward,
    .rms_norm_backward = rms_norm_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .column_sum = column_sum,
};

}  // namespace norms::HOTSWAP_ISA
