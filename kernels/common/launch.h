// How kernels over rows are laid out on a GPU: pure functions of the shape and of the number of multiprocessors, so
// that a layout can be printed and tested where no GPU is.
//   plan_rows({.rows = 16384, .cols = 4096, .element_size = 2, .aligned = true}, kForward, 132).text()
#pragma once

#include <cstdint>
#include <string>

namespace kernels {

using Stream = void*;  // a cudaStream_t

constexpr int64_t kVectorBytes = 16;  // what a thread loads or stores at once

struct RowShape {
  int64_t rows, cols, element_size;
  bool aligned;  // every row of every tensor begins at a multiple of kVectorBytes
};

// What one kernel can do, and what it was measured to do best.
struct RowLimits {
  int most_lanes[3];   // threads a row with 1, 2, 4 vectors held in each; 0: not built
  int threads_per_sm;  // of blocks that go through many rows: no more than fit, since each has sums of its own.
                       // 0: a block for each row
};

struct RowPlan {
  int vectors;         // a thread holds so many 16-byte vectors of a row in registers; 0: rows are read again
  bool vector_access;  // 16 bytes at a time, or one element
  int lanes;           // threads a row
  int rows_per_block;  // more than one only where a row has at most a warp
  int64_t blocks;      // each goes through rows `blocks * rows_per_block` apart
  int threads() const { return lanes * rows_per_block; }
  int64_t groups() const { return blocks * rows_per_block; }  // what has sums of its own
  std::string text() const;
};

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline RowPlan plan_rows(const RowShape& s, const RowLimits& limits, int sms) {
  constexpr int kWarp = 32, kSmallBlock = 128, kWideBlock = 512;
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  const auto warps = [](int64_t threads) { return int(divide_up(threads < 1 ? 1 : threads, kWarp) * kWarp); };
  const auto cover = [&](RowPlan p) {
    const int64_t wanted = divide_up(s.rows < 1 ? 1 : s.rows, p.rows_per_block);
    const int64_t per_sm = limits.threads_per_sm / p.threads();
    const int64_t most = limits.threads_per_sm == 0 ? kMostBlocks : int64_t{sms} * (per_sm > 0 ? per_sm : 1);
    // As few blocks as take the same number of rows each.
    p.blocks = wanted < most ? wanted : divide_up(wanted, divide_up(wanted, most));
    return p;
  };
  const int64_t per_vector = kVectorBytes / s.element_size;
  if (!s.aligned || s.cols % per_vector != 0 || s.cols == 0) {
    const int lanes = warps(s.cols < kWideBlock ? s.cols : kWideBlock);
    return cover({.vectors = 0, .vector_access = false, .lanes = lanes, .rows_per_block = 1, .blocks = 0});
  }
  const int64_t vectors = s.cols / per_vector;
  if (vectors <= kWarp) {
    int lanes = 1;
    while (lanes < vectors) lanes *= 2;
    return cover(
        {.vectors = 1, .vector_access = true, .lanes = lanes, .rows_per_block = kSmallBlock / lanes, .blocks = 0});
  }
  for (int i = 0, each = 1; i < 3; ++i, each *= 2) {
    const int lanes = warps(divide_up(vectors, each));
    if (lanes <= limits.most_lanes[i])
      return cover({.vectors = each, .vector_access = true, .lanes = lanes, .rows_per_block = 1, .blocks = 0});
  }
  return cover({.vectors = 0, .vector_access = true, .lanes = kWideBlock, .rows_per_block = 1, .blocks = 0});
}

inline std::string RowPlan::text() const {
  const auto counted = [](int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); };
  std::string out = counted(blocks, "block") + " of " + counted(threads(), "thread") + ", ";
  out += rows_per_block > 1 ? counted(rows_per_block, "row") + " each" : "a row each";
  out += ", " + counted(lanes, "thread") + " a row, ";
  if (vectors > 0) return out + counted(vectors, "vector") + " of 16 bytes in registers";
  return out + "rows read again, " + (vector_access ? "16 bytes" : "one element") + " at a time";
}

// A walk over rows of elements: blocks of `threads`, each of which takes `each` vectors (or elements), one block width
// apart.
struct WalkPlan {
  bool vector_access;
  int64_t blocks_per_row, blocks;
};

inline WalkPlan plan_walk(const RowShape& s, int threads, int each) {
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  const int64_t per_vector = kVectorBytes / s.element_size;
  const bool vector_access = s.aligned && (s.rows == 1 || s.cols % per_vector == 0);  // one row may have a tail
  const int64_t units = vector_access ? divide_up(s.cols, per_vector) : s.cols;
  const int64_t per_row = divide_up(units, int64_t{threads} * each);
  const int64_t blocks = per_row * s.rows;
  return {vector_access, per_row, blocks < kMostBlocks ? blocks : kMostBlocks};
}

}  // namespace kernels
