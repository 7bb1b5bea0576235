// Where a test program runs its ops.
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kernels {

// HOTSWAP_TEST_DEVICE: cpu (default), or with the variant that has GPU kernels cuda, which is cuda:0, or cuda:1 and so
// on. The current GPU stays the first: an op finds its own.
inline c10::Device test_device() {
  static const c10::Device chosen = [] {
    const char* given = std::getenv("HOTSWAP_TEST_DEVICE");
    const std::string name = given == nullptr || *given == '\0' ? "cpu" : given;
    const bool known = name == "cpu" || name == "cuda" ||
                       (name.size() == 6 && name.starts_with("cuda:") && name[5] >= '0' && name[5] <= '9');
    if (!known)
      throw std::runtime_error("HOTSWAP_TEST_DEVICE: expected cpu, cuda or cuda:N; got " + name + "; unset it");
    return name == "cuda" ? c10::Device(c10::kCUDA, 0) : c10::Device(name);
  }();
  return chosen;
}

}  // namespace kernels
