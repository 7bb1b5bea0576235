// ggml's blocks (kernels/common/packing.h) on a GPU: for tensor cores, as integers that both 16-bit types hold exactly,
// with their scales beside them, and one by one.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/tile/e4m3.cuh"
#include "kernels/common/packing.h"

namespace linear::cuda {

using kernels::BFloat16;
using kernels::Half;
using kernels::Packing;

// Bytes of a row of blocks. Blocks of 18, 22, 34 and 210 bytes begin at even addresses only. In shared memory: from
// words, `first` and the row's own `shift` (0, or 16 bits where it begins in the middle of a word). In memory: two
// bytes at once.
struct SharedRow {
  const uint32_t* words;
  uint32_t shift;

  // kWhole: blocks are whole words, and `at` is a multiple of 4.
  template <bool kWhole>
  __device__ __forceinline__ uint32_t word(int at) const {
    if (kWhole) return words[at / 4];
    if (at % 4 == 0 && shift == 0) return words[at / 4];
    return __funnelshift_r(words[at / 4], words[at / 4 + 1], uint32_t(at % 4) * 8 + shift);
  }
  __device__ __forceinline__ float half(int at) const {
    return __half2float(__ushort_as_half(reinterpret_cast<const uint16_t*>(words)[at / 2 + shift / 16]));
  }
  __device__ __forceinline__ int signed_byte(int at) const {
    return reinterpret_cast<const int8_t*>(words)[at + shift / 8];
  }
};
// The codes of a row in shared memory in the order of an mma's A: where four_codes() reads four bytes that follow one
// another, those of columns 2 * part, the next, and the same eight further.
struct SplitRow {
  const uint8_t* bytes;
  int part;

  template <bool>
  __device__ __forceinline__ uint32_t word(int at) const {
    const uint8_t* pair = bytes + at - 2 * part;
    return uint32_t(*reinterpret_cast<const uint16_t*>(pair)) | uint32_t(*reinterpret_cast<const uint16_t*>(pair + 8))
                                                                    << 16;
  }
};
struct Row {
  const uint16_t* halves;

  template <bool kWhole>
  __device__ __forceinline__ uint32_t word(int at) const {
    return uint32_t(halves[at / 2]) | uint32_t(halves[at / 2 + 1]) << 16;
  }
  __device__ __forceinline__ float half(int at) const { return __half2float(__ushort_as_half(halves[at / 2])); }
  __device__ __forceinline__ int signed_byte(int at) const { return reinterpret_cast<const int8_t*>(halves)[at]; }
};

// Scale and minimum `group` of the eight that Q4_K and Q5_K pack as six bits each in 12 bytes.
__device__ __forceinline__ void scale_and_minimum(const uint32_t (&packed)[3], int group, int& scale, int& minimum) {
  const int shift = 8 * (group & 3);
  const uint32_t a = packed[0] >> shift & 255, b = packed[1] >> shift & 255, c = packed[2] >> shift & 255;
  scale = int(group < 4 ? a & 63 : (c & 15) | a >> 6 << 4);
  minimum = int(group < 4 ? b & 63 : c >> 4 | b >> 6 << 4);
}

// Where the parts of a block are, and how its codes become weights:  w = (code - kZero) * scale - minimum
template <Packing P>
struct Layout;
template <>
struct Layout<Packing::kQ8_0> {
  static constexpr int kWeights = 32, kBytes = 34, kCodes = 2, kBits = 8, kZero = 0;
  static constexpr bool kMinimum = false, kWhole = false;
};
template <>
struct Layout<Packing::kQ4_0> {
  static constexpr int kWeights = 32, kBytes = 18, kCodes = 2, kBits = 4, kZero = 8;
  static constexpr bool kMinimum = false, kWhole = false;
};
template <>
struct Layout<Packing::kQ4_1> {
  static constexpr int kWeights = 32, kBytes = 20, kCodes = 4, kBits = 4, kZero = 0;
  static constexpr bool kMinimum = true, kWhole = true;
};
template <>
struct Layout<Packing::kQ5_0> {
  static constexpr int kWeights = 32, kBytes = 22, kCodes = 6, kFifth = 2, kBits = 5, kZero = 16;
  static constexpr bool kMinimum = false, kWhole = false;
};
template <>
struct Layout<Packing::kQ4_K> {
  static constexpr int kWeights = 256, kBytes = 144, kScales = 4, kCodes = 16, kBits = 4, kZero = 0;
  static constexpr bool kMinimum = true, kWhole = true;
};
template <>
struct Layout<Packing::kQ5_K> {
  static constexpr int kWeights = 256, kBytes = 176, kScales = 4, kFifth = 16, kCodes = 48, kBits = 5, kZero = 0;
  static constexpr bool kMinimum = true, kWhole = true;
};
template <>
struct Layout<Packing::kQ6_K> {
  static constexpr int kWeights = 256, kBytes = 210, kCodes = 0, kFifth = 128, kScales = 192, kFactor = 208, kBits = 6,
                       kZero = 32;
  static constexpr bool kMinimum = false, kWhole = false;
};

// Ours: a float32 before the codes, its low byte the zero of kInt4G32 and so on.
template <Packing P>
struct Int4Layout {
  static constexpr int kWeights = int(kernels::packed_block(P)), kBytes = int(kernels::packed_bytes(P)), kCodes = 4,
                       kBits = 4, kZero = 0;
  static constexpr bool kMinimum = true, kWhole = true;
};
template <>
struct Layout<Packing::kInt4G32> : Int4Layout<Packing::kInt4G32> {};
template <>
struct Layout<Packing::kInt4G64> : Int4Layout<Packing::kInt4G64> {};
template <>
struct Layout<Packing::kInt4G128> : Int4Layout<Packing::kInt4G128> {};
template <>
struct Layout<Packing::kE4m3G128> {
  static constexpr int kWeights = 128, kBytes = 132, kCodes = 4, kBits = 8, kZero = 0;
  static constexpr bool kMinimum = false, kWhole = true;
};

// Four codes of a group of 32: those of columns 16 * half + 4 * part and the three that follow, a byte each. block:
// where it begins in the row; of 32 weights it is the group's own, of 256 the one that has it as its group-th.
template <Packing P, class R>
__device__ __forceinline__ uint32_t four_codes(const R& row, int block, int group, int half, int part) {
  using L = Layout<P>;
  constexpr uint32_t kNibbles = 0x0f0f0f0f;
  const int column = 16 * half + 4 * part;
  const auto word = [&](int at) { return row.template word<L::kWhole>(block + at); };
  if constexpr (P == Packing::kQ8_0) {
    return word(L::kCodes + column);
  } else if constexpr (P == Packing::kE4m3G128) {
    return word(L::kCodes + 32 * group + column);
  } else if constexpr (kernels::kIsInt4<P>) {
    return word(L::kCodes + 16 * group + 4 * part) >> 4 * half & kNibbles;
  } else if constexpr (L::kWeights == 32) {
    uint32_t codes = word(L::kCodes + 4 * part) >> 4 * half & kNibbles;
    if constexpr (P == Packing::kQ5_0) {  // bit i of four to bit 4 of byte i
      const uint32_t fifth = word(L::kFifth) >> column & 15;
      codes |= fifth * 0x02040810u & 0x10101010u;
    }
    return codes;
  } else if constexpr (P == Packing::kQ6_K) {
    const int of_128 = group % 4, n = group / 4;
    const uint32_t low = word(L::kCodes + 64 * n + 32 * (of_128 % 2) + column);
    const uint32_t high = word(L::kFifth + 32 * n + column);
    return (low >> 4 * (of_128 / 2) & kNibbles) | (high >> 2 * of_128 << 4 & 0x30303030u);
  } else {
    uint32_t codes = word(L::kCodes + 32 * (group / 2) + column) >> 4 * (group % 2) & kNibbles;
    if constexpr (P == Packing::kQ5_K) codes |= (word(L::kFifth + column) >> group & 0x01010101u) << 4;
    return codes;
  }
}

// Two words of two elements each: the codes less `zero`, as T. The byte is the end of T's mantissa after a power of
// two, which is subtracted again: both are exact. Eight bits with a sign are seven and the sign's own weight.
template <Packing P, class T>
__device__ __forceinline__ void integers_of(uint32_t codes, uint32_t& first, uint32_t& second,
                                            uint32_t zero = uint32_t(Layout<P>::kZero)) {
  constexpr uint32_t kByte = std::is_same_v<T, BFloat16> ? 0x43 : 0x64;  // 128, 1024 in the upper byte
  constexpr uint32_t kPower = kByte * 0x01010101u;
  const auto difference = [](uint32_t a, uint32_t b) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      const __nv_bfloat162 d =
          __hsub2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
      return reinterpret_cast<const uint32_t&>(d);
    } else {
      const __half2 d = __hsub2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
      return reinterpret_cast<const uint32_t&>(d);
    }
  };
  if constexpr (P == Packing::kE4m3G128) {
    kernels::gpu::e4m3_pairs<T>(codes, first, second);
  } else if constexpr (Layout<P>::kBits == 8) {
    const uint32_t seven = codes & 0x7f7f7f7fu, sign = codes & 0x80808080u;
    first = difference(__byte_perm(seven, kPower, 0x4140), __byte_perm(sign, kPower, 0x4140));
    second = difference(__byte_perm(seven, kPower, 0x4342), __byte_perm(sign, kPower, 0x4342));
  } else {
    const uint32_t offset = (kByte << 8 | zero) * 0x00010001u;
    first = difference(__byte_perm(codes, kPower, 0x4140), offset);
    second = difference(__byte_perm(codes, kPower, 0x4342), offset);
  }
}

// A code of four_codes() less kZero.
template <Packing P>
__device__ __forceinline__ float value_of(uint32_t code) {
  if constexpr (P == Packing::kE4m3G128) return kernels::gpu::e4m3_to_float(code);
  return Layout<P>::kBits == 8 ? float(int8_t(code)) : float(int(code) - Layout<P>::kZero);
}

// Of a group of 32, or of 16 (kQ6_K): w = (code - kZero) * scale - minimum. Products are exact in float32.
struct GroupScale {
  float scale, minimum;
};
template <Packing P, class R>
__device__ __forceinline__ GroupScale group_scale(const R& row, int block, int group, int half) {
  using L = Layout<P>;
  if constexpr (P == Packing::kE4m3G128) {
    return {__uint_as_float(row.template word<true>(block)), 0.f};
  } else if constexpr (kernels::kIsInt4<P>) {
    const uint32_t head = row.template word<true>(block);
    const float scale = __uint_as_float(head & ~255u);
    return {scale, scale * float(head & 255)};
  } else if constexpr (P == Packing::kQ6_K) {
    return {row.half(block + L::kFactor) * float(row.signed_byte(block + L::kScales + 2 * group + half)), 0.f};
  } else if constexpr (L::kWeights == 32) {
    return {row.half(block), L::kMinimum ? -row.half(block + 2) : 0.f};
  } else {
    const uint32_t packed[3] = {row.template word<true>(block + L::kScales),
                                row.template word<true>(block + L::kScales + 4),
                                row.template word<true>(block + L::kScales + 8)};
    int scale, minimum;
    scale_and_minimum(packed, group, scale, minimum);
    return {row.half(block) * float(scale), row.half(block + 2) * float(minimum)};
  }
}

}  // namespace linear::cuda
