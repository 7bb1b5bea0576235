// A decoder layer's step on the CPU. Compiled once per ISA.
#include "kernels/decode/cpu/decode.h"

#include "kernels/common/cpu/activations.h"
#include "kernels/common/cpu/few_rows.h"
#include "kernels/common/cpu/packed_product.h"

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

// What a thread has for itself.
struct Own {
  float* x;        // [rows, widest], as the product reads it that comes next
  float* decoded;  // [packed_room()], of packed weights
  float* weights;  // [capacity], of keys
  void* normed;    // [rows, hidden]
  void* key;       // [head_dim]
};

constexpr int64_t kAlign = 64,
                  kStep = 16;  // a thread's outputs come in such steps: few lines of memory have two owners

int64_t widest(const Layer& a) {
  const int64_t queries = a.heads * a.head_dim, ffn = a.gate.out, most = queries > ffn ? queries : ffn;
  return most > a.hidden ? most : a.hidden;
}

// The parts of `own` from `at` on; how many bytes they take.
int64_t divide(const Layer& a, char* at, Own* own) {
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    char* const part = at + used;
    used += (bytes + kAlign - 1) / kAlign * kAlign;
    return part;
  };
  own->x = reinterpret_cast<float*>(take(a.rows * widest(a) * 4));
  own->decoded = reinterpret_cast<float*>(take(packed_room(a.rows, widest(a)) * 4));
  own->weights = reinterpret_cast<float*>(take(a.capacity * 4));
  own->normed = take(a.rows * a.hidden * size_of(a.dtype));
  own->key = take(a.head_dim * size_of(a.dtype));
  return used;
}

int64_t own_bytes(const Layer& a) {
  char nothing = 0;
  Own own;
  return divide(a, &nothing, &own);
}

// x as the products of one part read it: made once, in each of the two orders that is asked for.
template <class T>
struct Input {
  const T* x;  // [rows, in], contiguous
  int64_t in;
  enum { kNotYet, kPacked, kPaired } order = kNotYet;
};

// y = x w^T + bias of these outputs, rounded; with a residual that is added, rounded again.
template <class T>
HOTSWAP_OUT_OF_LINE void product(const Layer& a, const Own& own, Input<T>& input, const Weight& w, T* y,
                                 int64_t y_stride, const T* residual, Share outs) {
  const int64_t in = input.in;
  if (outs.begin >= outs.end) return;
  if (w.packing != Packing::kNone) {
    if (input.order != Input<T>::kPacked) packed_input(own.x, input.x, in, a.rows, in, 0, a.rows);
    input.order = Input<T>::kPacked;
    packed_product({.dtype = a.dtype,
                    .packing = w.packing,
                    .x = own.x,
                    .w = w.data,
                    .bias = w.bias,
                    .y = y,
                    .rows = a.rows,
                    .in = in,
                    .w_stride = w.stride,
                    .y_stride = y_stride,
                    .room = own.decoded},
                   outs.begin, outs.end);
  } else {
    for (int64_t r = 0; r < a.rows && input.order != Input<T>::kPaired; ++r) {
      prepare_row(own.x + r * in, input.x + r * in, in);
    }
    input.order = Input<T>::kPaired;
    outputs<T>({.x = own.x, .w = w.data, .bias = w.bias, .y = y, .in = in, .w_stride = w.stride, .y_stride = y_stride},
               a.rows, outs.begin, outs.end);
  }
  for (int64_t r = 0; r < a.rows && residual != nullptr; ++r) {
    T* sum = y + r * y_stride + outs.begin;
    const T* other = residual + r * y_stride + outs.begin;
    sweep(outs.end - outs.begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      store(sum + i, load(other + i, count) + load(sum + i, count), count);
    });
  }
}

template <class Formula, class T>
HOTSWAP_INLINE void gate(T* gates, const T* ups, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    store(gates + i, Formula::template value<kPrecisionOf<T>>(load(gates + i, count)) * load(ups + i, count), count);
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

// One query head of one row. The new key is made ready by each head that sees it, and kept by the first.
template <class T>
HOTSWAP_OUT_OF_LINE void attend(const Layer& a, const Own& own, int64_t row, int64_t head) {
  const int64_t dim = a.head_dim, queries = a.heads * dim, group = a.heads / a.kv_heads;
  const int64_t position = a.position[row * a.position_stride];
  const int64_t key_head = head / group;
  T* qkv = static_cast<T*>(a.qkv) + row * (queries + 2 * a.kv_heads * dim);
  const T* cos = static_cast<const T*>(a.cos) + row * a.rope_stride;
  const T* sin = static_cast<const T*>(a.sin) + row * a.rope_stride;
  const auto ready = [&](T* vector, const void* weight) HOTSWAP_LAMBDA {
    if (weight != nullptr) norm(vector, vector, static_cast<const T*>(weight), a.head_eps, dim);
    rotate(vector, cos, sin, dim);
  };
  const auto cache = [&](const CacheRows& c)
                         HOTSWAP_LAMBDA { return static_cast<T*>(c.data) + row * c.batch + key_head * c.head; };
  T *keys = cache(a.keys), *values = cache(a.values), *query = qkv + head * dim, *key = static_cast<T*>(own.key);
  const T *raw_key = qkv + queries + key_head * dim, *value = raw_key + a.kv_heads * dim;
  __builtin_memcpy(key, raw_key, size_t(dim) * sizeof(T));
  ready(key, a.k_norm);
  ready(query, a.q_norm);
  if (head % group == 0) {
    __builtin_memcpy(keys + position * a.keys.row, key, size_t(dim) * sizeof(T));
    __builtin_memcpy(values + position * a.values.row, value, size_t(dim) * sizeof(T));
  }

  const int64_t first = a.window < 0 || position < a.window ? 0 : position - a.window, older = position - first;
  float most = -__builtin_inff(), *const weights = own.weights;
  for (int64_t k = 0; k <= older; ++k) {
    const T* at = k == older ? key : keys + (first + k) * a.keys.row;
    weights[k] = a.scale *
                 sweep_sum(dim, [&](int64_t i, auto n) HOTSWAP_LAMBDA { return load(query + i, n) * load(at + i, n); });
    most = weights[k] > most ? weights[k] : most;
  }
  sweep(older + 1, [&](int64_t k, auto n) HOTSWAP_LAMBDA { store(weights + k, exp(load(weights + k, n) - most), n); });
  const float total = sweep_sum(older + 1, [&](int64_t k, auto n) HOTSWAP_LAMBDA { return load(weights + k, n); });
  T* out = static_cast<T*>(a.attended) + row * queries + head * dim;
  sweep(dim, [&](int64_t i, auto n) HOTSWAP_LAMBDA {
    F sum{};
    for (int64_t k = 0; k < older; ++k) sum += weights[k] * load(values + (first + k) * a.values.row + i, n);
    sum += weights[older] * load(value + i, n);
    store(out + i, sum / total, n);
  });
}

Share within(Share share, int64_t from, int64_t count) {  // of `count` outputs that begin at `from`
  const int64_t begin = share.begin - from, end = share.end - from;
  return {begin < 0 ? 0 : begin, end > count ? count : end};
}

// Norms, and x as products read it, are made by each thread for itself: less than waiting for another's.
template <class T>
HOTSWAP_INLINE void layer(const Layer& a, const Own& own, T* up, const Member& member) {
  const int64_t queries = a.heads * a.head_dim, keys = a.kv_heads * a.head_dim, qkv = queries + 2 * keys;
  const int64_t hidden = a.hidden, ffn = a.gate.out;
  const T* x = static_cast<const T*>(a.x);
  T *projected = static_cast<T*>(a.qkv), *h = static_cast<T*>(a.h), *gated = static_cast<T*>(a.gated);
  T* normed = static_cast<T*>(own.normed);
  const auto norm_rows = [&](const T* from, const void* weight) HOTSWAP_LAMBDA {
    for (int64_t r = 0; r < a.rows; ++r) {
      norm(normed + r * hidden, from + r * hidden, static_cast<const T*>(weight), a.eps, hidden);
    }
    return Input<T>{normed, hidden};
  };

  Input<T> input = norm_rows(x, a.input_norm);
  const Share third = member.share(qkv, kStep);
  product(a, own, input, a.q, projected, qkv, (const T*)nullptr, within(third, 0, queries));
  product(a, own, input, a.k, projected + queries, qkv, (const T*)nullptr, within(third, queries, keys));
  product(a, own, input, a.v, projected + queries + keys, qkv, (const T*)nullptr, within(third, queries + keys, keys));
  member.wait();

  const Share heads = member.share(a.rows * a.heads, 1);
  for (int64_t i = heads.begin; i < heads.end; ++i) attend<T>(a, own, i / a.heads, i % a.heads);
  member.wait();

  input = {static_cast<const T*>(a.attended), queries};
  product(a, own, input, a.o, h, hidden, x, member.share(hidden, kStep));
  member.wait();

  input = norm_rows(h, a.post_norm);
  const Share mine = member.share(ffn, kStep);
  product(a, own, input, a.gate, gated, ffn, (const T*)nullptr, mine);
  product(a, own, input, a.up, up, ffn, (const T*)nullptr, mine);
  for (int64_t r = 0; r < a.rows; ++r) {
    T* gates = gated + r * ffn + mine.begin;
    const T* ups = up + r * ffn + mine.begin;
    const int64_t n = mine.end - mine.begin;
    a.act == Act::kSilu ? gate<Silu>(gates, ups, n) : gate<GeluTanh>(gates, ups, n);
  }
  member.wait();

  input = {gated, ffn};
  product(a, own, input, a.down, static_cast<T*>(a.out), hidden, (const T*)h, member.share(hidden, kStep));
}

void layer(const Layer& a, const Room& room, Member member) {
  Own own;
  divide(a, room.mine + member.first * room.mine_stride, &own);
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA { layer<T>(a, own, static_cast<T*>(room.up), member); });
}

template <class T>
HOTSWAP_INLINE void heads_of_row(const Heads& a, int64_t row) {
  const int64_t dim = a.head_dim, position = a.position[row * a.position_stride];
  const T* cos = static_cast<const T*>(a.cos) + row * a.rope_stride;
  const T* sin = static_cast<const T*>(a.sin) + row * a.rope_stride;
  const auto ready = [&](T* to, const void* from, int64_t stride, int64_t head, const void* weight) HOTSWAP_LAMBDA {
    __builtin_memcpy(to, static_cast<const T*>(from) + row * stride + head * dim, size_t(dim) * sizeof(T));
    if (weight != nullptr) norm(to, to, static_cast<const T*>(weight), a.eps, dim);
    rotate(to, cos, sin, dim);
  };
  const auto kept = [&](const CacheRows& c, int64_t head) HOTSWAP_LAMBDA {
    return static_cast<T*>(c.data) + row * c.batch + position * c.row + head * c.head;
  };
  T* out = static_cast<T*>(a.out) + row * a.heads * dim;
  for (int64_t h = 0; h < a.heads; ++h) ready(out + h * dim, a.q, a.q_stride, h, a.q_norm);
  for (int64_t h = 0; h < a.kv_heads; ++h) {
    ready(kept(a.keys, h), a.k, a.k_stride, h, a.k_norm);
    const T* value = static_cast<const T*>(a.v) + row * a.v_stride + h * dim;
    __builtin_memcpy(kept(a.values, h), value, size_t(dim) * sizeof(T));
  }
}

void heads(const Heads& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    for (int64_t row = begin; row < end; ++row) heads_of_row<T>(a, row);
  });
}

}  // namespace

const Table kTable = {own_bytes, layer, heads};

}  // namespace decode::HOTSWAP_ISA
