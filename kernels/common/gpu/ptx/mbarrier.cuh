// Barriers in shared memory that count arrivals and bytes (mbarrier, sm_90): by them TMA and the threads of a block
// signal that a stage is full or free.
//
// A barrier is in phase 0, 1, 2, ...; a phase ends when all expected threads have arrived and all announced bytes have
// come. wait(parity) returns once the phase of that parity has ended. A fresh barrier's "phase before" counts as ended,
// so that a producer, which waits for free stages, begins with parity 1 and does not block.
#pragma once

#include <cstdint>

#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace kernels::gpu {

struct Mbarrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state)) : "memory");
  }
  // Arrives, and the phase also waits for this count of bytes of copies that name this barrier.
  __device__ __forceinline__ void arrive_expect_tx(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}" ::"r"(shared_address(&state)),
        "r"(parity)
        : "memory");
  }
  // Arrives when all copies by cp.async have come that this thread has started; one of the expected arrivals.
  __device__ __forceinline__ void cp_async_arrive() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&state)) : "memory");
  }
};

// Makes initialised barriers visible to TMA; a barrier of the block follows.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Which stage is next, and the parity of the phase in which it becomes full. (Free: the other parity.)
template <int kStages>
struct PipelineState {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == kStages) index = 0, parity ^= 1;
  }
};

}  // namespace kernels::gpu
