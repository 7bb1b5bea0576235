// Stands in for common/gpu/ptx/approx.cuh: the functions themselves.
#pragma once

#include <cmath>

namespace kernels::gpu {

inline float rcp_approx(float x) { return 1.f / x; }
inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }
inline float tanh_approx(float x) { return std::tanh(x); }

}  // namespace kernels::gpu
