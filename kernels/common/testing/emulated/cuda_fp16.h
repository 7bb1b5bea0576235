// Stands in for CUDA's: conversions of float16, by the compiler's own.
#pragma once

#include "kernels/common/testing/emulated/block.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};
inline float __half2float(__half v) {
  _Float16 f;
  std::memcpy(&f, &v, 2);
  return float(f);
}
inline __half __float2half_rn(float v) {
  const auto f = _Float16(v);
  __half out;
  std::memcpy(&out, &f, 2);
  return out;
}
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half v) { return v.bits; }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float __low2float(__half2 v) { return __half2float(v.x); }
inline float __high2float(__half2 v) { return __half2float(v.y); }
inline __half2 __hmax2(__half2 a, __half2 b) {
  return __floats2half2_rn(std::fmax(__low2float(a), __low2float(b)), std::fmax(__high2float(a), __high2float(b)));
}
