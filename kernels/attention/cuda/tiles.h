// Which tile of query rows a block computes next, and which keys that tile reads: pure functions, the same on the host
// (tests) and in kernels.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HOTSWAP_BOTH __host__ __device__ __forceinline__
#else
#define HOTSWAP_BOTH inline
#endif

namespace attention {

// The order of tiles. All rows of a section's heads come before the next section, so that the keys and values being
// read stay in L2. Within a section a causal tile's length grows with its row: longest first, so that the last tiles to
// start are short ones and all multiprocessors end together. With a window a head's first tiles alone are short: they
// come behind all others, the longest first.
//
// Sections are about equal: a last one of fewer tiles than there are multiprocessors would begin with its longest tiles
// when all others have ended.
struct TileOrder {
  int tiles, row_tiles, heads, section_heads;  // heads: of all batches
  bool last_rows_first;
  int short_tiles;          // of a head
  int larger_sections = 0;  // the first so many have a head more
};

struct Sections {
  int heads, larger;  // of each, and how many have one more
};

// Of at least `least` heads each, if there are so many.
HOTSWAP_BOTH Sections equal_sections(int heads, int least) {
  const int sections = least < 1 || heads < least ? 1 : heads / least;
  return {heads / sections, heads % sections};
}

struct Tile {
  int row_tile, head;  // head: of all batches
};

HOTSWAP_BOTH Tile tile_at(const TileOrder& order, int index) {
  const int long_tiles = order.row_tiles - order.short_tiles, all_long = long_tiles * order.heads;
  if (index >= all_long && order.short_tiles > 0) {
    const int row = (index - all_long) / order.heads;
    return {order.short_tiles - 1 - row, index - all_long - row * order.heads};
  }
  const int all_larger = order.larger_sections * (order.section_heads + 1);  // heads
  const bool larger = index < all_larger * long_tiles;
  const int size = order.section_heads + (larger ? 1 : 0), from = larger ? 0 : all_larger;
  const int section = (index - from * long_tiles) / (size * long_tiles), first = from + section * size;
  const int within = index - first * long_tiles;
  const int heads = order.heads - first < size ? order.heads - first : size;
  const int row = within / heads;
  return {order.last_rows_first ? order.row_tiles - 1 - row : order.short_tiles + row, first + within - row * heads};
}

// Rows see keys [row + before, row + after), cut to [0, keys): what causality and windows come to.
struct Band {
  int before, after, keys;
};

// Row i stands at key i + keys - query_rows. left, right: keys before and after it that it sees; below 0: no limit. All
// numbers are below 2^30, and so are the ends that come out, added to a row.
HOTSWAP_BOTH Band band_of(int query_rows, int keys, int left, int right) {
  const int n = keys - query_rows, all = keys + query_rows;
  return {left < 0 || left > all ? -all
          : n - left < -all      ? -all
                                 : n - left,
          right < 0 || right > all ? all
          : n + right + 1 > all    ? all
                                   : n + right + 1,
          keys};
}

// Key tiles [first, end) of `width` keys that some row of [row, row_end) sees; of these all keys are seen by all the
// rows in [first_whole, end_whole).
struct KeyTiles {
  int first, end, first_whole, end_whole;
};

template <bool kLeft>  // false: no row has a left end, before is not read
HOTSWAP_BOTH KeyTiles key_tiles(const Band& band, int row, int row_end, int width) {
  const auto most = [](int a, int b) { return a > b ? a : b; };
  const auto least = [](int a, int b) { return a < b ? a : b; };
  const int stop = most(0, least(band.keys, row_end - 1 + band.after));
  const int stop_of_all = most(0, least(band.keys, row + band.after));
  KeyTiles t{0, (stop + width - 1) / width, 0, stop_of_all / width};
  if (kLeft) {
    t.first = least(t.end, most(0, row + band.before) / width);
    t.first_whole = (most(0, row_end - 1 + band.before) + width - 1) / width;
  }
  t.end_whole = most(t.first, t.end_whole);
  t.first_whole = least(most(t.first, t.first_whole), t.end_whole);
  return t;
}

// The other way round, for backward: tiles [first, end) of `height` query rows of which some row sees some of the keys
// [key, key_end); in [first_whole, end_whole) all rows see all of these. Rows from `rows` on do not count.
struct QueryTiles {
  int first, end, first_whole, end_whole;
};

template <bool kLeft>
HOTSWAP_BOTH QueryTiles query_tiles(const Band& band, int key, int key_end, int rows, int height) {
  const auto most = [](int a, int b) { return a > b ? a : b; };
  const auto least = [](int a, int b) { return a < b ? a : b; };
  const int stop = least(key_end, band.keys);
  const int row = most(0, key - band.after + 1);  // the first row that sees `key`, and so any
  const int last = kLeft ? least(rows - 1, stop - 1 - band.before) : rows - 1;
  if (stop <= key || last < row) return {0, 0, 0, 0};
  QueryTiles t{row / height, last / height + 1, 0, 0};
  t.first_whole = key_end > band.keys ? t.end : (most(0, key_end - band.after) + height - 1) / height;
  t.first_whole = least(most(t.first, t.first_whole), t.end);
  const int end_of_all = kLeft ? most(0, key - band.before + 1) : rows;  // of the rows that see all from `key` on
  t.end_whole = end_of_all >= rows ? t.end : least(t.end, end_of_all / height);
  t.end_whole = most(t.first_whole, t.end_whole);
  return t;
}

// Tiles of all sequences of a batch in one row, "slots". Packed sequences, whose lengths only the GPU knows, begin at
// slot starts[b] / height + b: enough for each, and found by a search; some slots stay empty. The rows behind the last
// sequence are one more.
HOTSWAP_BOTH int64_t slots_of(bool packed, int64_t batch, int64_t rows, int height) {
  return packed ? rows / height + batch + 1 : batch * ((rows + height - 1) / height);
}

}  // namespace attention
