// Every block type against llama.cpp's own Python package: its writer's file, its dequantiser's numbers
// (gguf_oracle.py).
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hotswap/models/formats/gguf.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::made_data;

// How many weights differ in a bit; any NaN is any other.
int64_t differing(const at::Tensor& got, const std::string& expected) {
  int64_t count = 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    float theirs;
    std::memcpy(&theirs, expected.data() + i * 4, 4);
    const float ours = got.const_data_ptr<float>()[i];
    const bool same = std::memcmp(&ours, &theirs, 4) == 0 || (std::isnan(ours) && std::isnan(theirs));
    count += same ? 0 : 1;
  }
  return count;
}

TEST(GgufOracle, EveryTypeIsReadAsLlamaCppReadsIt) {
  if (const auto why = test_support::lacking_imports("gguf")) GTEST_SKIP() << *why;
  const auto& root = made_data("models/formats/gguf_oracle.py");
  const GgufFile file(root / "types.gguf");
  int read = 0;
  for (const std::string& name : file.names()) {
    if (!can_dequantise(*file.info(name).type)) continue;
    const at::Tensor got = file.tensor(name);
    const std::string expected = read_file(root / (name + ".f32"));
    ASSERT_EQ(expected.size(), static_cast<size_t>(got.numel()) * 4) << name;
    EXPECT_EQ(differing(got, expected), 0) << name;
    ++read;
  }
  EXPECT_GE(read, 16);  // those that this host reads, of 23 that the package does
}

}  // namespace
}  // namespace hotswap
