// The coefficients of a tensor's update: in float64, by operations that every device rounds alike.
#pragma once
#include <cmath>

#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/philox.h"

namespace optimizer {

// Rounded by itself: nothing fuses it with a later subtraction.
OPTIMIZER_INLINE double separate_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  volatile double both = a * b;
  return both;
#endif
}

// base^exponent by squares. The libraries' pow() differ in the last bit.
OPTIMIZER_INLINE double power(double base, uint32_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1u) result = separate_product(result, base);
    base = separate_product(base, base);
  }
  return result;
}

OPTIMIZER_INLINE Coefficients coefficients(const Rates& r, float step, float scale) {
  const uint32_t t = uint32_t(step);
  return {.inverse_scale = 1.f / scale,
          .decay = float(1 - separate_product(r.learning_rate, r.weight_decay)),
          .one_minus_beta1 = float(1 - r.beta1),
          .beta2 = float(r.beta2),
          .one_minus_beta2 = float(1 - r.beta2),
          .minus_step_size = float(-r.learning_rate / (1 - power(r.beta1, t))),
          .inverse_root = float(1 / sqrt(1 - power(r.beta2, t))),
          .eps = float(r.eps)};
}

}  // namespace optimizer
