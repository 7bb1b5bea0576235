// A barrier of all blocks of a launch, which are all there at once.
#pragma once

#include <cuda_runtime.h>

namespace decode::cuda {

// Of the whole device, so that it needs no memory of the caller's: a launch fills every multiprocessor, and the blocks
// of another begin when this one's are past their last barrier. Never reset; a launch leaves a multiple of its blocks.
__device__ unsigned long long arrivals;

// For one thread of each block.
class GridBarrier {
 public:
  __device__ __forceinline__ void begin() {  // before the block's first arrival: others' may have come
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(target_) : "l"(&arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(&arrivals) : "memory");
    // Not at begin(): what was read there is not waited for until now.
    target_ = (begun_ ? target_ : target_ / gridDim.x * gridDim.x) + gridDim.x, begun_ = true;
  }
  __device__ __forceinline__ void wait() const {
    unsigned long long now;
    do {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(&arrivals) : "memory");
    } while (now < target_);
  }

 private:
  unsigned long long target_;
  bool begun_ = false;
};

}  // namespace decode::cuda
