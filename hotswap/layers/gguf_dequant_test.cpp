// Each block type of ggml against its formula, written here a second time: one weight by its index, in float64, as the
// format's description has it. On random bytes, odd numbers of blocks and rows, every dtype.
#include "hotswap/layers/gguf_dequant.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/weight.h"

namespace hotswap {
namespace {

using at::Tensor;
using test_support::message_of;

using Bytes = const uint8_t*;

double half_of(Bytes p) {
  return static_cast<float>(c10::Half(static_cast<uint16_t>(p[0] | p[1] << 8), c10::Half::from_bits()));
}
int nibble_of_32(Bytes p, int i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }
int fifth_bit(Bytes p, int i) { return p[i / 8] >> i % 8 & 1; }
double e2m1(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double value = exponent == 0 ? mantissa / 2. : std::ldexp(1 + mantissa / 2., exponent - 1);
  return code < 8 ? value : -value;
}
const double kNl[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Of 12 bytes: s0..s3, m0..m3 in the low six bits of bytes 0..7; of the others four bits in bytes 8..11, two on top of
// those before.
std::pair<int, int> k4(Bytes sc, int j) {
  if (j < 4) return {sc[j] % 64, sc[j + 4] % 64};
  return {sc[j + 4] % 16 + sc[j - 4] / 64 * 16, sc[j + 4] / 16 + sc[j] / 64 * 16};
}
double k_quant(Bytes p, int j, int q) {
  const auto [s, m] = k4(p + 4, j);
  return half_of(p) * s * q - half_of(p + 2) * m;
}
int two_bits(Bytes codes, int i) { return codes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

struct Reference {
  const char* type;
  double (*weight)(Bytes block, int i);
};
const Reference kReferences[] = {
    {"Q4_0", [](Bytes p, int i) { return half_of(p) * (nibble_of_32(p + 2, i) - 8); }},
    {"Q4_1", [](Bytes p, int i) { return half_of(p) * nibble_of_32(p + 4, i) + half_of(p + 2); }},
    {"Q5_0", [](Bytes p, int i) { return half_of(p) * (nibble_of_32(p + 6, i) + 16 * fifth_bit(p + 2, i) - 16); }},
    {"Q5_1",
     [](Bytes p, int i) { return half_of(p) * (nibble_of_32(p + 8, i) + 16 * fifth_bit(p + 4, i)) + half_of(p + 2); }},
    {"Q8_0", [](Bytes p, int i) { return half_of(p) * static_cast<int8_t>(p[2 + i]); }},
    {"IQ4_NL", [](Bytes p, int i) { return half_of(p) * kNl[nibble_of_32(p + 2, i)]; }},
    {"MXFP4", [](Bytes p, int i) { return std::ldexp(e2m1(nibble_of_32(p + 1, i)), p[0] - 127); }},
    {"NVFP4",
     [](Bytes p, int i) {
       const int scale = p[i / 16], byte = p[4 + i / 16 * 8 + i % 8];
       const double s = scale == 127          ? 0
                        : scale / 8 % 16 == 0 ? std::ldexp(scale % 8, -9)
                                              : std::ldexp(1 + scale % 8 / 8., scale / 8 % 16 - 7);
       return s * e2m1(i % 16 < 8 ? byte & 15 : byte >> 4);
     }},
    {"Q2_K",
     [](Bytes p, int i) {
       return half_of(p + 80) * (p[i / 16] % 16) * two_bits(p + 16, i) - half_of(p + 82) * (p[i / 16] / 16);
     }},
    {"Q3_K",
     [](Bytes p, int i) {
       const int j = i / 16, low = p[96 + j % 8] >> j / 8 * 4 & 15, high = p[104 + j % 4] >> j / 4 * 2 & 3;
       return half_of(p + 108) * (low + 16 * high - 32) * (two_bits(p + 32, i) - 4 * !(p[i % 32] >> i / 32 & 1));
     }},
    {"Q4_K", [](Bytes p, int i) { return k_quant(p, i / 32, p[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15); }},
    {"Q5_K",
     [](Bytes p, int i) {
       const int low = p[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
       return k_quant(p, i / 32, low + 16 * (p[16 + i % 32] >> i / 32 & 1));
     }},
    {"Q6_K",
     [](Bytes p, int i) {
       const int n = i / 128, r = i % 128;
       const int q = (p[64 * n + r % 64] >> r / 64 * 4 & 15) + 16 * (p[128 + 32 * n + r % 32] >> r / 32 * 2 & 3);
       return half_of(p + 208) * static_cast<int8_t>(p[192 + i / 16]) * (q - 32);
     }},
    {"IQ4_XS",
     [](Bytes p, int i) {
       const int j = i / 32, high = (p[2] + 256 * p[3]) >> 2 * j & 3, low = p[4 + j / 2] >> j % 2 * 4 & 15;
       return half_of(p) * (low + 16 * high - 32) * kNl[nibble_of_32(p + 8 + 16 * j, i % 32)];
     }},
    {"TQ1_0",
     [](Bytes p, int i) {
       const int byte = i < 160 ? p[i % 32] : i < 240 ? p[32 + (i - 160) % 16] : p[48 + (i - 240) % 4];
       const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
       double fraction = byte / 256.;  // of base 3
       for (int k = 0; k < digit; ++k) fraction = fraction * 3 - std::floor(fraction * 3);
       return half_of(p + 52) * (std::floor(fraction * 3) - 1);
     }},
    {"TQ2_0", [](Bytes p, int i) { return half_of(p + 64) * (two_bits(p, i) - 1); }},
};

Tensor random_blocks(const GgufType& type, int64_t rows, int64_t blocks) {
  return at::randint(0, 256, {rows, blocks * static_cast<int64_t>(type.block_size)}, at::kByte);
}

Tensor by_formula(const Reference& reference, const GgufType& type, const Tensor& bytes, int64_t in) {
  const Tensor result = at::zeros({bytes.size(0), in}, at::kDouble);
  double* to = result.mutable_data_ptr<double>();
  for (int64_t k = 0; k < result.numel(); ++k) {
    const Bytes block = bytes.const_data_ptr<uint8_t>() + k / type.block * static_cast<int64_t>(type.block_size);
    to[k] = reference.weight(block, static_cast<int>(k % type.block));
  }
  return result;
}

// Bit for bit, but that any NaN is any other: random scales have some.
bool same(const Tensor& a, const Tensor& b) {
  const Tensor none = at::zeros({}, a.options());
  return at::equal(at::isnan(a), at::isnan(b)) &&
         at::equal(at::where(at::isnan(a), none, a), at::where(at::isnan(b), none, b));
}

TEST(GgufBlocks, AreTheirFormulaRoundedOnce) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  for (const Reference& reference : kReferences) {
    const GgufType& type = *find_gguf_type(std::string(reference.type));
    for (const auto& [rows, blocks] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {1, 300}}) {
      const Tensor bytes = random_blocks(type, rows, blocks);
      const int64_t in = blocks * type.block;
      const Tensor expected = by_formula(reference, type, bytes, in);
      const Tensor wide = dequantised(bytes, type, in, at::kFloat);
      EXPECT_TRUE(same(wide, expected.to(at::kFloat))) << reference.type;
      EXPECT_TRUE(same(dequantised(bytes, type, in, at::kDouble), wide.to(at::kDouble))) << reference.type;
      for (const auto dtype : {at::kBFloat16, at::kHalf}) {
        EXPECT_TRUE(same(dequantised(bytes, type, in, dtype), wide.to(dtype))) << reference.type << " " << dtype;
      }
    }
  }
}

TEST(GgufBlocks, EveryQuantisedTypeThatIsReadHasAFormulaHere) {
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufType* type = find_gguf_type(id);
    if (type == nullptr || !can_dequantise(*type) || type->block == 1) continue;
    EXPECT_TRUE(std::any_of(std::begin(kReferences), std::end(kReferences), [&](const Reference& reference) {
      return std::string(reference.type) == type->name;
    })) << type->name;
  }
}

TEST(GgufBlocks, AreTheSameByTorchsOperations) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  int64_t tried = 0;
  for (const Reference& reference : kReferences) {
    const GgufType& type = *find_gguf_type(std::string(reference.type));
    EXPECT_EQ(type.by_ops != nullptr, weight_format_of_ggml(type.name).has_value()) << type.name;
    if (type.by_ops == nullptr) continue;
    for (const auto& [rows, blocks] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {0, 2}}) {
      const Tensor bytes = random_blocks(type, rows, blocks);
      const int64_t in = blocks * type.block;
      const auto by_ops = [&](const Tensor& rows_of) {
        return type.by_ops(rows_of.unflatten(1, {blocks, int64_t(type.block_size)})).reshape({rows, in});
      };
      const Tensor expected = dequantised(bytes, type, in, at::kFloat);
      EXPECT_TRUE(same(by_ops(bytes), expected)) << type.name;
      EXPECT_TRUE(same(by_ops(at::cat({bytes, bytes}, 1).narrow(1, 0, bytes.size(1))), expected)) << type.name;
    }
    ++tried;
  }
  EXPECT_EQ(tried, 8);
}

TEST(GgufBlocks, RefuseRowsOfOtherSizes) {
  const GgufType& type = *find_gguf_type(std::string("Q4_K"));
  const std::string error = message_of([&] { dequantised(at::zeros({2, 145}, at::kByte), type, 256, at::kFloat); });
  EXPECT_NE(error.find("whole blocks of Q4_K, uint8 [rows, 144]"), std::string::npos) << error;
  EXPECT_NE(message_of([&] {
              dequantised(at::zeros({2, 144}, at::kByte), type, 255, at::kFloat);
            }).find("of 255"),
            std::string::npos);
}

}  // namespace
}  // namespace hotswap
