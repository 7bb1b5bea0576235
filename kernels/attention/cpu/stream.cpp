// Few rows over many keys, as in a decode step: keys and values are read once, where they lie, for all heads of a
// group; nothing is copied. What is read next is asked for early, since a core that waits for one row after the other
// reads at half the memory's speed. Compiled once per ISA.
#include "kernels/attention/cpu/kernels.h"
#include "kernels/attention/cpu/scores.h"

namespace attention::HOTSWAP_ISA {
namespace {

constexpr int64_t kKeys = 64;                      // of a step; their weights stay in the first cache
constexpr int kRows = 4;                           // rows that share a load
constexpr int kKeysAtOnce = kLanes == 16 ? 4 : 2;  // keys whose products run side by side
constexpr int kValueVecs = kBlockVecs;

template <class T>
struct Step {
  int64_t first, count;
  const T *k[kKeys + kKeysAtOnce], *v[kKeys + kKeysAtOnce];
};

template <class T>
static void find_step(Step<T>& step, const Attention& a, const Sequence& s, int64_t key_head, int64_t first,
                      int64_t end) {
  step.first = first;
  step.count = most(0, least(kKeys, end - first));
  find_keys(step.k, a, a.k, s, key_head, first, step.count);
  find_keys(step.v, a, a.v, s, key_head, first, step.count);
  for (int i = 0; i < kKeysAtOnce && step.count > 0; ++i) step.k[step.count + i] = step.k[step.count - 1];
}

// Rows of q times kKeysAtOnce keys.
template <int kHere, class T>
HOTSWAP_INLINE void dots(float* scores, const float* q, int64_t q_row, const T* const* k, int64_t dim) {
  F sums[kKeysAtOnce][kHere] = {};
  sweep(dim, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
#pragma GCC unroll 4
    for (int key = 0; key < kKeysAtOnce; ++key) {
      const F x = load(k[key] + i, part);
#pragma GCC unroll 4
      for (int r = 0; r < kHere; ++r) sums[key][r] += x * load(q + r * q_row + i);
    }
  });
#pragma GCC unroll 4
  for (int key = 0; key < kKeysAtOnce; ++key) {
#pragma GCC unroll 4
    for (int r = 0; r < kHere; ++r) scores[r * kKeys + key] = sum(sums[key][r]);
  }
}

template <int kHere, class T>
static void score(float* scores, const float* q, int64_t q_row, const Step<T>& step, const Attention& a, bool first) {
  for (int64_t i = 0; i < step.count; i += kKeysAtOnce) {
    if (first) {
      for (int key = 0; key < kKeysAtOnce && i + key < step.count; ++key) ask_for(step.v[i + key], a.value_dim);
    }
    dots<kHere>(scores + i, q, q_row, step.k + i, a.dim);
  }
}

// values[row][column...] = shrink[row] values + weights[row][key] v[key][column...] of kVecs vectors of columns. These
// columns of the next keys are asked for meanwhile, a few at a time: a core that asks for many at once waits for them.
template <bool kAhead, int kHere, int kVecs, class T, class Count>
HOTSWAP_INLINE void add_columns(float* values, int64_t value_row, const float* weights, const T* const* v,
                                const T* const* ahead, int64_t column, int64_t keys, const float* shrink, Count part) {
  F sums[kHere][kVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kHere; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) sums[r][c] = shrink[r] * load(values + r * value_row + column + c * kLanes);
  }
  for (int64_t key = 0; key < keys; ++key) {
    if constexpr (kAhead) ask_for(ahead[key] + column, kVecs * kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const F x = load(v[key] + column + c * kLanes, part);
#pragma GCC unroll 4
      for (int r = 0; r < kHere; ++r) sums[r][c] += weights[r * kKeys + key] * x;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kHere; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) store(values + r * value_row + column + c * kLanes, sums[r][c]);
  }
}

constexpr int kWide = kValueVecs * kLanes;
template <bool kAhead, int kHere, class T>
static void add_values(float* values, int64_t value_row, const float* weights, const Step<T>& step,
                       const T* const* ahead, const float* shrink, const Attention& a) {
  int64_t column = 0;
  for (; column + kWide <= a.value_dim; column += kWide)
    add_columns<kAhead, kHere, kValueVecs>(values, value_row, weights, step.v, ahead, column, step.count, shrink,
                                           All{});
  sweep(a.value_dim - column, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
    add_columns<false, kHere, 1>(values, value_row, weights, step.v, ahead, column + i, step.count, shrink, part);
  });
}

// fn<how many>(first) over rows, kRows at once.
template <class Fn>
HOTSWAP_INLINE void by_rows(int64_t rows, Fn fn) {
  int64_t first = 0;
  for (; first + kRows <= rows; first += kRows) fn.template operator()<kRows>(first);
  switch (rows - first) {
    case 3:
      return fn.template operator()<3>(first);
    case 2:
      return fn.template operator()<2>(first);
    case 1:
      return fn.template operator()<1>(first);
  }
}

// A part: values [rows, value_dim], then each row's state.
struct SumPart {
  float* values;
  RowState* state;
};
HOTSWAP_INLINE SumPart part_of(const Attention& a, float* parts, int64_t slot) {
  float* part = parts + slot * stream_part(a);
  return {part, reinterpret_cast<RowState*>(part + kStreamRows * padded(a.value_dim))};
}

template <class T>
static void stream_of(const Attention& a, const Item& item, float* parts, float* memory) {
  const Sequence& s = a.sequences[item.sequence];
  const int64_t group = a.group(), rows = s.rows * group, q_row = padded(a.dim), value_row = padded(a.value_dim);
  Scratch scratch{memory};
  float* q = scratch.take(kStreamRows * q_row);
  float* weights = scratch.take(kStreamRows * kKeys);
  float* shrink = scratch.take(kStreamRows);
  const SumPart part = part_of(a, parts, item.slot);
  for (int64_t i = 0; i < rows * value_row; ++i) part.values[i] = 0.f;
  for (int64_t i = 0; i < rows; ++i) part.state[i] = {-kInfinity, 0.f};
  widen_rows<T>(q, a, a.q, s, item, 0, s.rows, a.dim, a.scale);
  const Span all = cut(keys_of(a, s, 0, s.rows), item.first, item.end);
  Step<T> steps[2];
  find_step(steps[0], a, s, item.key_head, all.first, all.end);
  for (int now = 0; steps[now].count > 0; now = 1 - now) {
    const Step<T>&step = steps[now], &next = steps[1 - now];
    find_step(steps[1 - now], a, s, item.key_head, step.first + step.count, all.end);
    by_rows(rows, [&]<int kHere>(int64_t first) HOTSWAP_LAMBDA {
      score<kHere>(weights + first * kKeys, q + first * q_row, q_row, step, a, first == 0);
    });
    for (int64_t i = 0; i < rows; ++i) {
      const Span seen = keys_of(a, s, i / group);
      const Span here = cut({seen.first - step.first, seen.end - step.first}, 0, step.count);
      shrink[i] = weigh<kPrecisionOf<T>>(weights + i * kKeys, 0, step.count, here.first, here.end,
                                         row_options(a, s, i / group, item.key_head * group + i % group, step.first),
                                         part.state[i]);
    }
    const bool ahead = next.count == step.count;
    const int64_t asked = ahead ? least(a.dim, a.value_dim / kWide * kWide) : 0;  // of a key, while values are added
    for (int64_t i = 0; i < next.count; ++i) ask_for(next.k[i] + asked, a.dim - asked);
    by_rows(rows, [&]<int kHere>(int64_t first) HOTSWAP_LAMBDA {
      float* values = part.values + first * value_row;
      if (ahead && first == 0)
        add_values<true, kHere>(values, value_row, weights, step, next.k, shrink, a);
      else
        add_values<false, kHere>(values, value_row, weights + first * kKeys, step, next.k, shrink + first, a);
    });
  }
}

// Parts have maxima of their own; their values and sums are brought to the common one.
template <class T>
static void merge_of(const Attention& a, const Merge& m, float* parts) {
  const Sequence& s = a.sequences[m.sequence];
  const int64_t group = a.group(), value_row = padded(a.value_dim);
  for (int64_t i = 0; i < s.rows * group; ++i) {
    RowState all{-kInfinity, 0.f};
    for (int64_t slot = m.slot; slot < m.slot_end; ++slot) {
      const float maximum = part_of(a, parts, slot).state[i].maximum;
      all.maximum = maximum > all.maximum ? maximum : all.maximum;
    }
    for (int64_t slot = m.slot; slot < m.slot_end; ++slot) {
      RowState& one = part_of(a, parts, slot).state[i];
      one.maximum = one.sum == 0.f ? 0.f : exp(one.maximum - all.maximum);  // from here on its factor
      all.sum += one.maximum * one.sum;
    }
    const SumPart first = part_of(a, parts, m.slot);  // whose values become the sum
    float* values = first.values + i * value_row;
    const float own = first.state[i].maximum;
    for (int64_t c = 0; c < value_row; c += kLanes) {
      F total = own * load(values + c);
      for (int64_t slot = m.slot + 1; slot < m.slot_end; ++slot) {
        const SumPart one = part_of(a, parts, slot);
        total += one.state[i].maximum * load(one.values + i * value_row + c);
      }
      store(values + c, total);
    }
    finish_row<T>(a, s, i / group, m.key_head * group + i % group, all, values);
  }
}

}  // namespace

void stream(const Attention& a, const Item& item, float* parts, float* scratch) {
  with_dtype(a.dtype, [&]<typename T>() { stream_of<T>(a, item, parts, scratch); });
}

void merge(const Attention& a, const Merge& m, float* parts) {
  with_dtype(a.dtype, [&]<typename T>() { merge_of<T>(a, m, parts); });
}

}  // namespace attention::HOTSWAP_ISA
