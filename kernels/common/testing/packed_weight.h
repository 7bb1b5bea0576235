// Weights in blocks for tests, by their generator.
#pragma once

#include "kernels/common/testing/packing_formulas.h"
#include "kernels/common/testing/testing.h"

namespace kernels::testing {

// Those that the tests' device has kernels for.
inline std::vector<PackingFormula> packings() {
  std::vector<PackingFormula> some = all_packings();
  if (on_cuda()) std::erase_if(some, [](const PackingFormula& packing) { return packing.e8m0_scale; });
  return some;
}

// Blocks of any bytes, with finite scales and minimums of these sizes.
inline PackedWeight random_weight(const std::string& name, int64_t out, int64_t in, double scale = 0.01,
                                  double minimum = 1) {
  return random_blocks(name, out, in, scale, minimum, generator());
}

}  // namespace kernels::testing
