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
// start are short ones and all multiprocessors end together.
struct TileOrder {
  int tiles, row_tiles, heads, section_heads;  // heads: of all batches
  bool last_rows_first;
};

struct Tile {
  int row_tile, head;  // head: of all batches
};

HOTSWAP_BOTH Tile tile_at(const TileOrder& order, int index) {
  const int section_tiles = order.section_heads * order.row_tiles;
  const int section = index / section_tiles, within = index - section * section_tiles;
  const int first = section * order.section_heads;
  const int heads = order.heads - first < order.section_heads ? order.heads - first : order.section_heads;
  const int row = within / heads;
  return {order.last_rows_first ? order.row_tiles - 1 - row : row, first + within - row * heads};
}

// Rows see keys [row + before, row + after), cut to [0, keys): what causality and windows come to.
struct Band {
  int before, after, keys;
};

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

}  // namespace attention
