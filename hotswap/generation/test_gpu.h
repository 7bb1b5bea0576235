// Tests that want a GPU: skipped where there is none, failed there with HOTSWAP_REQUIRE_CUDA=1.
#pragma once

#include <gtest/gtest.h>

#include "hotswap/base/env.h"
#include "hotswap/kernelize/package/device.h"

namespace hotswap::test_support {

// Asked before main: torch remembers the first answer in a process, and libtorch_cuda must be there by then.
inline const bool has_gpu = cuda_available();

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
