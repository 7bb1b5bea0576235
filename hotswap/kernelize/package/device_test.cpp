#include "hotswap/kernelize/package/device.h"

#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

std::string refusal(const char* name) {
  return message_of([&] { device_named(name); });
}

TEST(DeviceNamed, TakesTheNamesThatTorchHasForWhatRunsHere) {
  EXPECT_TRUE(device_named("cpu").is_cpu());
  const c10::Device any = device_named("auto");
  EXPECT_EQ(any.is_cuda(), cuda_available());
  EXPECT_EQ(any.has_index(), cuda_available());
}

TEST(DeviceNamed, RefusesOthersAndSaysWhatToWrite) {
  for (const char* name : {"gpu", "gpu:1", "rocm", "hip"}) expect_has(refusal(name), {cat("'", name, "'"), "use cuda"});
  for (const char* name :
       {"mps", "xpu", "metal", "meta", "disk", "balanced", "", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1 "}) {
    expect_has(refusal(name), {"cpu, cuda, cuda:N or auto", cat("'", name, "'"), "take cpu"});
  }
}

TEST(DeviceNamed, RefusesAGpuThatIsNotThere) {
  if (!cuda_available()) return expect_has(refusal("cuda"), {"a GPU for the device cuda", "none", "take cpu"});
  EXPECT_EQ(device_named("cuda"), c10::Device("cuda:0"));
  expect_has(refusal("cuda:99"), {"a GPU for the device cuda:99", "cuda:0"});
}

}  // namespace
}  // namespace hotswap
