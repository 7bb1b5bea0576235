// Stands in for common/gpu/ptx/named_barrier.cuh.
#pragma once

#include "kernels/common/testing/emulated/block.h"

namespace kernels::gpu {

inline void barrier_wait(int id, int threads) { emulated::block.barrier(id, threads); }

}  // namespace kernels::gpu
