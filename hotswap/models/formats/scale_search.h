// The scale of a few weights that share one: w[i] is about scale * code[i], codes integers from `low` to -low - 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace hotswap {

// To nearest, ties to even; |x| below 2^22. Compiles to two additions, where std::nearbyint is a call without SSE4.1.
inline float rounded(float x) {
  constexpr float kShift = 12582912.F;  // 1.5 * 2^23: the unit of its last digit is 1
  const float shifted = x + kShift;
  return shifted - kShift;
}

inline float code_of(float x, float low, float high) { return rounded(std::min(std::max(x, low), high)); }

// 1 / scale, 0 for 0. A subnormal scale has an infinite inverse: its codes are 0 then.
inline float inverse_of(float scale) {
  const float inverse = scale == 0 ? 0.F : 1 / scale;
  return std::isfinite(inverse) ? inverse : 0.F;
}

template <int kCount>
float squared_error(const float* x, float scale, float low, float high) {
  const float inverse = inverse_of(scale);
  float sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const float off = x[i] - scale * code_of(x[i] * inverse, low, high);
    sum += off * off;
  }
  return sum;
}

// The scale of the least squares for the codes that `scale` gives; 0 where all of them are 0.
template <int kCount>
float refitted(const float* x, float scale, float low, float high) {
  const float inverse = inverse_of(scale);
  float products = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const float code = code_of(x[i] * inverse, low, high);
    products += x[i] * code, squares += code * code;
  }
  return squares == 0 ? 0.F : products / squares;
}

// `stored` rounds a scale to the type in which it is kept. The first that is tried is the one that puts the weight of
// the greatest magnitude on `low`; others cut off a little of it, or turn the sign, and each is refitted.
template <int kCount, typename Stored>
float best_scale(const float* x, int low, Stored stored) {
  const auto least = static_cast<float>(low), high = static_cast<float>(-low - 1);
  float extreme = 0;
  for (int i = 0; i < kCount; ++i) extreme = std::abs(x[i]) > std::abs(extreme) ? x[i] : extreme;
  if (extreme == 0) return 0;
  float best = stored(extreme / least);
  float best_error = squared_error<kCount>(x, best, least, high);
  const auto try_scale = [&](float scale) {
    const float kept = stored(scale);
    const float error = squared_error<kCount>(x, kept, least, high);
    if (error < best_error) best = kept, best_error = error;
  };
  // Of few codes a cut-off outlier gains much, of many nothing.
  const float cut = low >= -8 ? .4F : low >= -16 ? .2F : .1F;
  for (const float sign : {1.F, -1.F}) {
    for (int step = -1; step <= 6; ++step) {
      const float stretch = 1 - cut * static_cast<float>(step) / 6;
      try_scale(refitted<kCount>(x, sign * stretch * extreme / least, least, high));
    }
  }
  // Where `stored` has so few digits that the refitted scale is rounded far away or to 0: its neighbour above.
  if (best == 0) try_scale(std::copysign(0x1p-24F, extreme / least));
  return best;
}

}  // namespace hotswap
