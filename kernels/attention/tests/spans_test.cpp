// What rows see and who sees a key, against the words of attention.h, one by one; no GPU.
#include "kernels/attention/cuda/spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace {

using namespace attention;

int floor_of(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// tiles_of's promises for the spans of indices [first, end), which see what `sees` says of `others` others.
void check_tiles(const std::function<Span(int)>& span_of, const std::function<bool(int, int)>& sees, int first, int end,
                 int others, int width) {
  const KeyTiles t = tiles_of(span_of(first), span_of(end - 1), width);
  ASSERT_LE(t.first, t.first_whole);
  ASSERT_LE(t.first_whole, t.end_whole);
  ASSERT_LE(t.end_whole, t.end);
  for (int tile = 0; tile * width < others + 2 * width; ++tile) {
    bool any = false, all = true;
    for (int i = first; i < end; ++i) {
      for (int j = tile * width; j < (tile + 1) * width; ++j) {
        const bool seen = j < others && sees(i, j);
        any = any || seen, all = all && seen;
      }
    }
    const bool inside = t.first <= tile && tile < t.end, unmasked = t.first_whole <= tile && tile < t.end_whole;
    EXPECT_TRUE(inside || !any) << "tile " << tile << " of what " << first << " to " << end << " see is left out";
    EXPECT_TRUE(all || !unmasked) << "tile " << tile << " of what " << first << " to " << end << " see needs a mask";
    EXPECT_TRUE(unmasked || !all) << "tile " << tile << " of what " << first << " to " << end
                                  << " see is masked for nothing";
  }
}

TEST(VisibleRange, AgreesWithTheFormula) {
  for (const int rows : {1, 4, 9}) {
    for (const int keys : {0, 1, 5, 13}) {
      for (const int left : {-1, 0, 3}) {
        for (const int right : {-1, 0, 2}) {
          for (const int chunk : {0, 1, 4, 1 << 30}) {
            const VisibleRange visible{band_of(rows, keys, left, right), rows, chunk};
            const auto sees = [&](int i, int j) {
              const int at = i + keys - rows;
              return (left < 0 || j >= at - left) && (right < 0 || j <= at + right) &&
                     (chunk == 0 || floor_of(at, chunk) == floor_of(j, chunk));
            };
            for (int i = 0; i < rows; ++i) {
              for (int j = 0; j < keys; ++j) {
                const Span seen = visible.keys_of(i), seeing = visible.rows_of(j);
                EXPECT_EQ(seen.first <= j && j < seen.end, sees(i, j)) << i << " and " << j << " of " << keys;
                EXPECT_EQ(seeing.first <= i && i < seeing.end, sees(i, j)) << j << " and " << i << " of " << rows;
              }
            }
            for (int first = 0; first < rows; first += 3)
              check_tiles([&](int i) { return visible.keys_of(i); }, sees, first, std::min(rows, first + 3), keys, 2);
            for (int first = 0; first < keys; first += 3)
              check_tiles([&](int j) { return visible.rows_of(j); }, [&](int j, int i) { return sees(i, j); }, first,
                          std::min(keys, first + 3), rows, 2);
          }
        }
      }
    }
  }
}

TEST(VisibleRange, OfABatchsEndSeesNothing) {  // keys: -1
  const VisibleRange visible{band_of(5, -1, -1, -1), 5, 0};
  for (int row = 0; row < 5; ++row) EXPECT_LE(visible.keys_of(row).end, visible.keys_of(row).first);
  EXPECT_EQ(tiles_of(visible.keys_of(0), visible.keys_of(4), 64).end, 0);
}

}  // namespace
