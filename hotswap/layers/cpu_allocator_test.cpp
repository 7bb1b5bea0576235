#include "hotswap/layers/cpu_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "hotswap/base/error.h"
#include "hotswap/base/memory.h"

namespace hotswap {
namespace {

// Process-wide, and meant to be so: the tests of this program that run after it run on it.
class CpuAllocator : public testing::Test {
 protected:
  void SetUp() override { use_compact_cpu_allocator(); }
};

TEST_F(CpuAllocator, BlocksAreAlignedAndHoldWhatIsWritten) {
  for (const int64_t size : {0, 1, 3, 15, 16, 17, 63, 64, 65, 4096, (8 << 20) + 1, (64 << 20) + 5}) {
    const at::Tensor x = at::ones({size}, at::TensorOptions(at::kByte));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 64, 0) << size;
    EXPECT_EQ(x.sum().item<int64_t>(), size);
  }
}

TEST_F(CpuAllocator, TensorsOfTheFormerAllocatorMayOutliveTheSwitch) {
  at::Tensor x = at::empty({1 << 20}, at::TensorOptions(at::kFloat));
  use_compact_cpu_allocator();
  x = at::Tensor();
}

// What torch's own allocator does not do on glibc before 2.38: every second block is freed, and as many of the same
// size must fit where they were.
TEST_F(CpuAllocator, FreedBlocksServeTheSameSizeAgain) {
  const auto block = [] { return at::ones({1 << 20}, at::TensorOptions(at::kByte)); };
  std::vector<at::Tensor> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(block());
  const int64_t before = resident_memory();
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < blocks.size(); i += 2) blocks[i] = at::Tensor();
    for (size_t i = 0; i < blocks.size(); i += 2) blocks[i] = block();
  }
  EXPECT_LT(resident_memory() - before, 10 << 20);
}

TEST_F(CpuAllocator, NoMemoryIsAnError) {
  try {
    at::empty({int64_t{1} << 60}, at::TensorOptions(at::kByte));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1152921504606846976 bytes"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hotswap
