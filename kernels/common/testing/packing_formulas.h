// Weights in blocks (packing.h), and the values that these mean: formulas apart from the kernels' own.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kernels::testing {

using at::Tensor;

struct PackedWeight {
  Tensor bytes;    // [out, in / weights of a block * bytes of a block] uint8
  Tensor numbers;  // [out, in] float64, rounded to float32 once
};

// The packings by their names, ggml's as a GGUF file has them: weights and bytes of a block, the bytes of its scale
// and, if it has one, of its minimum (float16 both), and of weight i of a block the factors of scale and minimum. Ours:
// a float32 scale, in whose low byte the zero may be. MXFP4's scale is a byte, the power of two.
struct PackingFormula {
  const char* name;
  int64_t block, bytes, scale_at, minimum_at;
  std::pair<double, double> (*weight)(const uint8_t* p, int64_t i);
  bool float32_scale = false, zero = false, e8m0_scale = false;
};

inline int nibble_of_32(const uint8_t* p, int64_t i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }
inline std::pair<double, double> k_weight(const uint8_t* p, int64_t group, int code) {
  const uint8_t* s = p + 4;
  if (group < 4) return {(s[group] & 63) * code, -(s[group + 4] & 63)};
  const int scale = (s[group + 4] & 15) | (s[group - 4] >> 6) << 4, minimum = s[group + 4] >> 4 | (s[group] >> 6) << 4;
  return {scale * code, -minimum};
}

inline double e2m1_value(int code) {
  const double size = (code & 6) == 0 ? (code & 1) * 0.5 : std::ldexp(2 + (code & 1), (code >> 1 & 3) - 2);
  return code & 8 ? -size : size;
}

inline double int4_weight(const uint8_t* p, int64_t i) { return nibble_of_32(p + 4 + i / 32 * 16, i % 32) - p[0]; }
inline double e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 128 ? -size : size;
}

inline const std::vector<PackingFormula>& all_packings() {
  using Pair = std::pair<double, double>;
  using P = const uint8_t*;
  static const std::vector<PackingFormula> all = {
      {"Q8_0", 32, 34, 0, -1,
       [](P p, int64_t i) {
         return Pair{int8_t(p[2 + i]), 0};
       }},
      {"Q4_0", 32, 18, 0, -1,
       [](P p, int64_t i) {
         return Pair{nibble_of_32(p + 2, i) - 8, 0};
       }},
      {"Q4_1", 32, 20, 0, 2,
       [](P p, int64_t i) {
         return Pair{nibble_of_32(p + 4, i), 1};
       }},
      {"Q5_0", 32, 22, 0, -1,
       [](P p, int64_t i) {
         return Pair{nibble_of_32(p + 6, i) + (p[2 + i / 8] >> i % 8 & 1) * 16 - 16, 0};
       }},
      {"Q4_K", 256, 144, 0, 2,
       [](P p, int64_t i) { return k_weight(p, i / 32, p[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15); }},
      {"Q5_K", 256, 176, 0, 2,
       [](P p, int64_t i) {
         const int low = p[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
         return k_weight(p, i / 32, low + (p[16 + i % 32] >> i / 32 & 1) * 16);
       }},
      {"Q6_K", 256, 210, 208, -1,
       [](P p, int64_t i) {
         const int64_t n = i / 128, r = i % 128;
         const int low = p[64 * n + r % 64] >> r / 64 * 4 & 15, high = p[128 + 32 * n + r % 32] >> r / 32 * 2 & 3;
         return Pair{int8_t(p[192 + i / 16]) * (low + 16 * high - 32), 0};
       }},
      {"int4_g32", 32, 20, 0, -1,
       [](P p, int64_t i) {
         return Pair{int4_weight(p, i), 0};
       },
       true, true},
      {"int4_g64", 64, 36, 0, -1,
       [](P p, int64_t i) {
         return Pair{int4_weight(p, i), 0};
       },
       true, true},
      {"int4_g128", 128, 68, 0, -1,
       [](P p, int64_t i) {
         return Pair{int4_weight(p, i), 0};
       },
       true, true},
      {"e4m3_g128", 128, 132, 0, -1,
       [](P p, int64_t i) {
         return Pair{e4m3_value(p[4 + i]), 0};
       },
       true, false},
      {"MXFP4", 32, 17, 0, -1,
       [](P p, int64_t i) {
         return Pair{e2m1_value(nibble_of_32(p + 1, i)), 0};
       },
       false, false, true}};
  return all;
}

inline const PackingFormula& packing_formula(const std::string& name) {
  for (const PackingFormula& packing : all_packings()) {
    if (name == packing.name) return packing;
  }
  throw std::invalid_argument("no packing " + name);
}

// Blocks of any bytes, with finite scales and minimums of these sizes.
inline PackedWeight random_blocks(const std::string& name, int64_t out, int64_t in, double scale, double minimum,
                                  const at::Generator& by) {
  const PackingFormula& packing = packing_formula(name);
  const int64_t blocks = in / packing.block;
  const Tensor bytes = at::randint(0, 256, {out, blocks, packing.bytes}, by, at::kByte);
  const auto halves = [&](double size) { return (at::randn({out, blocks, 1}, by, at::kFloat) * size).to(at::kHalf); };
  const Tensor d = halves(scale), m = halves(minimum);
  Tensor wide_d = d.to(at::kDouble);
  if (packing.e8m0_scale) {
    // Powers of two up to four times the scale, so that the weights are about as large as those of other formats.
    const int64_t end = std::min<int64_t>(126, 130 + int64_t(std::floor(std::log2(scale))));
    const Tensor power = at::randint(end - 14, end, {out, blocks, 1}, by, at::kByte);
    bytes.narrow(-1, 0, 1).copy_(power);
    wide_d = at::exp2(power.to(at::kDouble) - 127);
  } else if (packing.float32_scale) {
    const Tensor zero = bytes.narrow(-1, 0, 1).bitwise_and(31), codes = bytes.narrow(-1, 4, packing.bytes - 4);
    if (!packing.zero) codes.copy_(at::where(codes.bitwise_and(127) == 127, codes.bitwise_and(~1), codes));  // no NaN
    bytes.narrow(-1, 0, 4).copy_(d.to(at::kFloat).view(at::kByte));
    if (packing.zero) bytes.narrow(-1, 0, 1).copy_(zero);
  } else {
    bytes.narrow(-1, packing.scale_at, 2).copy_(d.view(at::kByte));
  }
  if (packing.minimum_at >= 0) bytes.narrow(-1, packing.minimum_at, 2).copy_(m.view(at::kByte));
  const Tensor wide_m = m.to(at::kDouble);
  Tensor values = at::empty({out, in}, at::kDouble);
  for (int64_t k = 0; k < values.numel(); ++k) {
    const int64_t block = k / packing.block;
    const auto [a, b] = packing.weight(bytes.const_data_ptr<uint8_t>() + block * packing.bytes, k % packing.block);
    values.mutable_data_ptr<double>()[k] =
        a * wide_d.const_data_ptr<double>()[block] + b * wide_m.const_data_ptr<double>()[block];
  }
  return {bytes.view({out, -1}), values.to(at::kFloat).to(at::kDouble)};
}

}  // namespace kernels::testing
