#include "hotswap/layers/gguf_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace hotswap {
namespace {

template <typename T>
T load(const uint8_t* from) {  // of any alignment
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float half_at(const uint8_t* from) { return c10::Half(load<uint16_t>(from), c10::Half::from_bits()); }
float number(int code) { return static_cast<float>(code); }
int bits(uint32_t word, int from, int count) { return static_cast<int>(word >> from & ((1U << count) - 1)); }
int low(uint8_t byte) { return byte & 15; }
int high(uint8_t byte) { return byte >> 4; }

template <int kWeights, int kBytes, typename Block>
void each_block(const uint8_t* from, float* to, int64_t weights, Block block) {
  for (int64_t at = 0; at < weights; at += kWeights, from += kBytes) block(from, to + at);
}

// The 16 values of IQ4_NL and IQ4_XS.
constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice what an e2m1 code stands for: sign, two bits of exponent, one of mantissa.
constexpr int kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of 2^(byte - 127): the codes are doubled. 255 is not NaN here, as ggml has it.
float half_of_e8m0(uint8_t byte) { return std::ldexp(0.5F, byte - 127); }

// Half of an unsigned e4m3: no sign, the codes for zero and NaN both 0.
float half_of_ue4m3(uint8_t byte) {
  if (byte == 0 || byte == 0x7f) return 0;
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  return exponent == 0 ? std::ldexp(number(mantissa), -10) : std::ldexp(number(8 + mantissa), exponent - 11);
}

// Scale and minimum j of the eight that q4_k and q5_k pack as six bits each in 12 bytes.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum scale_and_minimum(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {low(packed[j + 4]) | (packed[j - 4] >> 6) << 4, high(packed[j + 4]) | (packed[j] >> 6) << 4};
}

// Scale j of the 16 that q3_k packs as six bits each in 12 bytes: four low bits of two in a byte, two high ones of
// four.
int scale_of_q3_k(const uint8_t* packed, int j) {
  return (bits(packed[j % 8], j / 8 * 4, 4) | bits(packed[8 + j % 4], j / 4 * 2, 2) << 4) - 32;
}

// Each of a number of weights that is a multiple of the type's block. "low first": the low nibbles are the first half
// of a group's weights, the high ones the second half.
void f32(const uint8_t* from, float* to, int64_t weights) { std::memcpy(to, from, weights * sizeof(float)); }

void f16(const uint8_t* from, float* to, int64_t weights) {
  each_block<1, 2>(from, to, weights, [](const uint8_t* p, float* w) { *w = half_at(p); });
}

void bf16(const uint8_t* from, float* to, int64_t weights) {
  each_block<1, 2>(from, to, weights, [](const uint8_t* p, float* w) {
    const uint32_t wide = static_cast<uint32_t>(load<uint16_t>(p)) << 16;
    std::memcpy(w, &wide, sizeof wide);
  });
}

// 32: half d, 16 bytes, low first: d (q - 8)
void q4_0(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 18>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p);
    for (int i = 0; i < 16; ++i) w[i] = d * number(low(p[2 + i]) - 8), w[i + 16] = d * number(high(p[2 + i]) - 8);
  });
}

// 32: half d, half m, 16 bytes, low first: d q + m
void q4_1(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 20>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p), m = half_at(p + 2);
    for (int i = 0; i < 16; ++i) w[i] = d * number(low(p[4 + i])) + m, w[i + 16] = d * number(high(p[4 + i])) + m;
  });
}

// 32: half d, 32 fifth bits, 16 bytes, low first: d (q - 16)
void q5_0(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 22>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p);
    const auto fifth = load<uint32_t>(p + 2);
    for (int i = 0; i < 16; ++i) {
      w[i] = d * number((low(p[6 + i]) | bits(fifth, i, 1) << 4) - 16);
      w[i + 16] = d * number((high(p[6 + i]) | bits(fifth, i + 16, 1) << 4) - 16);
    }
  });
}

// 32: half d, half m, 32 fifth bits, 16 bytes, low first: d q + m
void q5_1(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 24>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p), m = half_at(p + 2);
    const auto fifth = load<uint32_t>(p + 4);
    for (int i = 0; i < 16; ++i) {
      w[i] = d * number(low(p[8 + i]) | bits(fifth, i, 1) << 4) + m;
      w[i + 16] = d * number(high(p[8 + i]) | bits(fifth, i + 16, 1) << 4) + m;
    }
  });
}

// 32: half d, 32 int8: d q
void q8_0(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 34>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p);
    for (int i = 0; i < 32; ++i) w[i] = d * number(static_cast<int8_t>(p[2 + i]));
  });
}

// 32: as q4_0, q an index of a table: d T[q]
void iq4_nl(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 18>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p);
    for (int i = 0; i < 16; ++i) {
      w[i] = d * number(kTable[low(p[2 + i])]), w[i + 16] = d * number(kTable[high(p[2 + i])]);
    }
  });
}

// 32: exponent e, 16 bytes of e2m1 codes, low first: 2^(e - 127) q
void mxfp4(const uint8_t* from, float* to, int64_t weights) {
  each_block<32, 17>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_of_e8m0(p[0]);
    for (int i = 0; i < 16; ++i) {
      w[i] = d * number(kE2m1[low(p[1 + i])]), w[i + 16] = d * number(kE2m1[high(p[1 + i])]);
    }
  });
}

// 64: 4 unsigned e4m3 scales, 4 times 8 bytes of e2m1, low first: s q
void nvfp4(const uint8_t* from, float* to, int64_t weights) {
  each_block<64, 36>(from, to, weights, [](const uint8_t* p, float* w) {
    for (int j = 0; j < 4; ++j) {
      const float d = half_of_ue4m3(p[j]);
      const uint8_t* codes = p + 4 + 8 * j;
      for (int i = 0; i < 8; ++i) {
        w[16 * j + i] = d * number(kE2m1[low(codes[i])]), w[16 * j + i + 8] = d * number(kE2m1[high(codes[i])]);
      }
    }
  });
}

// 256, in sub-blocks of 16 or 32 with a scale s (and a minimum m) each, as all K-quants: (d s) q - (dmin m)
void q2_k(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 84>(from, to, weights, [](const uint8_t* p, float* w) {
    const uint8_t *scales = p, *codes = p + 16;
    const float d = half_at(p + 80), dmin = half_at(p + 82);
    for (int i = 0; i < 256; ++i) {
      const int q = bits(codes[i / 128 * 32 + i % 32], i % 128 / 32 * 2, 2);
      const uint8_t both = scales[i / 16];
      w[i] = d * number(low(both)) * number(q) - dmin * number(high(both));
    }
  });
}

// (d s) (q - 4)
void q3_k(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 110>(from, to, weights, [](const uint8_t* p, float* w) {
    const uint8_t *thirds = p, *codes = p + 32, *scales = p + 96;
    const float d = half_at(p + 108);
    for (int i = 0; i < 256; ++i) {
      const int q = bits(codes[i / 128 * 32 + i % 32], i % 128 / 32 * 2, 2);
      const int third = bits(thirds[i % 32], i / 32, 1);
      w[i] = d * number(scale_of_q3_k(scales, i / 16)) * number(q + 4 * third - 4);
    }
  });
}

// (d s) q - (dmin m)
void q4_k(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 144>(from, to, weights, [](const uint8_t* p, float* w) {
    for (int j = 0; j < 8; ++j) {
      const auto [scale, minimum] = scale_and_minimum(p + 4, j);
      const float d = half_at(p) * number(scale), m = half_at(p + 2) * number(minimum);
      const uint8_t* codes = p + 16 + j / 2 * 32;
      for (int i = 0; i < 32; ++i) w[32 * j + i] = d * number(bits(codes[i], j % 2 * 4, 4)) - m;
    }
  });
}

// (d s) q - (dmin m)
void q5_k(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 176>(from, to, weights, [](const uint8_t* p, float* w) {
    const uint8_t* fifths = p + 16;
    for (int j = 0; j < 8; ++j) {
      const auto [scale, minimum] = scale_and_minimum(p + 4, j);
      const float d = half_at(p) * number(scale), m = half_at(p + 2) * number(minimum);
      const uint8_t* codes = p + 48 + j / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        w[32 * j + i] = d * number(bits(codes[i], j % 2 * 4, 4) | bits(fifths[i], j, 1) << 4) - m;
      }
    }
  });
}

// (d s) (q - 32)
void q6_k(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 210>(from, to, weights, [](const uint8_t* p, float* w) {
    const uint8_t *lows = p, *highs = p + 128, *scales = p + 192;
    const float d = half_at(p + 208);
    for (int i = 0; i < 256; ++i) {
      const int n = i / 128, r = i % 128;
      const int q = bits(lows[64 * n + r % 64], r / 64 * 4, 4) | bits(highs[32 * n + r % 32], r / 32 * 2, 2) << 4;
      w[i] = d * number(static_cast<int8_t>(scales[i / 16])) * number(q - 32);
    }
  });
}

// 256: (d s) T[q], T as iq4_nl
void iq4_xs(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 136>(from, to, weights, [](const uint8_t* p, float* w) {
    const auto scale_highs = load<uint16_t>(p + 2);
    for (int j = 0; j < 8; ++j) {
      const int scale = (bits(p[4 + j / 2], j % 2 * 4, 4) | bits(scale_highs, 2 * j, 2) << 4) - 32;
      const float d = half_at(p) * number(scale);
      const uint8_t* codes = p + 8 + 16 * j;
      for (int i = 0; i < 16; ++i) {
        w[32 * j + i] = d * number(kTable[low(codes[i])]), w[32 * j + i + 16] = d * number(kTable[high(codes[i])]);
      }
    }
  });
}

// Five digits of base 3 in a byte as the fraction byte / 256: times 3, and the whole part is the next digit. 32 bytes
// hold weights 0..159, 16 bytes 160..239, 4 bytes of four digits the rest; a byte's digits are that many bytes apart.
void tq1_0(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 54>(from, to, weights, [](const uint8_t* p, float* w) {
    constexpr int kPowers[] = {1, 3, 9, 27, 81};
    const float d = half_at(p + 52);
    for (int i = 0; i < 256; ++i) {
      const int run = i < 160 ? 32 : i < 240 ? 16 : 4;
      const int start = i < 160 ? 0 : i < 240 ? 160 : 240, byte = i < 160 ? 0 : i < 240 ? 32 : 48;
      const int k = i - start;
      const auto fraction = static_cast<uint8_t>(p[byte + k % run] * kPowers[k / run]);
      w[i] = d * number((fraction * 3 >> 8) - 1);
    }
  });
}

// 256: the same, four to a byte
void tq2_0(const uint8_t* from, float* to, int64_t weights) {
  each_block<256, 66>(from, to, weights, [](const uint8_t* p, float* w) {
    const float d = half_at(p + 64);
    for (int i = 0; i < 256; ++i) w[i] = d * number(bits(p[i / 128 * 32 + i % 32], i % 128 / 32 * 2, 2) - 1);
  });
}

// ---- The same by torch's operations, for blocks on a GPU: nothing waits for it, and a graph may have it.
using at::Tensor;

// Parts of blocks [rows, blocks, bytes], along the last dimension.
struct Blocks {
  Tensor bytes;

  Tensor part(int64_t at, int64_t count) const { return bytes.narrow(-1, at, count); }
  Tensor half(int64_t at) const { return part(at, 2).contiguous().view(at::kHalf).to(at::kFloat); }
  Tensor signed_bytes(int64_t at, int64_t count) const { return part(at, count).view(at::kChar).to(at::kFloat); }
};

Tensor low_of(const Tensor& bytes) { return at::bitwise_and(bytes, 15); }
Tensor high_of(const Tensor& bytes) { return at::bitwise_right_shift(bytes, 4); }
// bytes >> shift & mask for each shift from 0 on, in steps: a new dimension before the last.
Tensor fields(const Tensor& bytes, int64_t count, int64_t step, int64_t mask) {
  const Tensor shifts = at::arange(0, count * step, step, bytes.options()).view({count, 1});
  return at::bitwise_and(at::bitwise_right_shift(bytes.unsqueeze(-2), shifts), mask);
}
Tensor above(const Tensor& bits, const Tensor& low_bits) {  // bits in front of four
  return at::bitwise_or(at::bitwise_left_shift(bits, 4), low_bits);
}
Tensor less(const Tensor& codes, int64_t zero) { return codes.to(at::kFloat) - zero; }

// Of 32 weights: 16 bytes, the low nibbles are the first half.
Tensor nibbles(const Blocks& b, int64_t at) {
  const Tensor bytes = b.part(at, 16);
  return at::cat({low_of(bytes), high_of(bytes)}, -1);
}

Tensor q8_0_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  return b.half(0) * b.signed_bytes(2, 32);
}
Tensor q4_0_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  return b.half(0) * less(nibbles(b, 2), 8);
}
Tensor q4_1_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  return b.half(0) * nibbles(b, 4).to(at::kFloat) + b.half(2);
}
Tensor q5_0_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  const Tensor fifth = fields(b.part(2, 4), 8, 1, 1).transpose(-1, -2).flatten(-2);
  return b.half(0) * less(above(fifth, nibbles(b, 6)), 16);
}

// Of 256 weights in eight groups, with scales and minimums of six bits: codes [rows, blocks, 8, 32].
Tensor by_groups(const Blocks& b, const Tensor& codes) {
  const Tensor first = b.part(4, 4), second = b.part(8, 4), third = b.part(12, 4);
  const auto six = [](const Tensor& plain, const Tensor& four, const Tensor& two) {
    return at::cat({at::bitwise_and(plain, 63), above(at::bitwise_right_shift(two, 6), four)}, -1).to(at::kFloat);
  };
  const Tensor scale = b.half(0) * six(first, low_of(third), first),
               minimum = b.half(2) * six(second, high_of(third), second);
  return (scale.unsqueeze(-1) * codes.to(at::kFloat) - minimum.unsqueeze(-1)).flatten(-2);
}

Tensor nibbles_of_groups(const Blocks& b, int64_t at) {
  const Tensor bytes = b.part(at, 128).unflatten(-1, {4, 32});
  return at::stack({low_of(bytes), high_of(bytes)}, -2).flatten(-3, -2);
}

Tensor q4_k_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  return by_groups(b, nibbles_of_groups(b, 16));
}
Tensor q5_k_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  return by_groups(b, above(fields(b.part(16, 32), 8, 1, 1), nibbles_of_groups(b, 48)));
}

Tensor q6_k_by_ops(const Tensor& blocks) {
  const Blocks b{blocks};
  const Tensor bytes = b.part(0, 128).unflatten(-1, {2, 2, 32});
  const Tensor four = at::cat({low_of(bytes), high_of(bytes)}, -2);                        // [.., 2, 4, 32]
  const Tensor two = fields(b.part(128, 64).unflatten(-1, {2, 32}), 4, 2, 3);              // the same
  const Tensor codes = less(above(two, four), 32).unflatten(-1, {2, 16}).flatten(-4, -2);  // [.., 16, 16]
  return ((b.half(208) * b.signed_bytes(192, 16)).unsqueeze(-1) * codes).flatten(-2);
}

Tensor mxfp4_by_ops(const Tensor& bytes) {
  const Blocks b{bytes};
  const Tensor codes = nibbles(b, 1).to(at::kInt), magnitude = at::bitwise_and(codes, 7);
  const Tensor exponent = at::bitwise_right_shift(magnitude, 1), one = at::bitwise_and(magnitude, 1);
  const Tensor size = at::where(exponent == 0, magnitude, at::bitwise_left_shift(one + 2, exponent - 1));
  const Tensor byte = b.part(0, 1).to(at::kInt);  // half of 2^(byte - 127), by its bits: the two smallest are denormal
  const Tensor bits = at::where(byte < 2, at::bitwise_left_shift(byte + 1, 21), at::bitwise_left_shift(byte - 1, 23));
  return bits.view(at::kFloat) * at::where(codes >= 8, -size, size).to(at::kFloat);
}

// Every type that a file may hold: those of gguf 0.19.0 and of llama.cpp (2026), and of files from before 2025 the
// rearranged Q4_0 and IQ4_NL. The size is known also where the values are not, so that a file's layout can be checked.
// Q8_1 and Q8_K are made of activations and in no file.
constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, f32},
    {1, "F16", 1, 2, f16},
    {2, "Q4_0", 32, 18, q4_0, q4_0_by_ops},
    {3, "Q4_1", 32, 20, q4_1, q4_1_by_ops},
    {6, "Q5_0", 32, 22, q5_0, q5_0_by_ops},
    {7, "Q5_1", 32, 24, q5_1},
    {8, "Q8_0", 32, 34, q8_0, q8_0_by_ops},
    {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84, q2_k},
    {11, "Q3_K", 256, 110, q3_k},
    {12, "Q4_K", 256, 144, q4_k, q4_k_by_ops},
    {13, "Q5_K", 256, 176, q5_k, q5_k_by_ops},
    {14, "Q6_K", 256, 210, q6_k, q6_k_by_ops},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18, iq4_nl},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136, iq4_xs},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2, bf16},
    {31, "Q4_0_4_4", 32, 18},
    {32, "Q4_0_4_8", 32, 18},
    {33, "Q4_0_8_8", 32, 18},
    {34, "TQ1_0", 256, 54, tq1_0},
    {35, "TQ2_0", 256, 66, tq2_0},
    {36, "IQ4_NL_4_4", 32, 18},
    {37, "IQ4_NL_4_8", 32, 18},
    {38, "IQ4_NL_8_8", 32, 18},
    {39, "MXFP4", 32, 17, mxfp4, mxfp4_by_ops},
    {40, "NVFP4", 64, 36, nvfp4},
    {41, "Q1_0", 128, 18},
    {42, "Q2_0", 64, 18},
};

static_assert(std::all_of(std::begin(kTypes), std::end(kTypes),
                          [](const GgufType& type) { return kGgufChunk % type.block == 0; }));

}  // namespace

std::span<const GgufType> gguf_types() { return kTypes; }

}  // namespace hotswap
