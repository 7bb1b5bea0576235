// What loading holds at once: a packed file is never expanded.
#include <gtest/gtest.h>

#include "hotswap/models/auto.h"
#include "hotswap/models/formats/test_gguf_mixture.h"
#include "hotswap/training/live_memory.h"

namespace hotswap {
namespace {

TEST(LoadingMemory, PackedExpertsTakeNoMoreThanTheirFile) {
  const test_support::TempFolder folder;
  const test_support::GgufMixture mixture{.hidden = 512, .inner = 512, .experts = 8, .layers = 4};
  const std::string bytes = mixture.bytes();
  test_support::put_file(folder / "m.gguf", bytes);
  const auto peak = [&](std::optional<bool> keep) {
    const LiveMemory memory;
    const auto model = AutoModelForCausalLM::from_pretrained(
        folder / "m.gguf", {.use_kernels = true, .dtype = "bfloat16", .keep_formats = keep});
    EXPECT_EQ(model->has_encoded_weights(), !keep.has_value());
    return static_cast<double>(memory.peak());
  };
  const auto size = static_cast<double>(bytes.size());
  const double packed = peak(std::nullopt), plain = peak(false);
  RecordProperty("file_bytes", static_cast<int>(size));
  RecordProperty("packed_peak", static_cast<int>(packed));
  EXPECT_GT(packed, 0.9 * size);  // the count is of this very model
  EXPECT_LT(packed, 1.3 * size);
  EXPECT_GT(plain, 2.5 * size);
}

}  // namespace
}  // namespace hotswap
