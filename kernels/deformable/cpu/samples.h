// Where the samples of a query and head lie on the CPU: four corners each, as addresses and shares, so that what walks
// over them has no branch. A corner outside is at a row of zeros (or, for gradients, at one that nobody reads), and its
// share is 0.
#pragma once

#include "kernels/deformable/cpu/numbers.h"

namespace deformable::HOTSWAP_ISA {

constexpr int kChunk = 64;  // samples in a table; more than models have
constexpr int kGroup = 4;   // a table is filled up to a multiple of it, with samples that lie nowhere

// Of each sample of a query and head its level, the same for all of them.
template <class S>
struct Levelled {
  using N = typename Wide<S>::N;
  S width[kChunk], height[kChunk];
  N step[kChunk], rows[kChunk], start[kChunk];  // width and height in whole numbers
};
template <class S>
static void spread_levels(const Levels& levels, int64_t begin, int n, Levelled<S>& at) {
  using N = typename Wide<S>::N;
  int l = 0;
  for (int j = 0; j < n; ++j) {
    while (begin + j >= levels.first[l + 1]) ++l;
    const Level& level = levels.known[l];
    at.width[j] = S(level.width), at.height[j] = S(level.height);
    at.step[j] = N(level.width), at.rows[j] = N(level.height), at.start[j] = N(level.start);
  }
  for (int j = n; j < kChunk; ++j) {
    at.width[j] = at.height[j] = S(-1);  // no place lies on it
    at.step[j] = at.rows[j] = at.start[j] = 0;
  }
}

template <class S>
struct Samples {
  Levelled<S> level;
  typename Wide<S>::N row[4][kChunk];  // of each corner; -1: outside
  S weight[4][kChunk];                 // a and the corner's share
  S fx[kChunk], fy[kChunk], a[kChunk];
};

template <class V, class E>
HOTSWAP_INLINE V vector_at(const E* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class E>
HOTSWAP_INLINE void put(E* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// A vector of x and one of y out of n pairs, as many as there are; others are 0.
template <class S, class V>
HOTSWAP_INLINE void split(const S* xy, int n, V& x, V& y) {
  constexpr int kStep = kVector<S>;
  S pairs[2 * kStep] = {}, each[2][kStep];
  if (n < kStep) {
    for (int i = 0; i < 2 * n; ++i) pairs[i] = xy[i];
    xy = pairs;
  }
  for (int i = 0; i < kStep; ++i) each[0][i] = xy[2 * i], each[1][i] = xy[2 * i + 1];
  x = load(each[0]), y = load(each[1]);
}

// Samples [begin, begin + n) of a row of locations and weights.
template <class S>
static void find(const Problem& p, int64_t index, int64_t begin, int n, Samples<S>& s) {
  using V = typename Wide<S>::V;
  using W = typename Wide<S>::W;
  constexpr int kStep = kVector<S>;
  S xy_buffer[2 * kChunk], a_buffer[kChunk];
  const int64_t at = index * p.samples + begin;
  const S* xy = read_numbers(p.locations, p.location_type, 2 * at, 2 * n, xy_buffer);
  const S* given = read_numbers(p.weights, p.weight_type, at, n, a_buffer);
  if (p.samples > kChunk) spread_levels(p.levels, begin, n, s.level);  // else done once for all rows
  const V zero = {}, one = zero + S(1);
  const W outside = W{} - 1;
  for (int j = 0; j < (n + kGroup - 1) / kGroup * kGroup; j += kStep) {
    const V width = load(s.level.width + j), height = load(s.level.height + j);
    const W step = vector_at<W>(s.level.step + j), rows = vector_at<W>(s.level.rows + j);
    V px, py;
    split(xy + 2 * j, n - j, px, py);
    px = px * width - S(0.5), py = py * height - S(0.5);
    // NaN is in none of them, and no number beyond N is converted.
    const W in = (px > -one) & (px < width) & (py > -one) & (py < height);
    px = in ? px : zero, py = in ? py : zero;
    const W x0 = __builtin_convertvector(px, W) + (px < zero);  // floor: true is -1
    const W y0 = __builtin_convertvector(py, W) + (py < zero);
    const V fx = px - __builtin_convertvector(x0, V), fy = py - __builtin_convertvector(y0, V);
    const V a = in ? (n - j >= kStep ? load(given + j, All{}) : load(given + j, Part{n - j})) : zero;
    put(s.fx + j, fx), put(s.fy + j, fy), put(s.a + j, a);
    const W columns[2] = {in & (x0 >= 0), in & (x0 + 1 < step)}, lines[2] = {y0 >= 0, y0 + 1 < rows};
    const V across[2] = {one - fx, fx}, down[2] = {a * (one - fy), a * fy};
    const W first = vector_at<W>(s.level.start + j) + y0 * step + x0;
    for (int k = 0; k < 4; ++k) {
      const W there = columns[k % 2] & lines[k / 2];
      put(s.row[k] + j, there ? first + k % 2 + (k / 2 ? step : W{}) : outside);
      put(s.weight[k] + j, there ? across[k % 2] * down[k / 2] : zero);
    }
  }
}

// Where each corner's numbers begin: rows of `stride` from `data`, and `none` for corners outside.
template <class P>
struct Corners {
  P* at[4][kChunk];
};
template <class P, class S>
static void point(const Samples<S>& s, int n, P* data, int64_t stride, P* none, Corners<P>& corners) {
  const int64_t begin = int64_t(data), size = stride * int64_t(sizeof(P)), nowhere = int64_t(none);
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < (n + kGroup - 1) / kGroup * kGroup; ++j) {
      const int64_t row = s.row[k][j];
      corners.at[k][j] = (P*)(row < 0 ? nowhere : begin + row * size);
    }
  }
}

}  // namespace deformable::HOTSWAP_ISA
