// Layouts of GPU kernels, without a GPU.
#include "kernels/common/gpu/launch.h"

#include <gtest/gtest.h>

#include "kernels/common/gpu/gemv/few_rows.h"
#include "kernels/common/gpu/tile/streamed_rows.h"

namespace {

using namespace kernels;

constexpr RowLimits kLimits{.max_lanes = {128, 512, 512}, .threads_per_sm = 1024};
constexpr int kSms = 132, kWalkThreads = 256;

RowPlan plan(int64_t rows, int64_t cols, int64_t size = 2, bool aligned = true) {
  return plan_rows({.rows = rows, .cols = cols, .element_size = size, .aligned = aligned}, kLimits, kSms);
}

TEST(RowPlan, CoversEveryShape) {
  for (const int64_t size : {2, 4}) {
    for (const bool aligned : {true, false}) {
      for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{131}, int64_t{16384}, int64_t{1} << 31}) {
        for (int64_t cols = 1; cols <= 1000000; cols = cols < 300 ? cols + 1 : cols * 3 / 2) {
          const RowPlan p = plan(rows, cols, size, aligned);
          const int64_t per_vector = kVectorBytes / size;
          EXPECT_GE(p.threads(), 32);
          EXPECT_LE(p.threads(), 512);
          EXPECT_EQ(p.threads() % 32, 0);
          EXPECT_GE(p.blocks, 1);
          EXPECT_LE(p.blocks * p.threads(), kSms * 1024);
          EXPECT_EQ(p.vector_access, aligned && cols % per_vector == 0) << cols;
          EXPECT_TRUE(p.vectors == 0 || p.lanes * p.vectors * per_vector >= cols) << cols;
          EXPECT_TRUE(p.rows_per_block == 1 || p.lanes <= 32);
          EXPECT_TRUE(p.lanes >= 32 || (p.lanes & (p.lanes - 1)) == 0) << "sums go by halves";
        }
      }
    }
  }
}

TEST(RowPlan, HoldsUsualRowsInRegisters) {
  for (const int64_t cols : {64, 128, 576, 2048, 3072, 4096, 5120, 8192, 16384})
    EXPECT_GT(plan(16384, cols).vectors, 0);
  EXPECT_EQ(plan(16384, 128256).vectors, 0);
  EXPECT_TRUE(plan(16384, 128256).vector_access);
}

TEST(RowPlan, BlocksTakeTheSameNumberOfRows) {
  EXPECT_EQ(plan(16384, 4096).blocks, 512);  // 528 would take 31 or 32 rows each
  for (const int64_t rows : {1, 500, 1057, 16384, 100000}) {
    const int64_t blocks = plan(rows, 4096).blocks, most = divide_up(rows, blocks);
    EXPECT_GE(blocks * most, rows);
    EXPECT_LT((blocks - 1) * most, rows) << "a block without rows";
  }
}

TEST(RowPlan, OrOneBlockForEachRow) {
  const RowLimits limits{.max_lanes = {96, 128, 512}, .threads_per_sm = 0};
  const RowPlan p = plan_rows({.rows = 16384, .cols = 4096, .element_size = 2, .aligned = true}, limits, kSms);
  EXPECT_EQ(p.blocks, 16384);
  EXPECT_EQ(p.vectors, 4);
  EXPECT_EQ(p.lanes, 128);
}

TEST(RowPlan, FewRowsTakeFewBlocks) {
  EXPECT_EQ(plan(3, 4096).blocks, 3);
  EXPECT_EQ(plan(0, 4096).blocks, 1);
  EXPECT_EQ(plan(33, 64).blocks, 3);  // 16 rows a block
}

TEST(RowPlan, Prints) {
  EXPECT_EQ(plan(16384, 4096).text(),
            "512 blocks of 256 threads, a row each, 256 threads a row, 2 vectors of 16 bytes in registers");
  EXPECT_EQ(plan(1, 64).text(),
            "1 block of 128 threads, 16 rows each, 8 threads a row, 1 vector of 16 bytes in registers");
  EXPECT_EQ(plan(2, 577).text(),
            "2 blocks of 512 threads, a row each, 512 threads a row, rows read again, one element at a time");
}

RingPlan ring(int64_t rows, int64_t cols, int64_t shared = 223 << 10, int tensors = 2, int64_t size = 2) {
  return plan_ring({.rows = rows, .cols = cols, .element_size = size, .aligned = true},
                   {.tensors = tensors, .shared_bytes = shared}, kSms);
}

TEST(RingPlan, CoversEveryShape) {
  for (const int64_t shared : {60 << 10, 95 << 10, 159 << 10, 223 << 10}) {  // of sm_75, sm_86, sm_80, sm_90
    for (const int tensors : {2, 3}) {
      for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{131}, int64_t{16384}, int64_t{1} << 31}) {
        for (int64_t cols = 4; cols <= 100000; cols = cols < 300 ? cols + 4 : cols / 8 * 12) {
          const RingPlan p = ring(rows, cols, shared, tensors, 4);
          if (p.vectors == 0) {
            EXPECT_TRUE(cols > 2 * 512 * 4 || shared < 159 << 10) << cols << " with " << shared;
            continue;
          }
          EXPECT_GE(p.lanes * p.vectors * 4, cols);
          EXPECT_LE(p.threads(), 512);
          EXPECT_EQ(p.threads() % 32, 0);
          EXPECT_TRUE(p.lanes % 32 == 0 || (p.vectors == 1 && 32 % p.lanes == 0)) << p.lanes;
          EXPECT_LE(p.shared_bytes(tensors), shared);
          EXPECT_GE(p.shared_bytes(tensors), int64_t{p.threads()} * p.vectors * 4 * 4)
              << "sums go through it at the end";
          EXPECT_GE(p.blocks, 1);
          EXPECT_LE(p.blocks, kSms);
        }
      }
    }
  }
}

TEST(RingPlan, BlocksTakeTheSameNumberOfRows) {
  EXPECT_EQ(ring(16384, 4096).blocks, 131);  // 63 rows for each of two groups; 132 blocks would take 62 or 63
  for (const int64_t rows : {1, 500, 1057, 16384, 100000}) {
    const RingPlan p = ring(rows, 4096);
    const int64_t each = divide_up(rows, p.blocks * p.groups);
    EXPECT_LT((p.blocks - 1) * p.groups * each, rows) << "a block without rows";
  }
}

TEST(RingPlan, Prints) {
  EXPECT_EQ(ring(16384, 4096).text(),
            "131 blocks of 512 threads, 2 rows at a time, 256 threads a row, 2 vectors of 16 bytes each, 4 rows deep");
  EXPECT_EQ(ring(16384, 2048, 95 << 10, 3).text(),
            "131 blocks of 384 threads, 3 rows at a time, 128 threads a row, 2 vectors of 16 bytes each, 2 rows deep");
  EXPECT_EQ(ring(16384, 16384).text(), "rows read again");
}

WalkPlan walk(int64_t rows, int64_t cols, int64_t size = 2, uint64_t addresses = 0, int64_t widest = kWideBytes) {
  return plan_walk({.rows = rows, .cols = cols, .element_size = size, .addresses = addresses}, kWalkThreads, widest);
}

TEST(WalkPlan, CoversEveryShape) {
  for (const int64_t size : {2, 4}) {
    for (const int64_t rows : {1, 3, 1000}) {
      for (const int64_t cols : {0, 1, 7, 8, 12, 16, 4096, 4099, 4104, 100000}) {
        for (const uint64_t addresses : {0x7f0000001000, 0x7f0000001020, 0x7f0000001030, 0x7f0000001038}) {
          for (const int64_t widest : {kVectorBytes, kWideBytes}) {
            const WalkPlan p = walk(rows, cols, size, addresses, widest);
            const int64_t threads = p.blocks_per_row * kWalkThreads;
            EXPECT_GE(threads * p.access, cols * size);
            EXPECT_LT((threads - kWalkThreads) * p.access, cols * size + (cols == 0)) << "a block without elements";
            EXPECT_EQ(p.rows_per_launch, rows);
            EXPECT_LE(p.access, widest);
            EXPECT_TRUE(p.access == size || addresses % p.access == 0);
            EXPECT_TRUE(p.access == size || cols * size % p.access == 0 || (rows == 1 && p.access == kVectorBytes));
          }
        }
      }
    }
  }
}

TEST(WalkPlan, TakesTheWidestAccessThatFits) {
  EXPECT_EQ(walk(3, 4096).access, 32);
  EXPECT_EQ(walk(3, 4096, 2, 0, kVectorBytes).access, 16);  // before sm_100
  EXPECT_EQ(walk(3, 4104).access, 16);                      // rows of 8208 bytes
  EXPECT_EQ(walk(3, 4104, 4).access, 32);
  EXPECT_EQ(walk(3, 4100).access, 2);
  EXPECT_EQ(walk(3, 4096, 2, 0x1010).access, 16);
  EXPECT_EQ(walk(3, 4096, 2, 0x1020).access, 32);
  EXPECT_EQ(walk(3, 4096, 2, 0x1008).access, 2);
  EXPECT_EQ(walk(3, 4096, 4, 0x1004).access, 4);
  EXPECT_EQ(walk(1, 4099).access, 16);  // with a tail of three elements
  EXPECT_EQ(walk(1, 4096).access, 32);
}

TEST(WalkPlan, Prints) {
  EXPECT_EQ(walk(3, 8192).text(), "2 blocks a row, 3 rows a launch, 32 bytes at a time");
  EXPECT_EQ(walk(1, 7, 2, 2).text(), "1 block a row, 1 row a launch, 2 bytes at a time");
}

TEST(WalkPlan, HugeTensorsTakeSeveralLaunches) {
  const int64_t most = (int64_t{1} << 31) - 1;
  const WalkPlan p = walk(int64_t{1} << 33, 4000, 4);
  EXPECT_EQ(p.blocks_per_row, 2);
  EXPECT_LE(p.rows_per_launch * p.blocks_per_row, most);
  EXPECT_GT((p.rows_per_launch + 1) * p.blocks_per_row, most);
}

TEST(Divider, DividesEveryNumberBelowTwoToThe31) {
  constexpr uint32_t kMax = (uint32_t{1} << 31) - 1;
  std::vector<int64_t> by = {
      1, 2, 3, 5, 7, 40, 320, 641, 65535, 65536, 1000003, kMax - 1, kMax, int64_t{1} << 31, int64_t{1} << 40};
  uint64_t state = 1;
  const auto random = [&] { return uint32_t((state = state * 6364136223846793005u + 1442695040888963407u) >> 33); };
  for (int i = 0; i < 2000; ++i) by.push_back(1 + (random() >> (i % 31)));
  for (const int64_t d : by) {
    const Divider divide(d);
    const auto expect = [&](uint32_t n) { ASSERT_EQ(divide(n), n / d) << n << " / " << d; };
    for (const uint32_t n : {0u, 1u, 2u, kMax - 1, kMax}) expect(n);
    for (int i = 0; i < 500; ++i) expect(random());
    for (int i = 0; i < 500; ++i) {  // about whole multiples
      const uint64_t whole = uint64_t(d) * (random() >> (i % 31));
      if (whole > 0 && whole <= kMax) expect(uint32_t(whole)), expect(uint32_t(whole - 1));
    }
  }
}

gpu::FewRows few_rows(int rows, int in, const void* norm = nullptr) {
  return {
      .dtype = DType::kBFloat16, .x = nullptr, .x_stride = in, .rows = rows, .in = in, .norm = norm, .out = nullptr};
}

TEST(FewRows, ANormWantsAllOfThemInSharedMemory) {
  alignas(16) static constexpr char kNorm[16] = {};
  const std::pair<int, int> most[] = {{8, 16},   {4096, 16}, {4304, 16}, {4312, 15}, {5120, 13}, {6144, 10},
                                      {8192, 7}, {16384, 3}, {36848, 1}, {36856, 0}, {100000, 0}};
  for (const auto& [in, rows] : most) {
    EXPECT_EQ(gpu::max_few_rows(few_rows(1, in, kNorm)), rows) << in;
    EXPECT_EQ(gpu::max_few_rows(few_rows(1, in)), 16) << in << " without norm";
    EXPECT_EQ(gpu::fits_few_rows(few_rows(rows, in, kNorm)), rows > 0) << in;
    EXPECT_FALSE(gpu::fits_few_rows(few_rows(rows + 1, in, kNorm))) << in;
  }
  EXPECT_FALSE(gpu::fits_few_rows(few_rows(0, 64)));
}

TEST(FewRows, RowsAreWholeVectors) {
  alignas(16) static constexpr char kBytes[32] = {};
  for (const int in : {0, 4, 63, 4100}) EXPECT_EQ(gpu::max_few_rows(few_rows(1, in)), 0) << in;
  gpu::FewRows a = few_rows(2, 64);
  a.w[0] = {.data = kBytes, .stride = 64, .rows = 2};
  EXPECT_TRUE(gpu::fits_few_rows(a));
  a.w[0].stride = 68;
  EXPECT_EQ(gpu::max_few_rows(a), 0) << "the second row of the weight begins between two vectors";
  a.w[0].rows = 1;
  EXPECT_TRUE(gpu::fits_few_rows(a)) << "there is no second row";
  a.w[0].data = kBytes + 2;
  EXPECT_EQ(gpu::max_few_rows(a), 0);
  a.w[0].data = kBytes, a.x = kBytes + 2;
  EXPECT_EQ(gpu::max_few_rows(a), 16);
  EXPECT_FALSE(gpu::fits_few_rows(a));
  a.x = kBytes, a.x_stride = 68;
  EXPECT_FALSE(gpu::fits_few_rows(a));
  a.x_stride = 64, a.dtype = DType::kFloat32;
  EXPECT_EQ(gpu::max_few_rows(a), 0);
}

// What an H200 was faster at by itself, with 132 multiprocessors: docs/notes/decode_wide.md.
TEST(FewRows, PayWhileTheyAreReadLessThanALaunchCosts) {
  struct Product {
    int rows, in, out;
    bool pays;
  };
  const Product measured[] = {{16, 1024, 2048, true},  {16, 3072, 1024, true},   {16, 2048, 2048, true},
                              {8, 2048, 8192, false},  {8, 8192, 2048, false},   {16, 4096, 1024, true},
                              {4, 4096, 14336, true},  {8, 4096, 4096, false},   {16, 4096, 14336, false},
                              {8, 14336, 4096, false}, {8, 2560, 4096, false},   {16, 2560, 1024, true},
                              {8, 3072, 3072, false},  {16, 1024, 151936, true}, {16, 4096, 128256, false}};
  for (const auto& [rows, in, out, pays] : measured) {
    gpu::FewRows a = few_rows(rows, in);
    a.w[0].rows = out;
    EXPECT_EQ(gpu::few_rows_pay(a, 132), pays) << rows << " rows, " << in << " -> " << out;
  }
}

TEST(FewRows, LieLessThanTwoToThe31Apart) {
  gpu::FewRows a{.dtype = DType::kBFloat16, .x = nullptr, .x_stride = (int64_t{1} << 31) - 8, .rows = 9, .in = 4096};
  EXPECT_TRUE(gpu::fits_few_rows(a));
  a.x_stride = int64_t{1} << 31;
  EXPECT_FALSE(gpu::fits_few_rows(a));
  a.rows = 1;
  EXPECT_TRUE(gpu::fits_few_rows(a)) << "there is no other row";
}

TEST(StreamPlan, HoldsEveryRowItTakes) {
  constexpr StreamLimits kStream{.vectors = 4, .max_threads = 512, .cluster_threads = 256, .max_cluster = 8};
  const int64_t most = int64_t{kStream.max_cluster} * kStream.max_threads * kStream.vectors;
  for (const int64_t rows : {1, 20, 512}) {
    for (int64_t vectors = 1; vectors <= 2 * most; vectors = vectors < 300 ? vectors + 1 : vectors * 5 / 4) {
      const StreamPlan p = plan_stream(rows, vectors, kStream, kSms);
      ASSERT_EQ(p.cluster > 0, vectors <= most) << vectors;
      if (p.cluster == 0) continue;
      EXPECT_GE(int64_t{p.cluster} * p.threads * kStream.vectors, vectors);
      EXPECT_TRUE(p.threads % 32 == 0 && p.threads <= kStream.max_threads && p.cluster <= kStream.max_cluster);
    }
  }
  const auto expect_plan = [&](int64_t rows, int64_t vectors, int cluster, int threads) {
    const StreamPlan p = plan_stream(rows, vectors, kStream, kSms);
    EXPECT_EQ(p.cluster, cluster) << rows << " x " << vectors;
    EXPECT_EQ(p.threads, threads) << rows << " x " << vectors;
  };
  expect_plan(1000, 1280, 1, 320);
  expect_plan(1000, 8192, 8, 256);
  expect_plan(1000, 16384, 8, 512);  // cluster_threads do not hold it
  expect_plan(20, 2048, 4, 128);     // multiprocessors would have no work
}

}  // namespace
