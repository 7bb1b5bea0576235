// Products of many rows with packed weights: a panel of weights is decoded once and multiplied with all rows, in tiles
// of sums that registers hold. A sum has the order of packed_rows.h, so a row has the same bits as one that is
// streamed.
//
// A tile reads from the first cache: a slab of kTileOuts outputs' weights stays there while rows pass by.
// Included by files that are compiled once per ISA.
#pragma once

#include "kernels/common/cpu/packed_rows.h"

namespace kernels::HOTSWAP_ISA {

constexpr int kTileRows = kLanes == 4 ? 2 : 4;  // 24 sums of 32 registers, 12 of 16
constexpr int kTileOuts = kLanes == 16 ? 6 : 3;
constexpr int kTileSums = kTileRows * kTileOuts;
constexpr int64_t kPanelTiles = 16;  // whose weights of a slab are decoded at once
constexpr int64_t kPanelRows = 512;  // which it serves at most
constexpr int64_t kBlockRows = 32;   // whose slab of x stays in the second cache

// Floats of memory, aligned to 64 bytes, that the product needs beside its operands.
HOTSWAP_INLINE int64_t packed_room(int64_t rows, int64_t in) {
  if (rows <= kStreamedRows) return 0;
  const int64_t steps = (lesser(rows, kPanelRows) + kTileRows - 1) / kTileRows;
  return kPanelTiles * (kTileOuts * lesser(in, kSlab) + steps * kTileSums);
}

// Rows [row, row + count) of x, those of one tile, as tiles read them: slab after slab; in a slab tile after tile, each
// [slab / kLanes, rows of the tile, kLanes], so that a tile reads one stream of memory.
template <class RowOf>
HOTSWAP_INLINE void interleave_rows(float* to, const RowOf& row_of, int64_t row, int64_t count, int64_t rows,
                                    int64_t in) {
  for (int64_t from = 0; from < in; from += kSlab) {
    const int64_t slab = lesser(in - from, kSlab);
    float* const tile = to + from * rows + row * slab;
    for (int64_t r = 0; r < count; ++r) {
      const auto* from_row = row_of(row + r) + from;
      for (int64_t i = 0; i < slab; i += kLanes) store(tile + i * count + r * kLanes, load(from_row + i));
    }
  }
}

// A row of weights is blocks in memory, each of which each_vector() hands over as vectors of float32.
template <Packing kPacking>
struct PackedBlocks {
  static constexpr int64_t kBlock = packed_block(kPacking), kBytes = packed_bytes(kPacking);
  template <class Use>
  HOTSWAP_INLINE void each_vector(const char* block, const Use& use) {
    const GroupFactors<kPacking> factors = factors_of<kPacking>(block);
#pragma GCC unroll 8  // shifts by a constant are half of others
    for (int g = 0; g < kBlock / kPackedGroup; ++g) {
      F v[2 * kHalf];
      unpack<kPacking>(block, g, factors, v);
      for (int j = 0; j < 2 * kHalf; ++j) use(v[j]);
    }
  }
};
template <class T>
struct PlainBlocks {  // elements of T, as they are
  static constexpr int64_t kBlock = kPackedGroup, kBytes = kBlock * sizeof(T);
  template <class Use>
  HOTSWAP_INLINE void each_vector(const char* block, const Use& use) {
    for (int i = 0; i < kBlock; i += kLanes) use(load(reinterpret_cast<const T*>(block) + i));
  }
};

// Of one tile's outputs: [in / kLanes, kTileOuts, kLanes]. Of outputs that are not there, zeros.
template <class Blocks>
HOTSWAP_OUT_OF_LINE void unpack_tile(float* to, const char* from, int64_t w_stride, int64_t outs, int64_t in) {
  constexpr int64_t kStep = kTileOuts * kLanes;
  for (int64_t o = 0; o < kTileOuts; ++o, from += w_stride) {
    float* at = to + o * kLanes;
    const char* block = from;
    for (int64_t i = 0; i < in && o < outs; i += Blocks::kBlock, block += Blocks::kBytes) {
      Blocks::each_vector(block, [&](F v) HOTSWAP_LAMBDA { store(at, v), at += kStep; });
    }
    for (int64_t i = 0; i < in && o >= outs; i += kLanes, at += kStep) store(at, F{});
  }
}

// kTileRows rows or fewer from `row` on, kTileOuts outputs from `out` on of which `outs` are there, a slab of `in`.
struct Tile {
  const float* x;  // as interleave_rows() leaves it
  const float* w;  // as unpack_tile() leaves it
  float* totals;   // [rows, kTileOuts], of the slabs before
  int64_t slab, row, out, outs;
  bool first, last;  // slab
};

// Each output's total, in the order of sum(): lanes and lanes + 8, then + 4, + 2, + 1.
#if HOTSWAP_AVX512
HOTSWAP_INLINE __m512 both_halves(F a, F b) {  // of a the lower eight lanes, of b the upper ones
  return _mm512_add_ps(_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44),
                       _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee));
}
HOTSWAP_INLINE __m512 four_quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
HOTSWAP_INLINE void totals_of_eight(float* to, const F* s) {
  const __m512 a = four_quarters(both_halves(s[0], s[1]), both_halves(s[2], s[3]));
  const __m512 b = four_quarters(both_halves(s[4], s[5]), both_halves(s[6], s[7]));
  const __m512d low = _mm512_unpacklo_pd((__m512d)a, (__m512d)b), high = _mm512_unpackhi_pd((__m512d)a, (__m512d)b);
  const __m512 pairs = _mm512_add_ps((__m512)low, (__m512)high);  // of each 128 bits two lanes of a's, two of b's
  const __m512 t = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, t)));
}
#endif
template <int kCount>
HOTSWAP_INLINE void totals(float (&to)[kCount], const F (&s)[kCount][kSums]) {
  int i = 0;
#if HOTSWAP_AVX512
#pragma GCC unroll 3
  for (; i + 8 <= kCount; i += 8) totals_of_eight(to + i, &s[i][0]);
#endif
#pragma GCC unroll 24
  for (; i < kCount; ++i) to[i] = total(s[i]);
}

// y of one tile: [rows, kTileOuts] totals.
HOTSWAP_OUT_OF_LINE void finish_tile(PackedProduct a, Tile t, int64_t rows) {
  const float* totals = t.totals;
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    const auto* bias = static_cast<const T*>(a.bias);
    T* y = static_cast<T*>(a.y) + t.row * a.y_stride + t.out;
    const int64_t outs = t.outs < kTileOuts ? t.outs : kTileOuts;
    for (int64_t r = 0; r < rows; ++r, y += a.y_stride, totals += kTileOuts) {
      sweep(outs, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
        store(y + i, load(totals + i, count) + (bias == nullptr ? F{} : load(bias + t.out + i, count)), count);
      });
    }
  });
}

template <int kRows>
HOTSWAP_OUT_OF_LINE void multiply_tile(PackedProduct a, Tile t) {
  F s[kRows * kTileOuts][kSums] = {};
  const float *x = t.x, *w = t.w;
  for (const float* end = x + kRows * t.slab; x < end;) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kHalf; ++i, x += kRows * kLanes, w += kTileOuts * kLanes) {
      F weights[kTileOuts];
#pragma GCC unroll 6
      for (int o = 0; o < kTileOuts; ++o) weights[o] = load(w + o * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const F v = load(x + r * kLanes);
#pragma GCC unroll 6
        for (int o = 0; o < kTileOuts; ++o) s[r * kTileOuts + o][sum_of_vector(i)] += weights[o] * v;
      }
    }
  }
  float all[kRows * kTileOuts];
  totals(all, s);
  for (int i = 0; i < kRows * kTileOuts; ++i) t.totals[i] = t.first ? all[i] : t.totals[i] + all[i];
  if (t.last) finish_tile(a, t, kRows);
}

HOTSWAP_INLINE void multiply_tile(const PackedProduct& a, const Tile& t, int64_t rows) {
  if constexpr (kTileRows > 2) {
    if (rows >= 4) return multiply_tile<4>(a, t);
    if (rows == 3) return multiply_tile<3>(a, t);
  }
  if (rows >= 2) return multiply_tile<2>(a, t);
  multiply_tile<1>(a, t);
}

// Outputs [begin, end), at most a panel, of rows [first, end_row), at most kPanelRows.
template <class Blocks>
HOTSWAP_OUT_OF_LINE void packed_panel(PackedProduct a, int64_t begin, int64_t end, int64_t first, int64_t end_row) {
  const int64_t tiles = (end - begin + kTileOuts - 1) / kTileOuts,
                steps = (end_row - first + kTileRows - 1) / kTileRows;
  const int64_t tile_weights = kTileOuts * lesser(a.in, kSlab);
  float* const totals = a.room + kPanelTiles * tile_weights;
  for (int64_t from = 0; from < a.in; from += kSlab) {
    const int64_t slab = lesser(a.in - from, kSlab);
    const char* w = static_cast<const char*>(a.w) + from / Blocks::kBlock * Blocks::kBytes;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t out = begin + i * kTileOuts;
      unpack_tile<Blocks>(a.room + i * tile_weights, w + out * a.w_stride, a.w_stride, end - out, slab);
    }
    for (int64_t block = first; block < end_row; block += kBlockRows) {
      const int64_t last = lesser(block + kBlockRows, end_row);
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t out = begin + i * kTileOuts;
        for (int64_t row = block; row < last; row += kTileRows) {
          multiply_tile(a,
                        {.x = a.x + from * a.rows + row * slab,
                         .w = a.room + i * tile_weights,
                         .totals = totals + (i * steps + (row - first) / kTileRows) * kTileSums,
                         .slab = slab,
                         .row = row,
                         .out = out,
                         .outs = end - out,
                         .first = from == 0,
                         .last = from + slab == a.in},
                        last - row);
        }
      }
    }
  }
}

template <class Blocks>
HOTSWAP_INLINE void packed_many(const PackedProduct& a, int64_t begin, int64_t end) {
  constexpr int64_t kPanel = kPanelTiles * kTileOuts;
  for (int64_t row = 0; row < a.rows; row += kPanelRows) {
    const int64_t last = lesser(row + kPanelRows, a.rows);
    for (int64_t out = begin; out < end; out += kPanel) {
      packed_panel<Blocks>(a, out, lesser(out + kPanel, end), row, last);
    }
  }
}

}  // namespace kernels::HOTSWAP_ISA
