#include "hotswap/kernelize/package/device.h"

#include <ATen/Context.h>
#include <dlfcn.h>

namespace hotswap {

bool cuda_available() {
  static const bool loaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  return loaded && at::globalContext().hasCUDA();
}

std::string device_kind(c10::Device device) {
  if (device.is_cuda() && at::Context::hasROCM()) return "rocm";
  if (device.is_xla()) return "tpu";
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

std::optional<int64_t> device_capability(c10::Device device) {
  if (!device.is_cuda() || at::Context::hasROCM()) return std::nullopt;
  // The CUDA runtime is in the process whenever a CUDA tensor is, but this library is built without its headers.
  using GetAttribute = int (*)(int* value, int attribute, int device);
  const auto get = reinterpret_cast<GetAttribute>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  constexpr int kMajor = 75, kMinor = 76;  // cudaDevAttrComputeCapabilityMajor, Minor
  const int index = device.has_index() ? device.index() : 0;
  int major = 0, minor = 0;
  if (get == nullptr || get(&major, kMajor, index) != 0 || get(&minor, kMinor, index) != 0) return std::nullopt;
  return major * 10 + minor;
}

}  // namespace hotswap
