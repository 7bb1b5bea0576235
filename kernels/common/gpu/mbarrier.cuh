// Barriers in shared memory that count arrivals and bytes (sm_90): how TMA and the threads of a block tell
// each other that a buffer is full or free.
//
// A barrier is in phase 0, 1, 2, ...; a phase ends when all expected threads have arrived and all announced bytes have
// come. wait(parity) returns once the phase of that parity has ended. A fresh barrier's "phase before" counts as ended,
// so that who waits for free buffers begins with parity 1 and does not block.
#pragma once

#include <cstdint>

namespace kernels::gpu {

// Where shared memory is for the instructions that take a 32-bit address.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state)) : "memory");
  }
  // Arrives, and the phase also waits for so many bytes of copies that name this barrier.
  __device__ __forceinline__ void arrive_expecting(uint32_t bytes) {
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
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&state)) : "memory");
  }
};

// Makes initialised barriers visible to TMA; a barrier of the block follows.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Which buffer of a ring is next, and the parity of the phase in which it becomes full. (Free: the other parity.)
template <int kBuffers>
struct Ring {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == kBuffers) index = 0, parity ^= 1;
  }
};

}  // namespace kernels::gpu
