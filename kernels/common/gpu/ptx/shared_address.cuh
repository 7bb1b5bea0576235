// Addresses of shared memory as instructions take them.
#pragma once

#include <cstdint>

namespace kernels::gpu {

// Where shared memory is for the instructions that take a 32-bit address.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

}  // namespace kernels::gpu
