// A decoder layer's step on the CPU. Compiled once per ISA.
#include "kernels/common/cpu/few_rows.h"
#include "kernels/common/cpu/math.h"
#include "kernels/decode/decode.h"

namespace decode::HOTSWAP_ISA {
namespace {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// to = x * rstd rounded, times the weight, rounded; to may be x.
template <class T>
HOTSWAP_INLINE void norm(T* to, const T* x, const T* weight, float eps, int64_t n) {
  const float squares = sweep_sum(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F v = load(x + i, count);
    return v * v;
  });
  const float rstd = 1.f / __builtin_sqrtf(squares / float(n) + eps);
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    store(to + i, rounded<T>(load(x + i, count) * rstd) * load(weight + i, count), count);
  });
}

void norm_rows(void* to, const void* x, const void* weight, float eps, DType dtype, int64_t rows, int64_t n) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) {
      norm(static_cast<T*>(to) + r * n, static_cast<const T*>(x) + r * n, static_cast<const T*>(weight), eps, n);
    }
  });
}

void prepare(float* to, const void* x, DType dtype, int64_t rows, int64_t n) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) prepare_row(to + r * n, static_cast<const T*>(x) + r * n, n);
  });
}

void product(const Product& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    outputs<T>({.x = a.x,
                .w = a.weight.data,
                .bias = a.weight.bias,
                .y = a.y,
                .in = a.in,
                .w_stride = a.weight.stride,
                .y_stride = a.y_stride},
               a.rows, begin, end);
    if (a.residual == nullptr) return;
    for (int64_t r = 0; r < a.rows; ++r) {
      T* y = static_cast<T*>(a.y) + r * a.y_stride + begin;
      const T* residual = static_cast<const T*>(a.residual) + r * a.y_stride + begin;
      sweep(end - begin, [&](int64_t i, auto count)
                             HOTSWAP_LAMBDA { store(y + i, load(residual + i, count) + load(y + i, count), count); });
    }
  });
}

// tanh's GELU is g sigmoid(2 u), because (1 + tanh(u)) / 2 = sigmoid(2 u).
template <class T>
HOTSWAP_INLINE void gate(T* gates, const T* ups, Act act, int64_t n) {
  constexpr float kTwoK = 1.5957691216057308f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F g = load(gates + i, count), w = act == Act::kSilu ? g : kTwoK * (g + kCube * g * g * g);
    store(gates + i, g * sigmoid<kPrecisionOf<T>>(w) * load(ups + i, count), count);
  });
}

void gate(void* gates, const void* ups, Act act, DType dtype, int64_t begin, int64_t end) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    gate(static_cast<T*>(gates) + begin, static_cast<const T*>(ups) + begin, act, end - begin);
  });
}

// In place: the halves of a head turn into each other.
template <class T>
HOTSWAP_INLINE void rotate(T* head, const T* cos, const T* sin, int64_t dim) {
  const int64_t half = dim / 2;
  sweep(half, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F a = load(head + i, count), b = load(head + half + i, count);
    store(head + i, a * load(cos + i, count) - b * load(sin + i, count), count);
    store(head + half + i, b * load(cos + half + i, count) + a * load(sin + half + i, count), count);
  });
}

// All query heads of one key head of one row. weights: room for a number for each key.
template <class T>
HOTSWAP_INLINE void attend_group(const Layer& a, int64_t row, int64_t key_head, float* weights) {
  const int64_t dim = a.head_dim, queries = a.heads * dim, group = a.heads / a.kv_heads, position = *a.position;
  T* qkv = static_cast<T*>(a.qkv) + row * (queries + 2 * a.kv_heads * dim);
  const T* cos = static_cast<const T*>(a.cos) + row * a.rope_stride;
  const T* sin = static_cast<const T*>(a.sin) + row * a.rope_stride;
  const auto ready = [&](T* head, const void* weight) HOTSWAP_LAMBDA {
    if (weight != nullptr) norm(head, head, static_cast<const T*>(weight), a.head_eps, dim);
    rotate(head, cos, sin, dim);
  };
  const auto cache = [&](const CacheRows& c)
                         HOTSWAP_LAMBDA { return static_cast<T*>(c.data) + row * c.batch + key_head * c.head; };
  T *keys = cache(a.keys), *values = cache(a.values);
  T* key = qkv + queries + key_head * dim;
  ready(key, a.k_norm);
  __builtin_memcpy(keys + position * a.keys.row, key, size_t(dim) * sizeof(T));
  __builtin_memcpy(values + position * a.values.row, key + a.kv_heads * dim, size_t(dim) * sizeof(T));

  const int64_t first = a.window < 0 || position < a.window ? 0 : position - a.window, count = position + 1 - first;
  for (int64_t g = 0; g < group; ++g) {
    const int64_t head = key_head * group + g;
    T* query = qkv + head * dim;
    ready(query, a.q_norm);
    float most = -__builtin_inff();
    for (int64_t k = 0; k < count; ++k) {
      const T* at = keys + (first + k) * a.keys.row;
      weights[k] = a.scale * sweep_sum(dim, [&](int64_t i, auto n)
                                                HOTSWAP_LAMBDA { return load(query + i, n) * load(at + i, n); });
      most = weights[k] > most ? weights[k] : most;
    }
    sweep(count, [&](int64_t k, auto n) HOTSWAP_LAMBDA { store(weights + k, exp(load(weights + k, n) - most), n); });
    const float total = sweep_sum(count, [&](int64_t k, auto n) HOTSWAP_LAMBDA { return load(weights + k, n); });
    T* out = static_cast<T*>(a.attended) + row * queries + head * dim;
    sweep(dim, [&](int64_t i, auto n) HOTSWAP_LAMBDA {
      F sum{};
      for (int64_t k = 0; k < count; ++k) sum += weights[k] * load(values + (first + k) * a.values.row + i, n);
      store(out + i, sum / total, n);
    });
  }
}

void attend(const Layer& a, float* weights, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    for (int64_t i = begin; i < end; ++i) attend_group<T>(a, i / a.kv_heads, i % a.kv_heads, weights);
  });
}

}  // namespace

const Table kTable = {norm_rows, prepare, product, gate, attend};

}  // namespace decode::HOTSWAP_ISA
