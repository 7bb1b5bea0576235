// A decoder layer's step with packed weights, against the values that the blocks mean.
#include <map>

#include "kernels/common/testing/packed_weight.h"
#include "kernels/decode/tests/layer_case.h"

namespace kernels::testing {
namespace {

// The layer with weights of these packings, one after the other and again (up as gate), and the one with the numbers
// that they mean, in float64, of which the reference is made.
std::pair<Layer, Layer> packed_layers(const Shape& shape, at::ScalarType dtype,
                                      const std::vector<std::string>& packings) {
  Layer packed(shape, dtype), plain = packed;
  size_t next = 0;
  const auto pack = [&](Tensor Layer::*weight, const std::string& packing) {
    const Tensor& like = packed.*weight;
    // Of about the size that the plain ones have: what a scale and, where there is one, a minimum are multiplied by.
    struct Size {
      double codes, minimums;
    };
    static const std::map<std::string, Size> sizes = {
        {"Q8_0", {74, 0}},     {"Q4_0", {5, 0}},       {"Q4_1", {14, 2}},      {"Q5_0", {10, 0}},
        {"Q4_K", {560, 75}},   {"Q5_K", {1150, 75}},   {"Q6_K", {1400, 0}},    {"int4_g32", {13, 0}},
        {"int4_g64", {13, 0}}, {"int4_g128", {13, 0}}, {"e4m3_g128", {95, 0}}, {"MXFP4", {3, 0}}};
    const double size = 1 / std::sqrt(double(like.size(1)));
    const auto& [codes, minimums] = sizes.at(packing);
    const PackedWeight w =
        random_weight(packing, like.size(0), like.size(1), size / codes, minimums == 0 ? 0 : size / minimums);
    packed.*weight = w.bytes.to(device());
    plain.*weight = w.numbers.to(device());
    std::string name = packing;
    for (char& c : name) c = char(std::tolower(c));
    packed.formats += (packed.formats.empty() ? "" : ",") + name;
  };
  std::string of_gate;
  for (Tensor Layer::*weight : {&Layer::q, &Layer::k, &Layer::v, &Layer::o, &Layer::gate}) {
    of_gate = packings[next++ % packings.size()];
    pack(weight, of_gate);
  }
  pack(&Layer::up, of_gate);
  pack(&Layer::down, packings[next % packings.size()]);
  return {packed, plain};
}

void expect_packed_layer(const Layer& packed, const Layer& plain, at::ScalarType dtype) {
  const std::string what = packed.shape.str() + ", " + packed.formats + ", " + c10::toString(dtype);
  const Reference expected = reference(plain);
  const double limit = dtype == at::kFloat ? 1e-5 : 3 * tolerance(dtype);
  const std::string op = packed.formats.empty() ? "decoder_layer" : "decoder_layer_packed";
  const int64_t calls = package().call_count(op);
  expect_close(packed.run(), expected.out, limit, what);
  EXPECT_EQ(package().call_count(op), calls + 1);
  expect_close(packed.k_cache.select(1, packed.shape.position), expected.k, limit, what + ", key");
  expect_close(packed.v_cache.select(1, packed.shape.position), expected.v, limit, what + ", value");
}

TEST(DecoderLayer, PackedWeightsAreTheNumbersOfTheirBlocks) {
  std::vector<std::vector<std::string>> sets = {{"Q4_K", "Q4_K", "Q6_K"}, {"Q4_1", "Q8_0", "Q4_0"}};
  for (const PackingFormula& each : packings()) sets.push_back({each.name});
  for (const auto dtype : dtypes()) {
    for (const int64_t rows : {1, 2, 3}) {
      const Shape shape{.rows = rows,
                        .hidden = 256,
                        .heads = 4,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .ffn = 512,
                        .position = 9,
                        .bias = rows == 3,
                        .head_norms = rows == 2,
                        .act = rows == 2 ? "gelu_tanh" : "silu"};
      for (const std::vector<std::string>& packings : sets) {
        const auto [packed, plain] = packed_layers(shape, dtype, packings);
        EXPECT_GE(rows_for(packed), 4);
        expect_packed_layer(packed, plain, dtype);
      }
    }
  }
}

// Of Llama-8B's widths: columns of several chunks, tiles of several rounds.
TEST(DecoderLayer, WidePackedLayers) {
  if (!on_cuda()) GTEST_SKIP() << "a GPU's kernel has chunks and rounds";
  for (const int64_t rows : {1, 2}) {
    for (const std::string packing : {"Q4_K", "Q6_K", "Q4_0", "int4_g128", "e4m3_g128"}) {
      const Shape shape{
          .rows = rows, .hidden = 2560, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 4608, .position = 70};
      const auto [packed, plain] = packed_layers(shape, at::kBFloat16, {packing});
      EXPECT_GE(rows_for(packed), rows);
      expect_packed_layer(packed, plain, at::kBFloat16);
    }
  }
}

TEST(DecoderLayer, ByTheBytesOfARowOnACpu) {
  if (on_cuda()) GTEST_SKIP() << "a GPU takes named formats only";
  for (const auto dtype : dtypes()) {
    for (const int64_t rows : {1, 3, 6}) {
      const Shape shape{.rows = rows,
                        .hidden = 192,
                        .heads = 3,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .ffn = 320,
                        .position = 9,
                        .bias = rows == 3};
      auto [packed, plain] = packed_layers(shape, dtype, {"Q4_1", "Q8_0", "Q4_0"});
      packed.formats.clear();
      expect_packed_layer(packed, plain, dtype);
      expect_same_with_any_threads([&] { return Tensors{packed.run()}; }, "packed");
    }
  }
}

TEST(DecoderLayer, RefusesFormatsThatAreNone) {
  const Shape shape{.rows = 1, .hidden = 256, .heads = 4, .kv_heads = 1, .head_dim = 64, .ffn = 512, .position = 9};
  auto [packed, plain] = packed_layers(shape, at::kBFloat16, {"Q4_K"});
  for (const std::string formats : {"q4_k", "q4_k,q4_k,q4_k,q4_k,q4_k,q4_k", "q4_k,q4_k,q4_k,q4_k,q4_k,q4_k,q4_k,q4_k",
                                    "q4_k,q4_k,q4_k,q4_k,q4_k,q4_k,q3_k", "q4_k,q4_k,q4_k,q4_k,,q4_k,q4_k"}) {
    packed.formats = formats;
    expect_refusal([&] { packed.run(); }, {"seven of plain, q8_0", formats});
  }
  packed.formats = "q4_k,q4_k,q4_k,q4_k,q4_k,q4_k,q6_k";
  expect_refusal([&] { packed.run(); }, {"down packed as [256, bytes of 512 weights in q6_k]"});
}

}  // namespace
}  // namespace kernels::testing
