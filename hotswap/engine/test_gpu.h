// Tests that want a GPU: skipped where there is none, failed there with HOTSWAP_REQUIRE_CUDA=1.
// HOTSWAP_TEST_DEVICE=cuda:1 puts them on the second one, while the first stays the current one.
#pragma once

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "hotswap/base/env.h"
#include "hotswap/kernelize/package/device.h"

namespace hotswap::test_support {

// Asked before main: torch remembers the first answer in a process, and libtorch_cuda must be there by then.
inline const bool has_gpu = cuda_available();

inline c10::Device gpu() {
  const c10::Device device(env(EnvVar::kTestDevice).value_or("cuda:0"));
  return {c10::kCUDA, device.has_index() ? device.index() : c10::DeviceIndex{0}};
}

template <class Base = testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (has_gpu) return;
    constexpr const char* kMissing = "no GPU that torch can use";
    if (env_is_set(EnvVar::kRequireCuda)) FAIL() << "HOTSWAP_REQUIRE_CUDA is set: " << kMissing;
    GTEST_SKIP() << kMissing;
  }
};

}  // namespace hotswap::test_support
