// float8_e4m3fn as both 16-bit types, exactly. Its NaN is not looked for.
#pragma once

#include <type_traits>

#include "kernels/common/gpu/device.cuh"

namespace kernels::gpu {

// Four codes of a word -> two words of two elements each. The code's exponent and mantissa stand where T has its own,
// which is a power of two too small: subnormal codes are subnormal there as well, and the product takes it back.
template <class T>
__device__ __forceinline__ void e4m3_pairs(uint32_t codes, uint32_t& first, uint32_t& second) {
  constexpr bool kBFloat = std::is_same_v<T, BFloat16>;
  constexpr uint32_t kSigns = 0x80008000u, kRest = kBFloat ? 0x07f007f0u : 0x3f803f80u;
  constexpr int kShift = kBFloat ? 4 : 1;
  const auto pair = [](uint32_t upper_bytes) {
    const uint32_t v = (upper_bytes & kSigns) | (upper_bytes >> kShift & kRest);
    if constexpr (kBFloat) {
      constexpr uint32_t kPower = 0x7b807b80u;  // 2^120
      const __nv_bfloat162 made =
          __hmul2(reinterpret_cast<const __nv_bfloat162&>(v), reinterpret_cast<const __nv_bfloat162&>(kPower));
      return reinterpret_cast<const uint32_t&>(made);
    } else {
      constexpr uint32_t kPower = 0x5c005c00u;  // 2^8
      const __half2 made = __hmul2(reinterpret_cast<const __half2&>(v), reinterpret_cast<const __half2&>(kPower));
      return reinterpret_cast<const uint32_t&>(made);
    }
  };
  first = pair(__byte_perm(codes, 0, 0x1404));
  second = pair(__byte_perm(codes, 0, 0x3424));
}

// The same as float16, by the instruction for it, which is there from sm_89 on.
__device__ __forceinline__ void e4m3_halves(uint32_t codes, uint32_t& first, uint32_t& second) {
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(first), "=r"(second)
      : "r"(codes));
#else
  e4m3_pairs<Half>(codes, first, second);
#endif
}

__device__ __forceinline__ float e4m3_to_float(uint32_t code) {
  const uint32_t half = (code & 0x80) << 8 | (code & 0x7f) << 7;
  return 256.f * __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
}

}  // namespace kernels::gpu
