// What happens to a row of scores between the two products.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/tree_max.h"

namespace attention::HOTSWAP_ISA {

constexpr float kInfinity = __builtin_inff();

// A row's head and place, as they change its scores.
struct RowOptions {
  float softcap, slope;
  int64_t place;  // of the row, counted from the first key of the scores
};
HOTSWAP_INLINE RowOptions row_options(const Attention& a, const Sequence& s, int64_t row, int64_t head,
                                      int64_t first_key) {
  return {a.softcap, a.slopes == nullptr ? 0.f : a.slopes[(&s - a.sequences) * a.slopes_batch + head],
          place_of(s, row) - first_key};
}

HOTSWAP_INLINE F lane_numbers() {
  F lanes{};
  for (int l = 0; l < kLanes; ++l) lanes[l] = float(l);
  return lanes;
}
// ALiBi's bias of the keys from `key` on.
HOTSWAP_INLINE F distance_bias(const RowOptions& o, int64_t key) {
  return -o.slope * abs(float(key - o.place) + lane_numbers());
}

// What a row has seen so far: its maximum and the sum of exp(score - maximum).
struct RowState {
  float maximum, sum;
};

// scores[from, to) become weights relative to the row's maximum; zeros elsewhere in [begin, end). Returns what earlier
// weights must be multiplied by.
template <Precision kPrecision>
static float weigh(float* scores, int64_t begin, int64_t end, int64_t from, int64_t to, const RowOptions& o,
                   RowState& state) {
  if (from >= to) {
    for (int64_t i = begin; i < end; ++i) scores[i] = 0.f;
    return 1.f;
  }
  float* seen = scores + from;
  const int64_t count = to - from;
  if (o.softcap > 0.f || o.slope != 0.f) {
    sweep(count, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
      F x = load(seen + i, part);
      if (o.softcap > 0.f) x = o.softcap * tanh(x * (1.f / o.softcap));
      if (o.slope != 0.f) x += distance_bias(o, from + i);
      store(seen + i, x, part);
    });
  }
  F max_yet = splat<F>(state.maximum);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) max_yet = max(load(seen + i), max_yet);
  float maximum = tree_max(max_yet);
  for (; i < count; ++i) maximum = seen[i] > maximum ? seen[i] : maximum;
  const float total = sweep_sum(count, [&](int64_t k, auto part) HOTSWAP_LAMBDA {
    const F p = keep(exp_within_87<kPrecision>(load(seen + k, part) - maximum), part);
    store(seen + k, p, part);
    return p;
  });
  const float shrink = exp(state.maximum - maximum);
  state.sum = state.sum * shrink + total;
  state.maximum = maximum;
  for (int64_t k = begin; k < from; ++k) scores[k] = 0.f;
  for (int64_t k = to; k < end; ++k) scores[k] = 0.f;
  return shrink;
}

// A row done: what its sum of weighted values is multiplied by, and its lse.
struct RowEnd {
  float factor, lse;
};
HOTSWAP_INLINE RowEnd end_of_row(const RowState& state, const float* sink) {
  float maximum = state.maximum, sum = state.sum, factor = 1.f;
  if (sink != nullptr) {  // a key of no value: it may well be far above all scores
    maximum = *sink > maximum ? *sink : maximum;
    factor = exp(state.maximum - maximum);
    sum = sum * factor + exp(*sink - maximum);
  }
  if (sum == 0.f) return {0.f, -kInfinity};  // it saw nothing
  return {factor / sum, maximum + __builtin_logf(sum)};
}

template <class T>
HOTSWAP_INLINE void write_row(T* to, const float* from, int64_t count, float factor) {
  sweep(count, [&](int64_t i, auto part) HOTSWAP_LAMBDA { store(to + i, factor * load(from + i, part), part); });
}

// Row and head of an output, written from its sum of weighted values.
template <class T>
static void finish_row(const Attention& a, const Sequence& s, int64_t row, int64_t head, const RowState& state,
                       const float* values) {
  const RowEnd end = end_of_row(state, a.sinks == nullptr ? nullptr : a.sinks + head);
  write_row(row_of<T>(a.out, s.batch, s.first_row + row, head), values, a.value_dim, end.factor);
  if (a.lse != nullptr) a.lse[s.batch * a.lse_batch + head * a.lse_head + s.first_row + row] = end.lse;
}

}  // namespace attention::HOTSWAP_ISA
