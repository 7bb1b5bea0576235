// What happens to rows between the products: activations, sums over an expert's rows and over a token's experts.
// Compiled once per ISA.
#include "kernels/moe/cpu/activations.h"
#include "kernels/moe/cpu/kernels.h"

namespace moe::HOTSWAP_ISA {
namespace {

HOTSWAP_INLINE float score(const Problem& p, const void* scores, int64_t assignment) {
  if (p.score_dtype == DType::kFloat32) return static_cast<const float*>(scores)[assignment];
  float s = 0;
  with_dtype(p.dtype, [&]<typename T>() HOTSWAP_LAMBDA { s = to_float(static_cast<const T*>(scores)[assignment]); });
  return s;
}

// Columns of a part in float32, gate and value apart whatever their layout. Room for a whole vector past the end.
struct Columns {
  alignas(64) float g[kPart + kLanes], u[kPart + kLanes];
};

template <bool kGate, class T>
HOTSWAP_INLINE void read(Columns& to, const Problem& p, const T* row, int64_t first, int64_t n) {
  if (kGate && p.interleaved) {
    for (int64_t i = 0; i < n; ++i) {
      to.g[i] = to_float(row[2 * (first + i)]);
      to.u[i] = to_float(row[2 * (first + i) + 1]);
    }
    return;
  }
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    store(to.g + i, load(row + first + i, count));
    if constexpr (kGate) store(to.u + i, load(row + p.inner + first + i, count));
  });
}
template <bool kGate, class T>
HOTSWAP_INLINE void write(T* row, const Problem& p, const Columns& from, int64_t first, int64_t n) {
  if (kGate && p.interleaved) {
    for (int64_t i = 0; i < n; ++i) {
      row[2 * (first + i)] = from_float<T>(from.g[i]);
      row[2 * (first + i) + 1] = from_float<T>(from.u[i]);
    }
    return;
  }
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    store(row + first + i, load(from.g + i), count);
    if constexpr (kGate) store(row + p.inner + first + i, load(from.u + i), count);
  });
}

template <class Fn>
HOTSWAP_INLINE void columns(int64_t n, Fn fn) {  // whole vectors: what lies past n is never written out
  for (int64_t i = 0; i < n; i += kLanes) fn(i);
}

template <bool kGate>
HOTSWAP_INLINE void scale_and_add(Columns& c, float s, const Columns* bias, int64_t n) {
  columns(n, [&](int64_t i) HOTSWAP_LAMBDA {
    const F zero{};
    store(c.g + i, s * load(c.g + i) + (bias == nullptr ? zero : load(bias->g + i)));
    if constexpr (kGate) store(c.u + i, s * load(c.u + i) + (bias == nullptr ? zero : load(bias->u + i)));
  });
}

struct Span {
  int64_t first, columns, begin, end, row;  // columns of the activation; slots; numbers in a row of h
};
HOTSWAP_INLINE Span span_of(const Activation& a, int64_t expert, int64_t part) {
  const int64_t first = part * kPart, left = a.p.inner - first;
  return {first, left < kPart ? left : kPart, a.index.offsets[expert], a.index.offsets[expert + 1], a.p.columns()};
}

template <class Formula, class T>
HOTSWAP_INLINE void forward_rows(const Activation& a, int64_t expert, int64_t part) {
  constexpr bool kGate = Formula::kGate;
  const Span s = span_of(a, expert, part);
  Columns c{}, bias{};
  if (a.bias != nullptr) read<kGate>(bias, a.p, static_cast<const T*>(a.bias) + expert * s.row, s.first, s.columns);
  for (int64_t slot = s.begin; slot < s.end; ++slot) {
    read<kGate>(c, a.p, static_cast<const T*>(a.h) + slot * s.row, s.first, s.columns);
    if (a.p.scale_input)
      scale_and_add<kGate>(c, score(a.p, a.scores, a.index.order[slot]), a.bias == nullptr ? nullptr : &bias,
                           s.columns);
    T* out = static_cast<T*>(a.a) + slot * a.p.inner + s.first;
    sweep(s.columns, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      store(out + i, Formula::template value<kPrecisionOf<T>>(a.p, load(c.g + i), load(c.u + i)), count);
    });
  }
}

template <class Formula, class T>
HOTSWAP_INLINE void backward_rows(const Activation& a, int64_t expert, int64_t part) {
  constexpr bool kGate = Formula::kGate;
  const Span s = span_of(a, expert, part);
  const int64_t parts = (a.p.inner + kPart - 1) / kPart;
  Columns c{}, h0{}, bias{}, db{};
  if (a.bias != nullptr) read<kGate>(bias, a.p, static_cast<const T*>(a.bias) + expert * s.row, s.first, s.columns);
  for (int64_t slot = s.begin; slot < s.end; ++slot) {
    const float score_of = score(a.p, a.scores, a.index.order[slot]);
    read<kGate>(c, a.p, static_cast<const T*>(a.h) + slot * s.row, s.first, s.columns);
    if (a.p.scale_input) {
      h0 = c;
      scale_and_add<kGate>(c, score_of, a.bias == nullptr ? nullptr : &bias, s.columns);
    }
    const float of_y = a.p.scale_input ? 1.f : score_of, of_h = a.p.scale_input ? score_of : 1.f;
    T* both = static_cast<T*>(a.a) + slot * a.p.inner + s.first;  // dA', and then A'
    a.ds[slot * parts + part] = sweep_sum(s.columns, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
      const F g = load(c.g + i), u = load(c.u + i), d = load(both + i, count);
      const F value = Formula::template value<kPrecisionOf<T>>(a.p, g, u);
      const Slopes dh = Formula::template slopes<kPrecisionOf<T>>(a.p, g, u, of_y * d);
      store(both + i, of_y * value, count);
      // An activation without a gate leaves u's columns alone: zeros, which no NaN of one row reaches.
      F share = a.p.scale_input ? dh.g * load(h0.g + i) : d * value;
      if (a.db != nullptr) store(db.g + i, load(db.g + i) + dh.g);
      store(c.g + i, of_h * dh.g);
      if constexpr (kGate) {
        if (a.p.scale_input) share += dh.u * load(h0.u + i);
        if (a.db != nullptr) store(db.u + i, load(db.u + i) + dh.u);
        store(c.u + i, of_h * dh.u);
      }
      return keep(share, count);
    });
    write<kGate>(static_cast<T*>(a.dh) + slot * s.row, a.p, c, s.first, s.columns);
  }
  if (a.db != nullptr) write<kGate>(static_cast<T*>(a.db) + expert * s.row, a.p, db, s.first, s.columns);
}

void forward(const Activation& a, int64_t expert, int64_t part) {
  with_act(a.p.act, [&]<class Formula>() HOTSWAP_LAMBDA {
    with_dtype(a.p.dtype, [&]<typename T>() { forward_rows<Formula, T>(a, expert, part); });
  });
}
void backward(const Activation& a, int64_t expert, int64_t part) {
  with_act(a.p.act, [&]<class Formula>() HOTSWAP_LAMBDA {
    with_dtype(a.p.dtype, [&]<typename T>() { backward_rows<Formula, T>(a, expert, part); });
  });
}

void combine(const Problem& p, const Index& index, const void* scores, const void* rows, void* y, int64_t begin,
             int64_t end) {
  with_dtype(p.dtype, [&]<typename T>() {
    for (int64_t t = begin; t < end; ++t) {
      T* to = static_cast<T*>(y) + t * p.hidden;
      sweep(p.hidden, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
        F sum{};
        for (int64_t j = t * p.top_k; j < (t + 1) * p.top_k; ++j) {
          if (index.slots[j] < 0) continue;
          const F v = load(static_cast<const T*>(rows) + index.slots[j] * p.hidden + i, count);
          sum += scores == nullptr ? v : score(p, scores, j) * v;
        }
        store(to + i, sum, count);
      });
    }
  });
}

// The expert of a slot, by halving.
HOTSWAP_INLINE int64_t expert_of(const Problem& p, const Index& index, int64_t slot) {
  int64_t low = 0, high = p.experts;  // offsets[low] <= slot < offsets[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (index.offsets[middle] <= slot ? low : high) = middle;
  }
  return low;
}

void score_gradients(const Activation& a, const void* dy, int64_t dy_stride, const void* b2, void* dscores,
                     int64_t begin, int64_t end) {
  const Problem& p = a.p;
  const int64_t parts = (p.inner + kPart - 1) / kPart;
  with_dtype(p.dtype, [&]<typename T>() {
    for (int64_t j = begin * p.top_k; j < end * p.top_k; ++j) {
      const int64_t slot = a.index.slots[j];
      float ds = 0;
      if (slot >= 0) {
        for (int64_t part = 0; part < parts; ++part) ds += a.ds[slot * parts + part];
        if (b2 != nullptr && !p.scale_input) {
          const T* bias = static_cast<const T*>(b2) + expert_of(p, a.index, slot) * p.hidden;
          const T* row = static_cast<const T*>(dy) + j / p.top_k * dy_stride;
          ds += sweep_sum(p.hidden, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
            return keep(load(row + i, count) * load(bias + i, count), count);
          });
        }
      }
      if (p.score_dtype == DType::kFloat32)
        static_cast<float*>(dscores)[j] = ds;
      else
        static_cast<T*>(dscores)[j] = from_float<T>(ds);
    }
  });
}

void bias_gradient(const Activation& a, const void* dy, int64_t dy_stride, void* db2, int64_t expert, int64_t part) {
  const Problem& p = a.p;
  const int64_t first = part * kPart, left = p.hidden - first, n = left < kPart ? left : kPart;
  with_dtype(p.dtype, [&]<typename T>() {
    Columns sum{};
    for (int64_t slot = a.index.offsets[expert]; slot < a.index.offsets[expert + 1]; ++slot) {
      const int64_t j = a.index.order[slot];
      const float s = p.scale_input ? 1.f : score(p, a.scores, j);
      const T* row = static_cast<const T*>(dy) + j / p.top_k * dy_stride + first;
      sweep(n, [&](int64_t i, auto count)
                   HOTSWAP_LAMBDA { store(sum.g + i, load(sum.g + i) + s * load(row + i, count)); });
    }
    T* to = static_cast<T*>(db2) + expert * p.hidden + first;
    sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(to + i, load(sum.g + i), count); });
  });
}

}  // namespace

const Table kTable = {forward,       backward,     combine,     score_gradients,
                      bias_gradient, widen,        few_rows,    to_columns,
                      some_rows,     packed_input, packed_room, kernels::HOTSWAP_ISA::packed_product};

}  // namespace moe::HOTSWAP_ISA
