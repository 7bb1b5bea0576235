#include "hotswap/models/formats/mxfp4.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::run_python;
using test_support::TempFolder;

class Weights : public Module {
 public:
  explicit Weights(at::IntArrayRef shape) { own("experts.up", up, shape); }
  Tensor up;
};

const TensorRules kDecodeRules = {
    TensorRule::decode({"experts.up_blocks", "experts.up_scales"}, "experts.up", mxfp4())};

Tensor read(const TempFolder& folder, at::IntArrayRef shape, at::ScalarType dtype) {
  Weights model(shape);
  load_into(model, *in_model_terms(open_checkpoint(folder.path()), kDecodeRules, model), {.dtype = dtype});
  return model.up;
}

// Every number a half byte can say, in both halves, with scales on both sides of 1.
TEST(Mxfp4, EveryNumberAndItsPlace) {
  Tensor blocks = at::full({1, 2, 2, 16}, 0, at::kByte);
  blocks[0][1][0].copy_(at::arange(16, at::kByte) * 16 + 9);  // lower half 9: -0.5; upper half: all sixteen
  const Tensor scales = at::tensor({127, 127, 130, 127}, at::kByte).view({1, 2, 2});  // row 1, group 0: times 8
  const TempFolder folder;
  save_pretrained_weights(folder.path(), {{"experts.up_blocks", blocks}, {"experts.up_scales", scales}});
  const Tensor up = read(folder, {1, 64, 2}, at::kFloat);  // [experts, columns, rows]
  const std::vector<float> numbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0., -0.5, -1, -1.5, -2, -3, -4, -6};
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(up[0][2 * i][1].item<float>(), -4) << i;
    EXPECT_EQ(up[0][2 * i + 1][1].item<float>(), 8 * numbers[i]) << i;
  }
  EXPECT_EQ(up.select(2, 0).abs().max().item<float>(), 0);
  EXPECT_EQ(up.narrow(1, 32, 32).abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(read(folder, {1, 64, 2}, at::kBFloat16).to(at::kFloat), up));  // exact in two bytes
}

TEST(Mxfp4, AsTransformersReadsIt) {
  const TempFolder folder;
  const Tensor blocks = at::randint(0, 256, {3, 10, 2, 16}, at::kByte),
               scales = at::randint(118, 136, {3, 10, 2}, at::kByte);
  save_pretrained_weights(folder.path(), {{"experts.up_blocks", blocks}, {"experts.up_scales", scales}});
  const auto run = run_python(folder, R"(
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
stored = load_file("model.safetensors")
save_file({"up": convert_moe_packed_tensors(stored["experts.up_blocks"], stored["experts.up_scales"]).contiguous()}, "want.safetensors")
)");
  ASSERT_EQ(run.status, 0) << run.output;
  const Tensor want = SafetensorsFile(folder / "want.safetensors").tensor("up");
  EXPECT_TRUE(at::equal(read(folder, want.sizes(), want.scalar_type()), want));
}

TEST(Mxfp4, WhatIsNoSuchTensorIsRefused) {
  const auto message = [](const Tensor& blocks, const Tensor& scales) {
    const TempFolder folder;
    save_pretrained_weights(folder.path(), {{"experts.up_blocks", blocks}, {"experts.up_scales", scales}});
    return message_of([&] { read(folder, {1, 32, 2}, at::kFloat); });
  };
  const auto bytes = [](at::IntArrayRef shape) { return at::full(shape, 0, at::kByte); };
  EXPECT_EQ(message(bytes({1, 2, 1, 16}), bytes({1, 2, 1})), "no error");
  expect_has(message(bytes({1, 2, 1, 15}), bytes({1, 2, 1})), {"[1, 2, 1, 15]"});
  expect_has(message(bytes({1, 2, 1, 16}), bytes({1, 2, 2})), {"[1, 2, 2]"});
  expect_has(message(at::full({1, 2, 1, 16}, 0, at::kInt), bytes({1, 2, 1})), {"Int"});
}

class PackedWeights : public Module {
 public:
  explicit PackedWeights(at::IntArrayRef shape) { own("experts.up", up, shape); }
  Weight up;
};

// The same weights, in ggml's order of a block.
TEST(Mxfp4, StaysPackedBitForBit) {
  const TempFolder folder;
  const Tensor scales = at::randint(0, 255, {3, 5, 2}, at::kByte);
  const auto load = [&](bool keep) {
    save_pretrained_weights(folder.path(), {{"experts.up_blocks", at::randint(0, 256, {3, 5, 2, 16}, at::kByte)},
                                            {"experts.up_scales", scales}});
    PackedWeights packed({3, 64, 5}), plain({3, 64, 5});
    for (PackedWeights* model : {&packed, &plain}) {
      load_into(*model, *in_model_terms(open_checkpoint(folder.path()), kDecodeRules, *model),
                {.dtype = at::kFloat, .keep_formats = keep && model == &packed});
    }
    EXPECT_EQ(packed.up.encoded(), keep && scales.lt(255).all().item<bool>());
    EXPECT_EQ(packed.up.shape(), (std::vector<int64_t>{3, 64, 5}));
    EXPECT_TRUE(at::equal(packed.up.dequantised(at::kFloat), plain.up.data));
    return packed.up;
  };
  const Weight up = load(true);
  EXPECT_EQ(up.format, WeightFormat::kMxfp4);
  EXPECT_EQ(up.data.sizes(), at::IntArrayRef({3, 5, 2 * 17}));
  EXPECT_FALSE(load(false).encoded());
  scales[1][2][1] = 255;  // infinite, which a block of ggml's cannot say
  EXPECT_FALSE(scales.lt(255).all().item<bool>());
  const TempFolder other;
  PackedWeights model({3, 64, 5});
  save_pretrained_weights(
      other.path(), {{"experts.up_blocks", at::full({3, 5, 2, 16}, 0x22, at::kByte)}, {"experts.up_scales", scales}});
  load_into(model, *in_model_terms(open_checkpoint(other.path()), kDecodeRules, model),
            {.dtype = at::kFloat, .keep_formats = true});
  EXPECT_FALSE(model.up.encoded());
}

}  // namespace
}  // namespace hotswap
