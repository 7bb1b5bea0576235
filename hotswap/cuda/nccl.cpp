// NCCL for the ranks that train a model on GPUs.
#define USE_C10D_NCCL
#include "hotswap/training/ranks/nccl.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" c10d::Backend* hotswap_make_nccl(const hotswap::NcclArguments& a) {
  const c10::cuda::CUDAGuard current(static_cast<c10::DeviceIndex>(a.device));
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(a.timeout_ms);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      "nccl", c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(a.store));
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, a.rank, a.size, options).release();
}
