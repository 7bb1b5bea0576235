// How kernels over rows are laid out on a GPU: pure functions of the shape and of the number of multiprocessors, so
// that a layout can be printed and tested where no GPU is.
//   plan_rows({.rows = 16384, .cols = 4096, .element_size = 2, .aligned = true}, kForward, 132).text()
#pragma once

#include <cstdint>
#include <string>

namespace kernels {

using Stream = void*;  // a cudaStream_t

// What a thread loads or stores at once: 16 bytes, and in walks (plan_walk) 32 on sm_100 and later. norm, rotary and
// loss stay at 16: their threads hold several vectors, how many was measured so, and cp.async copies no more.
constexpr int64_t kVectorBytes = 16, kWideBytes = 32;

struct RowShape {
  int64_t rows, cols, element_size;
  bool aligned;  // every row of every tensor begins at a multiple of kVectorBytes
};

// What one kernel can do, and what it was measured to do best.
struct RowLimits {
  int max_lanes[3];    // threads a row with 1, 2, 4 vectors held in each; 0: not built
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

#ifdef __CUDACC__
#define HOTSWAP_HOST_DEVICE __host__ __device__
#else
#define HOTSWAP_HOST_DEVICE
#endif
// n / by, rounded down, for n below 2^31: a multiplication, an addition and a shift. A division takes a thread longer
// than its vector's work, and what stands between its start and its first load is lost to memory.
struct Divider {
  uint32_t factor, shift = 0;

  explicit Divider(int64_t wanted) {
    const uint64_t most = uint64_t{1} << 31, by = uint64_t(wanted) < most ? uint64_t(wanted) : most;
    while ((uint64_t{1} << shift) < by) ++shift;
    factor = uint32_t((((uint64_t{1} << shift) - by) << 32) / by + 1);
  }
  HOTSWAP_HOST_DEVICE uint32_t operator()(uint32_t n) const {
    return (uint32_t((uint64_t{n} * factor) >> 32) + n) >> shift;
  }
};

inline std::string amount(int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

inline RowPlan plan_rows(const RowShape& s, const RowLimits& limits, int sms) {
  constexpr int kWarp = 32, kSmallBlock = 128, kWideBlock = 512;
  constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
  const auto warps = [](int64_t threads) { return int(divide_up(threads < 1 ? 1 : threads, kWarp) * kWarp); };
  const auto cover = [&](RowPlan p) {
    const int64_t wanted = divide_up(s.rows < 1 ? 1 : s.rows, p.rows_per_block);
    const int64_t per_sm = limits.threads_per_sm / p.threads();
    const int64_t most = limits.threads_per_sm == 0 ? kMaxBlocks : int64_t{sms} * (per_sm > 0 ? per_sm : 1);
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
    if (lanes <= limits.max_lanes[i])
      return cover({.vectors = each, .vector_access = true, .lanes = lanes, .rows_per_block = 1, .blocks = 0});
  }
  return cover({.vectors = 0, .vector_access = true, .lanes = kWideBlock, .rows_per_block = 1, .blocks = 0});
}

inline std::string RowPlan::text() const {
  std::string out = amount(blocks, "block") + " of " + amount(threads(), "thread") + ", ";
  out += rows_per_block > 1 ? amount(rows_per_block, "row") + " each" : "a row each";
  out += ", " + amount(lanes, "thread") + " a row, ";
  if (vectors > 0) return out + amount(vectors, "vector") + " of 16 bytes in registers";
  return out + "rows read again, " + (vector_access ? "16 bytes" : "one element") + " at a time";
}

// Blocks of many rows, one a multiprocessor, each with sums of its own over all its rows: backward's. `depth` rows of
// every tensor are in shared memory or on their way there.
struct RingPlan {
  int vectors;  // a thread takes so many 16-byte vectors of a row; 0: rows are read again
  int lanes;    // threads a row
  int groups;   // rows that a block is at; each group goes through rows blocks * groups apart
  int depth;
  int64_t blocks;
  int threads() const { return lanes * groups; }
  int64_t shared_bytes(int tensors) const { return kVectorBytes * depth * tensors * vectors * threads(); }
  std::string text() const;
};

struct RingLimits {
  int tensors;           // read for each row
  int64_t shared_bytes;  // that a block may have
};

inline RingPlan plan_ring(const RowShape& s, const RingLimits& limits, int sms) {
  constexpr int kWarp = 32, kMaxThreads = 512;
  RingPlan p{};
  const int64_t per_vector = kVectorBytes / s.element_size, vectors = s.cols / per_vector;
  if (!s.aligned || s.cols % per_vector != 0 || s.cols == 0 || vectors > 2 * kMaxThreads) return p;
  p.vectors = vectors <= kWarp ? 1 : 2;
  p.lanes = 1;
  if (p.vectors == 1)
    while (p.lanes < vectors) p.lanes *= 2;
  else
    p.lanes = int(divide_up(divide_up(vectors, 2), kWarp) * kWarp);
  p.groups = kMaxThreads / p.lanes;
  p.depth = 4;
  if (p.shared_bytes(limits.tensors) > limits.shared_bytes) {
    p.depth = 2;
    const int64_t one = p.shared_bytes(limits.tensors) / p.groups, fit = limits.shared_bytes / one;
    if (fit < p.groups) p.groups = int(fit);
    while (p.groups > 0 && p.threads() % kWarp != 0) --p.groups;
    if (p.groups == 0) return {};
  }
  const int64_t rows = s.rows < 1 ? 1 : s.rows;
  const int64_t each = divide_up(rows, int64_t{sms} * p.groups);  // rows a group
  p.blocks = divide_up(rows, each * p.groups);
  return p;
}

inline std::string RingPlan::text() const {
  if (vectors == 0) return "rows read again";
  return std::to_string(blocks) + " blocks of " + std::to_string(threads()) + " threads, " + std::to_string(groups) +
         " rows at a time, " + std::to_string(lanes) + " threads a row, " + std::to_string(vectors) +
         " vectors of 16 bytes each, " + std::to_string(depth) + " rows deep";
}

struct WalkShape {
  int64_t rows, cols, element_size;
  uint64_t addresses;  // of every row of every tensor, or'ed: a multiple of 2^n if each of them is
};

// A walk over rows of elements: a thread takes a vector (or an element), a block as many of one row as it has threads.
struct WalkPlan {
  int64_t access;                           // bytes that a thread takes at once: 32, 16, or an element
  int64_t blocks_per_row, rows_per_launch;  // a grid has no more than 2^31 - 1 blocks
  std::string text() const;
};

inline WalkPlan plan_walk(const WalkShape& s, int threads, int64_t widest) {
  constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
  const int64_t row_bytes = s.cols * s.element_size;
  const auto whole = [&](int64_t bytes) { return s.addresses % bytes == 0 && row_bytes % bytes == 0; };
  // A single row may have a tail, short of 16 bytes: one thread goes through it an element at a time.
  const bool with_tail = s.rows == 1 && s.addresses % kVectorBytes == 0;
  int64_t access = s.element_size;
  if (whole(kVectorBytes) || with_tail) access = kVectorBytes;
  if (whole(kWideBytes) && widest >= kWideBytes) access = kWideBytes;
  const int64_t per_row = divide_up(row_bytes, access * threads);
  const int64_t most = per_row > 0 ? kMaxBlocks / per_row : kMaxBlocks;
  return {access, per_row, s.rows < most ? s.rows : most};
}

inline std::string WalkPlan::text() const {
  return amount(blocks_per_row, "block") + " a row, " + amount(rows_per_launch, "row") + " a launch, " +
         amount(access, "byte") + " at a time";
}

}  // namespace kernels
