// Every tile comes once, whatever the sizes.
#include "kernels/moe/cuda/tile_order.h"

#include <gtest/gtest.h>

#include <set>

namespace {

TEST(TileOrder, EveryTileOnce) {
  for (const int rows : {1, 2, 15, 16, 17, 32, 33, 40}) {
    for (const int cols : {1, 3, 23, 112}) {
      for (const int together : {1, 4, 16}) {
        std::set<std::pair<int, int>> seen;
        for (int tile = 0; tile < rows * cols; ++tile) {
          const moe::TilePlace at = moe::place_of(tile, rows, cols, together);
          EXPECT_TRUE(at.row >= 0 && at.row < rows && at.col >= 0 && at.col < cols);
          seen.insert({at.row, at.col});
        }
        EXPECT_EQ(seen.size(), size_t(rows * cols)) << rows << " x " << cols << ", " << together << " together";
      }
    }
  }
}

TEST(TileOrder, WhatComesTogether) {
  EXPECT_EQ(moe::place_of(5, 40, 7, 1).col, 5);
  EXPECT_EQ(moe::place_of(5, 40, 7, 16).row, 5);
  EXPECT_EQ(moe::place_of(16, 40, 7, 16).col, 1);
  EXPECT_EQ(moe::place_of(2 * 16 * 7 + 8, 40, 7, 16).row, 32);  // the last group has eight
  EXPECT_EQ(moe::place_of(2 * 16 * 7 + 8, 40, 7, 16).col, 1);
}

}  // namespace
