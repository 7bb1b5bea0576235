// Stands in for common/gpu/ptx/ld_evict_last.cuh: a load.
#pragma once

#include "kernels/common/testing/emulated/block.h"

namespace kernels::gpu {

inline uint4 ld_evict_last(const void* p) { return *static_cast<const uint4*>(p); }

}  // namespace kernels::gpu
