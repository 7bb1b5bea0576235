// The order of tiles and the keys of each, against counting one by one; no GPU.
#include "kernels/attention/cuda/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace {

using namespace attention;

TEST(TileOrder, TakesEveryTileOnce) {
  for (const int row_tiles : {1, 2, 7}) {
    for (const int heads : {1, 3, 8}) {
      for (const int least : {0, 1, 2, 3, 5, 8, 100}) {
        for (const bool last_first : {false, true}) {
          for (int short_tiles = 0; short_tiles <= row_tiles; ++short_tiles) {
            for (const bool equal : {false, true}) {
              const Sections sections = equal ? equal_sections(heads, least) : Sections{std::max(1, least), 0};
              const TileOrder order{.tiles = row_tiles * heads,
                                    .row_tiles = row_tiles,
                                    .heads = heads,
                                    .section_heads = sections.heads,
                                    .last_rows_first = last_first,
                                    .short_tiles = short_tiles,
                                    .larger_sections = sections.larger};
              std::set<std::pair<int, int>> seen;
              for (int i = 0; i < order.tiles; ++i) {
                const Tile t = tile_at(order, i);
                EXPECT_TRUE(0 <= t.row_tile && t.row_tile < row_tiles && 0 <= t.head && t.head < heads);
                EXPECT_EQ(t.row_tile < short_tiles, i >= (row_tiles - short_tiles) * heads);
                seen.insert({t.row_tile, t.head});
              }
              EXPECT_EQ(int(seen.size()), order.tiles);
            }
          }
        }
      }
    }
  }
}

TEST(TileOrder, LongestFirstWithinASection) {
  const TileOrder order{.tiles = 24, .row_tiles = 4, .heads = 6, .section_heads = 4, .last_rows_first = true};
  for (int i = 1; i < 16; ++i) EXPECT_LE(tile_at(order, i).row_tile, tile_at(order, i - 1).row_tile);
  EXPECT_EQ(tile_at(order, 0).row_tile, 3);
  EXPECT_EQ(tile_at(order, 15).head, 3);
  EXPECT_EQ(tile_at(order, 16).head, 4) << "the next section's heads";
  EXPECT_EQ(tile_at(order, 16).row_tile, 3);
}

TEST(TileOrder, ShortOnesBehindAllOthersLongestFirst) {
  const TileOrder order{
      .tiles = 20, .row_tiles = 5, .heads = 4, .section_heads = 1, .last_rows_first = false, .short_tiles = 2};
  EXPECT_EQ(tile_at(order, 0).row_tile, 2);
  EXPECT_EQ(tile_at(order, 11).head, 3);
  EXPECT_EQ(tile_at(order, 12).row_tile, 1);
  EXPECT_EQ(tile_at(order, 15).head, 3);
  EXPECT_EQ(tile_at(order, 16).row_tile, 0);
}

TEST(TileOrder, SectionsAreAboutEqual) {
  EXPECT_EQ(equal_sections(64, 10).heads, 10);
  EXPECT_EQ(equal_sections(64, 10).larger, 4) << "11, 11, 11, 11, 10, 10";
  EXPECT_EQ(equal_sections(64, 16).larger, 0);
  EXPECT_EQ(equal_sections(5, 10).heads, 5);
  const TileOrder order{.tiles = 14,
                        .row_tiles = 2,
                        .heads = 7,
                        .section_heads = 2,
                        .last_rows_first = false,
                        .short_tiles = 0,
                        .larger_sections = 1};
  EXPECT_EQ(tile_at(order, 2).head, 2);
  EXPECT_EQ(tile_at(order, 3).row_tile, 1);
  EXPECT_EQ(tile_at(order, 6).head, 3) << "the next section's heads";
  EXPECT_EQ(tile_at(order, 10).head, 5);
}

// What key_tiles promises, by looking at every row and key.
template <bool kLeft>
void check_key_tiles(const Band& band, int row, int row_end, int width) {
  const auto sees = [&](int i, int j) {
    return j >= 0 && j < band.keys && j < i + band.after && (!kLeft || j >= i + band.before);
  };
  const KeyTiles t = key_tiles<kLeft>(band, row, row_end, width);
  ASSERT_LE(0, t.first);
  ASSERT_LE(t.first, t.first_whole);
  ASSERT_LE(t.first_whole, t.end_whole);
  for (int tile = 0; tile * width < band.keys + 2 * width; ++tile) {
    bool any = false, all = true;
    for (int i = row; i < row_end; ++i) {
      for (int j = tile * width; j < (tile + 1) * width; ++j) (sees(i, j) ? any : all) = sees(i, j);
    }
    const bool inside = t.first <= tile && tile < t.end;
    EXPECT_TRUE(inside || !any) << "tile " << tile << " is seen and left out: rows " << row << " to " << row_end
                                << ", before " << band.before << ", after " << band.after << ", keys " << band.keys;
    const bool unmasked = inside && t.first_whole <= tile && tile < t.end_whole;
    EXPECT_TRUE(!unmasked || all) << "tile " << tile << " needs a mask: rows " << row << " to " << row_end
                                  << ", before " << band.before << ", after " << band.after << ", keys " << band.keys;
    EXPECT_TRUE(!inside || unmasked || !all || kLeft) << "tile " << tile << " is masked for nothing";
  }
}

TEST(KeyTiles, AgreesWithCounting) {
  constexpr int kWidth = 4;
  for (const int keys : {0, 1, 4, 7, 16}) {
    for (const int after : {-20, -3, 0, 1, 2, 5, 40}) {
      for (int row = 0; row < 20; row += 3) {
        for (const int rows : {1, 3, 6}) {
          check_key_tiles<false>({.before = 0, .after = after, .keys = keys}, row, row + rows, kWidth);
          for (const int width : {1, 2, 6, 30})
            check_key_tiles<true>({.before = after - width, .after = after, .keys = keys}, row, row + rows, kWidth);
        }
      }
    }
  }
}

// What query_tiles promises, by looking at every row and key.
template <bool kLeft>
void check_query_tiles(const Band& band, int key, int width, int rows, int height) {
  const auto sees = [&](int i, int j) {
    return j < band.keys && j < i + band.after && (!kLeft || j >= i + band.before);
  };
  const QueryTiles t = query_tiles<kLeft>(band, key, key + width, rows, height);
  ASSERT_LE(0, t.first);
  ASSERT_LE(t.first, t.first_whole);
  ASSERT_LE(t.first_whole, t.end_whole);
  ASSERT_LE(t.end_whole, t.end);
  for (int tile = 0; tile * height < rows; ++tile) {
    bool any = false, all = true;
    for (int i = tile * height; i < rows && i < (tile + 1) * height; ++i) {
      for (int j = key; j < key + width; ++j) (sees(i, j) ? any : all) = sees(i, j);
    }
    const bool inside = t.first <= tile && tile < t.end, unmasked = t.first_whole <= tile && tile < t.end_whole;
    EXPECT_EQ(inside, any) << "tile " << tile << " of keys from " << key << ", rows " << rows << ", before "
                           << band.before << ", after " << band.after << ", keys " << band.keys;
    EXPECT_TRUE(!unmasked || all) << "tile " << tile << " needs a mask: keys from " << key << ", rows " << rows
                                  << ", before " << band.before << ", after " << band.after << ", keys " << band.keys;
    // Key tiles that add to a tile of queries take turns by this number (sm90_backward_consumer.cuh).
    if (inside && width == 4)
      EXPECT_LT(key / width, key_tiles<kLeft>(band, tile * height, std::min(rows, (tile + 1) * height), width).end);
  }
  EXPECT_LE(t.end * height, rows + height - 1);
}

TEST(QueryTiles, AgreesWithCounting) {
  for (const int keys : {0, 1, 4, 7, 16}) {
    for (const int after : {-20, -3, 0, 1, 2, 5, 40}) {
      for (int key = 0; key < 20; key += 4) {
        for (const int rows : {0, 1, 3, 6, 12, 17}) {
          check_query_tiles<false>({.before = 0, .after = after, .keys = keys}, key, 4, rows, 3);
          for (const int width : {1, 2, 6, 30})
            check_query_tiles<true>({.before = after - width, .after = after, .keys = keys}, key, 4, rows, 3);
        }
      }
    }
  }
}

TEST(Band, IsCausalityAndWindowFromTheLastRow) {
  const Band causal = band_of(5, 7, -1, 0);  // row 0 stands at key 2
  EXPECT_EQ(causal.after, 3);
  EXPECT_LE(4 + causal.before, 0);
  const Band window = band_of(7, 5, 2, 1);  // row 0 stands at key -2
  EXPECT_EQ(window.before, -4);
  EXPECT_EQ(window.after, 0);
  const Band wide = band_of(7, 5, 1 << 30, 1 << 30);
  EXPECT_LE(6 + wide.before, 0);
  EXPECT_GE(wide.after, 5);
}

TEST(Slots, AreEnoughForPackedSequences) {
  for (const int height : {1, 3, 64}) {
    int start = 0, next = 0;  // the slot behind the sequence before
    const int lengths[] = {0, 1, 64, 63, 65, 0, 0, 200, 3};
    int b = 0;
    for (const int length : lengths) {
      const int first = start / height + b++;
      EXPECT_LE(next, first);
      next = first + (length + height - 1) / height;
      start += length;
    }
    EXPECT_LE(next, start / height + b);
    EXPECT_EQ(slots_of(true, b, start, height), start / height + b + 1);
  }
}

}  // namespace
