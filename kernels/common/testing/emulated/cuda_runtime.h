// Stands in for CUDA's: launches run on the CPU (block.h), on a device of a few multiprocessors.
#pragma once

#include <cmath>
#include <utility>

#include "kernels/common/testing/emulated/block.h"

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMultiProcessorCount
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed,
  cudaFuncAttributePreferredSharedMemoryCarveout
};
constexpr int cudaSharedmemCarveoutMaxShared = 100;
struct cudaFuncAttributes {
  size_t sharedSizeBytes;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    dim3 clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace emulated {
constexpr int kSharedBytes = 227 << 10, kMajor = 8, kMultiprocessors = 3;
// What kernels may take of dynamic shared memory; each kernel's array of it is the test's to define.
constexpr int64_t kMaxElements = kSharedBytes / 16;
}  // namespace emulated

inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  *value = what == cudaDevAttrMaxSharedMemoryPerBlockOptin ? emulated::kSharedBytes
           : what == cudaDevAttrComputeCapabilityMajor     ? emulated::kMajor
                                                           : emulated::kMultiprocessors;
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, Kernel) {
  return *of = {}, cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, Kernel, int, size_t) {
  return *count = 1, cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int*, Kernel, const cudaLaunchConfig_t*) {
  throw std::runtime_error("expected a launch without clusters, which are not emulated");
}
template <class... Parameters, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(Parameters...), Given&&... given) {
  if (c->dynamicSmemBytes > size_t(emulated::kSharedBytes) || c->blockDim.x > 1024 || c->blockDim.x == 0 ||
      c->gridDim.x == 0)
    throw std::runtime_error("expected a block of 1 to 1024 threads with at most 227 KB of shared memory, and blocks");
  const std::tuple<Parameters...> args(std::forward<Given>(given)...);
  emulated::run_grid([&] { std::apply(kernel, args); }, c->gridDim, c->blockDim);
  return cudaSuccess;
}
