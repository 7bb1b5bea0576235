// Which keys a row sees, and which rows see a key, with chunks as well: intervals whose two ends never fall from one
// index to the next. So what several rows see begins with the first one's and ends with the last one's, and what all of
// them see begins with the last one's and ends with the first one's. Pure functions, the same on the host (tests) and
// in kernels.
#pragma once

#include "kernels/attention/cuda/tiles.h"

namespace attention {

struct Span {
  int first, end;  // nothing: end <= first
};

// What one sequence's rows see. Row i stands at key i + ahead; all numbers are below 2^30 (Band).
struct VisibleRange {
  Band band;
  int rows, chunk;  // query rows; keys a chunk, 0: none

  HOTSWAP_BOTH int ahead() const { return band.keys - rows; }

  HOTSWAP_BOTH int chunk_of(int key) const {  // its first key
    const int within = key % chunk;
    return key - (within < 0 ? within + chunk : within);
  }
  HOTSWAP_BOTH static Span both(Span a, Span b) {
    return {a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};
  }

  HOTSWAP_BOTH Span keys_of(int row) const {
    const Span seen = both({0, band.keys}, {row + band.before, row + band.after});
    if (chunk == 0) return seen;
    const int begin = chunk_of(row + ahead());
    return both(seen, {begin, begin + chunk});
  }
  // Of a key that is there.
  HOTSWAP_BOTH Span rows_of(int key) const {
    const Span seeing = both({0, rows}, {key - band.after + 1, key - band.before + 1});
    if (chunk == 0) return seeing;
    const int begin = chunk_of(key) - ahead();
    return both(seeing, {begin, begin + chunk});
  }
};

// Tiles [first, end) of `width` that hold something of the spans from `a`'s to `b`'s; those in [first_whole, end_whole)
// lie in all of the spans.
HOTSWAP_BOTH KeyTiles tiles_of(Span a, Span b, int width) {
  if (b.end <= a.first) return {0, 0, 0, 0};
  KeyTiles t{a.first / width, (b.end + width - 1) / width, (b.first + width - 1) / width, a.end / width};
  t.first_whole = t.first_whole > t.first ? t.first_whole : t.first;
  t.first_whole = t.first_whole < t.end ? t.first_whole : t.end;
  t.end_whole = t.end_whole > t.first_whole ? t.end_whole : t.first_whole;
  t.end_whole = t.end_whole < t.end ? t.end_whole : t.end;
  return t;
}

}  // namespace attention
