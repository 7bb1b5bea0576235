// Stands in for CUDA's: conversions of bfloat16, to the nearest, ties to even.
#pragma once

#include "kernels/common/testing/emulated/block.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const uint32_t bits = __float_as_uint(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float __low2float(__nv_bfloat162 v) { return __uint_as_float(uint32_t(v.x.bits) << 16); }
inline float __high2float(__nv_bfloat162 v) { return __uint_as_float(uint32_t(v.y.bits) << 16); }
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(std::fmax(__low2float(a), __low2float(b)), std::fmax(__high2float(a), __high2float(b)));
}
