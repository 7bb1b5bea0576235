#include "hotswap/kernelize/variant.h"

#include "hotswap/kernelize/testing.h"

namespace hotswap {
namespace {

using testing::expect_has;
using Names = std::vector<std::string>;

const VariantHost kCpu{.torch_major = 2, .torch_minor = 11, .cpu = "x86_64", .backend = "cpu"};
const VariantHost kCuda{.torch_major = 2, .torch_minor = 11, .cpu = "x86_64", .backend = "cu130"};

std::string reason(const std::string& variant, const VariantHost& host) {
  return choose_variant({variant}, host).trace.at(0).second;
}

TEST(Variant, TheNewestStableAbiThatThisTorchHasWins) {
  const auto choice = choose_variant({"torch-stable-abi29-cpu-x86_64-linux", "torch-stable-abi210-cpu-x86_64-linux",
                                      "torch-stable-abi212-cpu-x86_64-linux", "torch211-cxx11-cpu-x86_64-linux"},
                                     kCpu);
  EXPECT_EQ(choice.chosen, "torch-stable-abi210-cpu-x86_64-linux");
  ASSERT_EQ(choice.trace.size(), 4u);
  EXPECT_EQ(choice.trace[0].second, "compatible, preferred");
  EXPECT_EQ(choice.trace[1].second, "compatible");
  EXPECT_EQ(choice.trace[1].first, "torch-stable-abi29-cpu-x86_64-linux");
  expect_has(choice.trace_text(),
             {"(2.12) is too new for environment Torch version (2.11)", "no torch stable-ABI variant"});
}

TEST(Variant, SaysWhyNot) {
  expect_has(reason("torch-stable-abi210-cpu-aarch64-linux", kCpu),
             {"CPU (aarch64) does not match system CPU (x86_64)"});
  expect_has(reason("torch-stable-abi210-cpu-x86_64-darwin", kCpu), {"OS (darwin)"});
  expect_has(reason("torch-stable-abi210-cu130-x86_64-linux", kCpu), {"backend (cu130)", "(cpu)"});
  expect_has(reason("torch-stable-abi210-cpu-x86_64-linux", kCuda), {"backend (cpu)", "(cu130)"});
  for (const char* other : {"torch-cpu", "tvm-ffi010-cpu-x86_64-linux", "", "torch-stable-abi2-cpu-x86_64-linux",
                            "torch-stable-abi210-cpu-x86_64-linux/../x"}) {
    expect_has(reason(other, kCpu), {"no torch stable-ABI variant"});
  }
  EXPECT_FALSE(choose_variant({}, kCpu).chosen);
  expect_has(choose_variant({}, kCpu).trace_text(), {"no built variant"});
}

TEST(Variant, CudaNeedsTheSameMajorAndNoNewerMinor) {
  const Names names = {"torch-stable-abi210-cu126-x86_64-linux", "torch-stable-abi210-cu130-x86_64-linux",
                       "torch-stable-abi210-cu131-x86_64-linux", "torch-stable-abi210-rocm71-x86_64-linux"};
  EXPECT_EQ(choose_variant(names, kCuda).chosen, names[1]);
  VariantHost newer = kCuda;
  newer.backend = "cu132";
  EXPECT_EQ(choose_variant(names, newer).chosen, names[2]);
  expect_has(reason(names[2], kCuda), {"CUDA version (cu131) is not compatible with system CUDA version (cu130)"});
}

}  // namespace
}  // namespace hotswap
