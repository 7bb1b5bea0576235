#include "hotswap/kernelize/package/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

[[noreturn]] void refuse_device(const std::string& name) {
  const bool is_gpu = name.starts_with("gpu") || name.starts_with("rocm") || name.starts_with("hip");
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a device as cpu, cuda, cuda:N or auto",
               .got = "'" + name + "'",
               .next = is_gpu ? "use cuda, torch's name for NVIDIA GPUs and, in its ROCm builds, for AMD GPUs"
                              : "take cpu: this host runs on CPUs and on the GPUs that torch calls cuda"});
}

// N of "cuda:N"; 0 of "cuda".
std::optional<int> gpu_index(const std::string& name) {
  if (name == "cuda") return 0;
  const std::string digits = name.starts_with("cuda:") ? name.substr(5) : "";
  const bool counts = !digits.empty() && digits.size() <= 3 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return counts ? std::optional(std::stoi(digits)) : std::nullopt;
}

}  // namespace

bool cuda_available() {
  static const bool loaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  return loaded && at::globalContext().hasCUDA();
}

c10::Device device_named(const std::string& name) {
  if (name == "cpu" || name == "cpu:0") return c10::kCPU;
  if (name == "auto") return cuda_available() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  const std::optional<int> index = gpu_index(name);
  if (!index) refuse_device(name);
  if (!cuda_available()) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = cat("a GPU for the device ", name),
                 .got = "none that this torch can use",
                 .next = "take cpu, or run with a CUDA build of torch where there is a GPU"});
  }
  const int count = c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
  if (*index >= count) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = cat("a GPU for the device ", name),
                 .got = count == 1 ? std::string("one GPU, cuda:0") : cat(count, " GPUs, the last cuda:", count - 1),
                 .next = "name one of these"});
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(*index)};
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
