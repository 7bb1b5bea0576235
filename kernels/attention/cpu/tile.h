// Rows of q, k and v, wherever they lie, as float32 tiles in scratch memory.
#pragma once

#include "kernels/attention/cpu/span.h"
#include "kernels/common/cpu/pairs.h"
#include "kernels/common/cpu/transpose.h"

namespace attention::HOTSWAP_ISA {

using namespace attention::cpu;
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// Cuts a thread's scratch into arrays.
struct Scratch {
  float* next;
  float* take(int64_t count) {
    float* taken = next;
    next += padded(count);
    return taken;
  }
  uint32_t* take_pairs(bool wanted, int64_t count) {
    return wanted ? reinterpret_cast<uint32_t*>(take(count)) : nullptr;
  }
};

template <class T>
HOTSWAP_INLINE T* row_of(const Operand& o, int64_t batch, int64_t row, int64_t head) {
  return static_cast<T*>(o.data) + batch * o.strides.batch + row * o.strides.row + head * o.strides.head;
}

// Where the keys (or values) [first, first + count) of a key head lie.
template <class T>
static void find_keys(const T** rows, const Attention& a, const Operand& o, const Sequence& s, int64_t key_head,
                      int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t key = first + i;
    rows[i] = s.pages == nullptr ? row_of<const T>(o, s.key_batch, s.first_key + key, key_head)
                                 : row_of<const T>(o, s.pages[key / a.page], key % a.page, key_head);
  }
}

// Asked for before it is read: a projection's rows lie a page apart, where the hardware asks for nothing ahead. Into
// the second cache: what is on its way to the first one takes up one of few places there, and what lies 4096 bytes
// apart would push itself out.
template <class T>
HOTSWAP_INLINE void ask_for(const T* row, int64_t numbers) {
  constexpr int64_t kLine = 64 / int64_t(sizeof(T));
  for (int64_t i = 0; i < numbers; i += kLine) __builtin_prefetch(row + i, 0, 2);
}
template <class T>
HOTSWAP_INLINE void ask_for_rows(const T* const* rows, int64_t count, int64_t numbers) {
  for (int64_t i = 0; i < count; ++i) ask_for(rows[i], numbers);
}

// One row times `scale`, zeros up to padded(count).
template <class T>
HOTSWAP_INLINE void widen_row(float* to, const T* row, int64_t count, float scale) {
  sweep(count, [&](int64_t i, auto part) HOTSWAP_LAMBDA { store(to + i, scale * load(row + i, part)); });
  for (int64_t i = (count + kLanes - 1) / kLanes * kLanes; i < padded(count); ++i) to[i] = 0.f;
}

// to[number][row], kKeysStride apart; rows beyond `count` are zeros, up to whole vectors.
template <class T>
static void transpose_rows(float* to, const T* const* rows, int64_t count, int64_t numbers) {
#if HOTSWAP_AVX512
  sweep(numbers, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
    const int64_t wide = least(kLanes, numbers - i);
    for (int64_t row = 0; row < count; row += kLanes) {
      const int64_t here = least(kLanes, count - row);
      F square[kLanes] = {};
      for (int64_t r = 0; r < here; ++r) square[r] = load(rows[row + r] + i, part);
      transpose(square);
      for (int64_t n = 0; n < wide; ++n) store(to + (i + n) * kKeysStride + row, square[n]);
    }
  });
#else
  const int64_t all = (count + kLanes - 1) / kLanes * kLanes;
  float wide[kLanes];
  for (int64_t row = 0; row < all; ++row) {
    if (row >= count) {
      for (int64_t n = 0; n < numbers; ++n) to[n * kKeysStride + row] = 0.f;
      continue;
    }
    sweep(numbers, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
      store(wide, load(rows[row] + i, part));
      const int64_t here = least(kLanes, numbers - i);
      for (int64_t n = 0; n < here; ++n) to[(i + n) * kKeysStride + row] = wide[n];
    });
  }
#endif
}

// Rows of `numbers` bfloat16 as rows of pairs, and keys as pairs across: to[pair][row].
HOTSWAP_INLINE void copy_pairs(uint32_t* to, const BFloat16* row, int64_t numbers) {
  __builtin_memcpy(to, row, size_t(numbers) * sizeof *row);
}
HOTSWAP_INLINE void transpose_pairs(float* to, const BFloat16* const* rows, int64_t count, int64_t numbers) {
  transpose_rows(to, reinterpret_cast<const float* const*>(rows), count,
                 numbers / 2);  // they are moved, whatever they are
}

// scores = a k: by numbers widened first, or by pairs. `factor`: of pairs; of the others it is in a already.
struct Scored {
  const float* wide;      // [rows, wide_row]
  const uint32_t* pairs;  // [rows, pairs_row], or null
  int64_t wide_row, pairs_row;

  Scored from(int64_t row) const {
    return {wide + row * wide_row, pairs == nullptr ? nullptr : pairs + row * pairs_row, wide_row, pairs_row};
  }
};
HOTSWAP_INLINE void multiply_scores(float* scores, Scored a, const float* across, int64_t rows, int64_t cols,
                                    int64_t numbers, float factor) {
  if (a.pairs != nullptr)
    return multiply_pairs<Into::kSet>(scores, kKeysStride, {a.pairs, a.pairs_row, 1}, {across, kKeysStride}, rows, cols,
                                      numbers / 2, factor);
  multiply<Into::kSet>(scores, kKeysStride, {a.wide, a.wide_row, 1}, {across, kKeysStride}, rows, cols, numbers);
}
// Keys (or values) across, as multiply_scores() wants them.
template <class T>
static void lay_across(float* to, const T* const* rows, int64_t count, int64_t numbers, bool pairs) {
  if constexpr (__is_same(T, BFloat16)) {
    if (pairs) return transpose_pairs(to, rows, count, numbers);
  }
  transpose_rows(to, rows, count, numbers);
}

// Two rows of bfloat16 as pairs, one of each: to[number], zeros up to padded(numbers). `second` may be null: zeros.
HOTSWAP_INLINE void pair_down(uint32_t* to, const BFloat16* row, const BFloat16* second, int64_t numbers) {
  interleave(to, reinterpret_cast<const uint16_t*>(row), reinterpret_cast<const uint16_t*>(second), numbers);
  for (int64_t i = numbers; i < padded(numbers); ++i) to[i] = 0;
}

// The heads of the group at each of the rows [first, end): to[row][head][number].
template <class T>
static void widen_rows(float* to, const Attention& a, const Operand& o, const Sequence& s, const Item& item,
                       int64_t first, int64_t end, int64_t numbers, float scale) {
  const int64_t group = a.group();
  for (int64_t row = first; row < end; ++row) {
    for (int64_t h = 0; h < group; ++h, to += padded(numbers))
      widen_row(to, row_of<const T>(o, s.batch, s.first_row + row, item.key_head * group + h), numbers, scale);
  }
}

// The same as pairs, where they are wanted.
template <class T>
static void pair_rows(uint32_t* to, const Attention& a, const Operand& o, const Sequence& s, const Item& item,
                      int64_t first, int64_t end, int64_t numbers) {
  if constexpr (__is_same(T, BFloat16)) {
    if (to == nullptr) return;
    const int64_t group = a.group();
    for (int64_t row = first; row < end; ++row) {
      for (int64_t h = 0; h < group; ++h, to += padded(numbers) / 2)
        copy_pairs(to, row_of<const T>(o, s.batch, s.first_row + row, item.key_head * group + h), numbers);
    }
  }
}

}  // namespace attention::HOTSWAP_ISA
