// Adapters beside weights that stay packed: NF4 as bitsandbytes makes it and peft trains over it (qlora_oracle.py), and
// every format that is kept, against the same weights unpacked.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "hotswap/models/auto.h"
#include "hotswap/models/formats/four_bits.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::made_data;
using test_support::message_of;
using test_support::TempFolder;
namespace fs = std::filesystem;

constexpr const char* kModules = "bitsandbytes, compressed_tensors, gguf, peft, transformers";

class Qlora : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports(kModules)) GTEST_SKIP() << *why;
  }
  static const fs::path& oracle() { return made_data("models/qlora_oracle.py"); }
};

// The loss of ids, and the gradients of what learns, by name; the tensors' gradients are dropped.
std::map<std::string, Tensor> step(CausalLM& model, const Tensor& ids) {
  model.train();
  const Tensor loss = model({.input_ids = ids, .labels = ids}).loss;
  loss.backward();
  std::map<std::string, Tensor> found = {{"loss", loss.detach()}};
  model.each_trained([&](const std::string& name, Tensor& tensor) {
    found[name] = tensor.grad();
    tensor.mutable_grad() = Tensor();
  });
  return found;
}

int64_t weight_bytes(CausalLM& model) {
  int64_t bytes = 0;
  model.each_weight([&](const std::string&, Weight& weight) {
    weight.each_tensor([&](Tensor& t) { bytes += static_cast<int64_t>(t.nbytes()); });
  });
  return bytes;
}

TEST_F(Qlora, BlocksAreBitsandbytes) {
  const SafetensorsFile file(oracle() / "blocks.safetensors");
  for (const char* i : {"0", "1", "2"}) {
    const Tensor weight = file.tensor(cat("weight.", i)), data = file.tensor(cat("data.", i)).view({-1});
    const Weight made = four_bits_of(weight);
    EXPECT_TRUE(at::equal(made.scales.view({-1}), file.tensor(cat("absmax.", i)).view({-1}))) << i;
    // The first of two elements is there in the high bits.
    const Tensor swapped = at::bitwise_or(at::bitwise_left_shift(data, 4), at::bitwise_right_shift(data, 4));
    EXPECT_TRUE(at::equal(made.data.view({-1}), swapped)) << i;
    EXPECT_LT((made.dequantised(at::kFloat) - weight.to(at::kFloat)).abs().max().item<double>(),
              0.16 * weight.abs().max().item<double>());
  }
}

TEST_F(Qlora, LoadInFourBitsIsTheSavedCheckpoint) {
  const auto loaded =
      AutoModelForCausalLM::from_pretrained(oracle() / "plain", {.quantization_config = {.load_in_4bit = true}});
  const auto saved =
      AutoModelForCausalLM::from_pretrained(oracle() / "nf4", {.dtype = "float32", .keep_formats = true});
  std::map<std::string, Weight> theirs;
  int64_t packed = 0;
  saved->each_weight([&](const std::string& name, Weight& weight) { theirs[name] = weight; });
  loaded->each_weight([&](const std::string& name, Weight& weight) {
    const Weight& other = theirs.at(name);
    ASSERT_EQ(weight.format, other.format) << name;
    EXPECT_EQ(weight.encoded(), name.find("_proj") != std::string::npos) << name;
    packed += weight.encoded() ? 1 : 0;
    EXPECT_TRUE(at::equal(weight.data, other.data)) << name;
    EXPECT_TRUE(at::equal(weight.dequantised(at::kFloat), other.dequantised(at::kFloat))) << name;
  });
  EXPECT_EQ(packed, 14);
  const auto plain = AutoModelForCausalLM::from_pretrained(oracle() / "plain", {});
  EXPECT_LT(weight_bytes(*loaded), weight_bytes(*plain) / 3);
}

// By the weights that bitsandbytes dequantises.
TEST_F(Qlora, GradientsArePeftsOverBitsandbytes) {
  const SafetensorsFile expected(oracle() / "expected.safetensors");
  for (const bool kernels : {false, true}) {
    const auto model = AutoModelForCausalLM::from_pretrained(oracle() / "nf4", {.use_kernels = kernels,
                                                                                .dtype = "float32",
                                                                                .keep_formats = true,
                                                                                .adapter = oracle() / "adapter",
                                                                                .is_trainable = true});
    EXPECT_TRUE(model->has_encoded_weights());
    const auto found = step(*model, expected.tensor("input_ids"));
    EXPECT_NEAR(found.at("loss").item<double>(), expected.tensor("loss").item<double>(), 1e-5);
    EXPECT_EQ(found.size(), 1u + 28u);
    for (const auto& [name, gradient] : found) {
      if (name == "loss") continue;
      const Tensor theirs = expected.tensor("grad.base_model.model." + name);
      EXPECT_LE(((gradient - theirs).abs().max() / theirs.abs().max()).item<double>(), 1e-4) << name;
    }
  }
}

// A packed weight is dequantised to the model's dtype for each product: what it trains is to the bit what the same
// weights train unpacked.
class KeptFormat : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports(kModules)) GTEST_SKIP() << *why;
  }
};

TEST_P(KeptFormat, TrainsAsUnpacked) {
  const fs::path folder = made_data("models/formats/quantised_model_oracle.py") / "models" / GetParam();
  const Tensor ids = SafetensorsFile(folder / "expected.safetensors").tensor("input_ids");
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const bool kernels : {false, true}) {
      const auto load = [&](bool keep) {
        PretrainedOptions options{.use_kernels = kernels, .dtype = dtype, .keep_formats = keep};
        if (fs::exists(folder / "model.gguf")) options.gguf_file = "model.gguf";
        const auto model = AutoModelForCausalLM::from_pretrained(folder, options);
        model->add_adapter(
            {.r = 4, .target_modules = {"q_proj", "v_proj", "gate_proj", "down_proj"}, .init_lora_weights = "false"},
            3);
        return model;
      };
      const auto packed = load(true), plain = load(false);
      EXPECT_TRUE(packed->has_encoded_weights());
      EXPECT_FALSE(plain->has_encoded_weights());
      EXPECT_LT(weight_bytes(*packed), weight_bytes(*plain));
      const auto got = step(*packed, ids), expected = step(*plain, ids);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, gradient] : expected)
        EXPECT_TRUE(at::equal(got.at(name), gradient)) << GetParam() << " " << dtype << " " << kernels << " " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptFormat,
                         testing::Values("bnb_nf4", "bnb_nf4_nested", "bnb_fp4", "gptq_v1", "ct_w4a16", "fp8_blocks",
                                         "gguf_q8_0", "gguf_q4_0", "gguf_q4_k"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Qlora, WhatIsNotWrittenIsRefused) {
  const auto load = [&](const char* name, BitsAndBytesConfig config) {
    config.load_in_4bit = true;
    return message_of([&] { AutoModelForCausalLM::from_pretrained(oracle() / name, {.quantization_config = config}); });
  };
  expect_has(load("plain", {.bnb_4bit_quant_type = "fp4"}), {"nf4", "fp4"});
  expect_has(load("plain", {.bnb_4bit_use_double_quant = true}), {"bnb_4bit_use_double_quant"});
  expect_has(load("nf4", {}), {"load_in_4bit", "quantised checkpoint"});
  EXPECT_EQ(load("plain", {}), "no error");
  const auto model =
      AutoModelForCausalLM::from_pretrained(oracle() / "plain", {.quantization_config = {.load_in_4bit = true}});
  expect_has(message_of([&] { model->train(); }), {"add_adapter"});
}

}  // namespace
}  // namespace hotswap
