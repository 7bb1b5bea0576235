// Host side of a .cu file: launches that check, the number of multiprocessors, dtype and alignment questions.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "kernels/common/dtype.h"
#include "kernels/common/gpu/launch.h"

namespace kernels::gpu {

inline void checked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": expected a CUDA call without error; got " +
                           cudaGetErrorString(error) + "; run under compute-sanitizer to see where it comes from");
}

// kernel<<<blocks, threads, 0, stream>>>(args...), with this launch's own error: one left by others is not taken.
template <class... Wanted, class... Given>
void launch(void (*kernel)(Wanted...), int64_t blocks, int threads, Stream stream, Given&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  checked(cudaLaunchKernelEx(&config, kernel, Wanted(std::forward<Given>(args))...), "kernel launch");
}

// Of the current device. Asked once a device: a query costs a microsecond.
template <cudaDeviceAttr kAttribute>
int attribute() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0, value = 0;
  checked(cudaGetDevice(&device), "cudaGetDevice");
  if (device < kDevices && (value = known[device].load(std::memory_order_relaxed)) > 0) return value;
  checked(cudaDeviceGetAttribute(&value, kAttribute, device), "cudaDeviceGetAttribute");
  if (device < kDevices) known[device].store(value, std::memory_order_relaxed);
  return value;
}
inline int max_cluster() { return attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 ? 8 : 1; }  // blocks
inline int multiprocessors() { return attribute<cudaDevAttrMultiProcessorCount>(); }

// The widest access of walks in the code that the current device runs: packages hold no PTX, so that it was built for a
// device of the same major version, with kWideBuilt (device.cuh) from sm_100 on.
inline int64_t widest_access() {
#ifdef HOTSWAP_TEST_WIDE
  return kWideBytes;
#else
  return attribute<cudaDevAttrComputeCapabilityMajor>() >= 10 ? kWideBytes : kVectorBytes;
#endif
}

// A launch whose kernel begins by waiting for the launch before: set up while the launch before it ends, where the GPU
// can.
template <class... Wanted, class... Given>
void launch_after(void (*kernel)(Wanted...), int64_t blocks, int threads, Stream stream, Given&&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 ? 1 : 0;
  checked(cudaLaunchKernelEx(&config, kernel, Wanted(std::forward<Given>(args))...), "kernel launch");
}

// More than 48 KB of dynamic shared memory, or clusters of more than 8 blocks: the kernel is told so once a device.
// kMaxShared: a multiprocessor that runs it gives all it can to shared memory, whatever this launch wants. Another
// split is only made while nothing runs there, so that launches that should be set up beside one another had better
// have the same.
template <auto kKernel, bool kMaxShared = false>
void allow_memory() {
  constexpr int kDevices = 64;
  static std::atomic<bool> known[kDevices];
  int device = 0;
  checked(cudaGetDevice(&device), "cudaGetDevice");
  if (device < kDevices && known[device].load(std::memory_order_relaxed)) return;
  cudaFuncAttributes has{};
  checked(cudaFuncGetAttributes(&has, kKernel), "cudaFuncGetAttributes");
  const int most = attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() - int(has.sharedSizeBytes);
  checked(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "shared memory");
  if (attribute<cudaDevAttrComputeCapabilityMajor>() >= 9)
    checked(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cluster size");
  if (kMaxShared)
    checked(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "shared memory");
  if (device < kDevices) known[device].store(true, std::memory_order_relaxed);
}

// A launch with dynamic shared memory.
template <auto kKernel, class... Given>
void launch_with_memory(int64_t bytes, int64_t blocks, int threads, Stream stream, Given&&... args) {
  allow_memory<kKernel>();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  checked(cudaLaunchKernelEx(&config, kKernel, std::forward<Given>(args)...), "kernel launch");
}

// Clusters of a kernel that run at once. The last answer is kept: the query takes longer than a launch.
template <auto kKernel>
int64_t clusters_at_once(int64_t bytes, int threads, int cluster) {
  static std::atomic<uint64_t> known{0};  // device, bytes, threads, cluster; clusters
  int device = 0, count = 0;
  checked(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t key = ((uint64_t(device) << 20 | uint64_t(bytes)) << 11 | uint64_t(threads)) << 5 | uint64_t(cluster);
  const uint64_t last = known.load(std::memory_order_relaxed);
  if (last != 0 && last >> 16 == key) return int64_t(last & 0xffff);
  allow_memory<kKernel>();
  if (cluster == 1) {
    checked(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kKernel, threads, size_t(bytes)), "occupancy");
    count *= multiprocessors();
  } else {
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {unsigned(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(cluster));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(bytes);
    config.attrs = &shape;
    config.numAttrs = 1;
    checked(cudaOccupancyMaxActiveClusters(&count, kKernel, &config), "cudaOccupancyMaxActiveClusters");
  }
  known.store(key << 16 | uint64_t(count), std::memory_order_relaxed);
  return count;
}

// The same, after the launch before it as launch_after() is, in clusters of so many blocks.
template <auto kKernel, bool kMaxShared = false, class... Given>
void launch_after_with_memory(int64_t bytes, int64_t blocks, int threads, int cluster, Stream stream, Given&&... args) {
  allow_memory<kKernel, kMaxShared>();
  cudaLaunchAttribute wanted[2]{};
  unsigned count = 0;
  if (attribute<cudaDevAttrComputeCapabilityMajor>() >= 9) {
    wanted[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    wanted[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    wanted[count].id = cudaLaunchAttributeClusterDimension;
    wanted[count++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = wanted;
  config.numAttrs = count;
  checked(cudaLaunchKernelEx(&config, kKernel, std::forward<Given>(args)...), "kernel launch");
}

// fn(first row, rows) for each launch of a walk.
template <class Fn>
void for_launches(const WalkPlan& p, int64_t rows, const Fn& fn) {
  for (int64_t first = 0; first < rows; first += p.rows_per_launch)
    fn(first, rows - first < p.rows_per_launch ? rows - first : p.rows_per_launch);
}
// The row `rows` further on.
template <class P>
P* moved(P* data, int64_t rows, int64_t stride, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + rows * stride * size_of(dtype);
}

// The first row's address or'ed with what lies between rows: a multiple of 2^n if every row begins at one.
inline uint64_t addresses(const void* data, int64_t stride, DType dtype, int64_t rows) {
  return reinterpret_cast<uintptr_t>(data) | (rows == 1 ? 0 : uint64_t(stride * size_of(dtype)));
}
// Do rows `stride` elements apart begin at whole vectors?
inline bool aligned(const void* data, int64_t stride, DType dtype, int64_t rows = 2) {
  return addresses(data, stride, dtype, rows) % kVectorBytes == 0;
}

}  // namespace kernels::gpu
