// Rows of q, k and v, wherever they lie, as float32 tiles in scratch memory.
#pragma once

#include "kernels/attention/cpu/span.h"
#include "kernels/common/cpu/gemm.h"
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
  for (int64_t row = 0; row < count; row += kLanes) {
    const int64_t here = least(kLanes, count - row);
    sweep(numbers, [&](int64_t i, auto part) HOTSWAP_LAMBDA {
      F square[kLanes] = {};
      for (int64_t r = 0; r < here; ++r) square[r] = load(rows[row + r] + i, part);
      transpose(square);
      const int64_t wide = least(kLanes, numbers - i);
      for (int64_t n = 0; n < wide; ++n) store(to + (i + n) * kKeysStride + row, square[n]);
    });
  }
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

}  // namespace attention::HOTSWAP_ISA
