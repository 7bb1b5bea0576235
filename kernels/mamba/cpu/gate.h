// The gate y silu(z) of Mamba's blocks, silu(z) = z sigmoid(z). Compiled once per ISA.
#pragma once

#include "kernels/common/cpu/math.h"

namespace mamba::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

struct Gate {
  F value, slope;
};
HOTSWAP_INLINE Gate gate_of(F z) {
  const F s = sigmoid(z);
  return {z * s, s * (1.f + z * (1.f - s))};
}

}  // namespace mamba::HOTSWAP_ISA
