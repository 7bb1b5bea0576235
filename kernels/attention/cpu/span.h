// Which keys a row sees: an interval, whatever causality, windows, chunks and lengths say together. Both its ends grow
// with the row, so that what several rows see begins with the first one's and ends with the last one's.
#pragma once

#include "kernels/attention/cpu/problem.h"

namespace attention::cpu {

struct Span {
  int64_t first, end;
  bool empty() const { return first >= end; }
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static inline Span cut(Span s, int64_t first, int64_t end) { return {most(s.first, first), least(s.end, end)}; }

// A row's place among the keys: the last row stands at the last key.
static inline int64_t place_of(const Sequence& s, int64_t row) { return row + s.keys - s.rows; }

static inline Span keys_of(const Attention& a, const Sequence& s, int64_t row) {
  const int64_t at = place_of(s, row);
  Span seen{0, s.keys};
  if (a.right != kNoLimit) seen.end = least(seen.end, at + a.right + 1);
  if (a.left != kNoLimit) seen.first = most(seen.first, at - a.left);
  if (a.chunk > 0) {
    const int64_t of_chunk = at % a.chunk, begin = at - (of_chunk < 0 ? of_chunk + a.chunk : of_chunk);
    seen = cut(seen, begin, begin + a.chunk);
  }
  return seen;
}

// What one of the rows [row, end) sees at least.
static inline Span keys_of(const Attention& a, const Sequence& s, int64_t row, int64_t end) {
  return {keys_of(a, s, row).first, keys_of(a, s, end - 1).end};
}

}  // namespace attention::cpu
