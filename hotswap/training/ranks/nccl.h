// NCCL lives in libhotswap_cuda.so (hotswap/cuda/nccl.cpp), which is loaded where a model is on a GPU.
#pragma once

#include <cstdint>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace hotswap {

struct NcclArguments {
  c10d::Store* store;
  int rank, size;
  int64_t timeout_ms;
  int device;
};

// The caller owns what it returns, as an intrusive pointer that was released.
using MakeNccl = c10d::Backend*(const NcclArguments&);
inline constexpr const char* kMakeNccl = "hotswap_make_nccl";

}  // namespace hotswap
