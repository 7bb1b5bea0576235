// Every layout of quantised weights against its own writer and reader, or its description in float64
// (quantised_oracle.py, quantised_model_oracle.py), bit for bit in float32; and what is refused.
#include "hotswap/models/formats/quantised.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::made_data;
using test_support::message_of;
using test_support::TempFolder;

constexpr const char* kFormats[] = {
    "gptq_v1",        "gptq_v2",  "gptq_act_order",   "gptq_2bit", "gptq_3bit",  "gptq_8bit",
    "gptq_one_group", "gptq_sym", "gptq_mislabelled", "awq",       "fp8_blocks", "modelopt_fp8",
    "modelopt_nvfp4", "ct_w4a16", "ct_w4a16_asym",    "ct_w8a16",  "ct_int8",    "ct_fp8",
    "ct_nvfp4",       "bnb_nf4",  "bnb_nf4_nested",   "bnb_fp4"};

std::unique_ptr<const Checkpoint> opened(const std::filesystem::path& folder) {
  const Json config = Json::read(folder / "config.json");
  check_quantisation(config, /*reads_mxfp4=*/false);
  return dequantising(open_checkpoint(folder), config);
}

TEST(Quantised, EveryLayoutIsWhatItsReaderMakesOfIt) {
  if (const auto why = test_support::lacking_imports("bitsandbytes, compressed_tensors, gguf, transformers")) {
    GTEST_SKIP() << *why;
  }
  const auto root = made_data("models/formats/quantised_model_oracle.py") / "layouts";
  std::set<std::string> in_blocks;
  for (const char* format : kFormats) {
    SCOPED_TRACE(format);
    const auto checkpoint = opened(root / format);
    const SafetensorsFile expected(root / format / "expected.safetensors");
    const auto names = checkpoint->names();
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()),
              std::set<std::string>(expected.names().begin(), expected.names().end()));
    for (const std::string& name : expected.names()) {
      const at::Tensor exact = expected.tensor(name), got = checkpoint->tensor(name, at::kFloat);
      ASSERT_EQ(got.sizes(), exact.sizes()) << name;
      EXPECT_EQ(at::IntArrayRef(checkpoint->shape(name)), exact.sizes()) << name;
      EXPECT_TRUE(at::equal(got, exact)) << name << ": off by up to " << (got - exact).abs().max().item<double>();
      EXPECT_TRUE(at::equal(checkpoint->tensor(name, at::kBFloat16), exact.to(at::kBFloat16))) << name;
      if (const auto kept = checkpoint->encoded(name)) {
        if (block_layout_of(kept->format)) in_blocks.insert(format);
        EXPECT_EQ(at::IntArrayRef({kept->rows(), kept->columns()}), exact.sizes()) << name;
        EXPECT_TRUE(at::equal(kept->dequantised(at::kFloat), exact)) << name;
        EXPECT_TRUE(at::equal(kept->dequantised(at::kBFloat16), exact.to(at::kBFloat16))) << name;
      }
    }
  }
  // Others have codes of eight bits or a table, columns in an order of their own or that no block divides, or scales of
  // float32 beside a zero.
  EXPECT_EQ(in_blocks, (std::set<std::string>{"awq", "ct_w4a16", "ct_w4a16_asym", "gptq_2bit", "gptq_3bit",
                                              "gptq_mislabelled", "gptq_one_group", "gptq_sym", "gptq_v1", "gptq_v2"}));
}

std::string refusal_of(const std::string& settings) {
  const Json config = Json::parse(cat(R"({"quantization_config": )", settings, "}"), "config.json");
  return message_of([&] { check_quantisation(config, /*reads_mxfp4=*/false); });
}

TEST(Quantised, WhatNoReaderHasIsRefusedByName) {
  for (const auto& [settings, excerpt] : std::vector<std::pair<const char*, const char*>>{
           {R"({"quant_method": "hqq"})", "\"hqq\""},
           {R"({"quant_method": "mxfp4"})", "\"mxfp4\""},
           {R"({"bits": 4})",
            "quant_method among fp8, fbgemm_fp8, modelopt, compressed-tensors, gptq, awq, bitsandbytes"},
           {R"({"quant_method": "awq", "version": "gemv_fast"})", "\"gemv_fast\""},
           {R"({"quant_method": "awq", "bits": 8})", "AWQ of 4 bits"},
           {R"({"quant_method": "gptq", "checkpoint_format": "marlin"})", "\"marlin\""},
           {R"({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"})", "\"W4A16_AWQ\""},
           {R"({"quant_method": "compressed-tensors", "format": "marlin-24"})", "\"marlin-24\""},
           {R"({"quant_method": "compressed-tensors", "quantization_status": "frozen"})", "\"frozen\""}}) {
    EXPECT_NE(refusal_of(settings).find(excerpt), std::string::npos) << refusal_of(settings);
  }
  for (const char* settings : {R"({"quant_method": "fp8"})", R"({"load_in_4bit": true})"}) {
    EXPECT_EQ(refusal_of(settings), "no error");
  }
}

// A folder of plain weights beside a config.json that names a quantisation, of every method.
TEST(Quantised, PlainWeightsAreNotReadAsQuantisedOnes) {
  const TempFolder folder;
  save_safetensors(folder / "model.safetensors", {{"m.weight", at::zeros({4, 4})}, {"m.bias", at::zeros({4})}});
  const auto opening = [&](const std::string& settings) {
    const Json config = Json::parse(cat(R"({"quantization_config": )", settings, "}"), "config.json");
    return message_of([&] { dequantising(open_checkpoint(folder.path()), config); });
  };
  std::vector<std::string> methods;
  for (const auto& [method, more, part] : std::vector<std::tuple<std::string, const char*, const char*>>{
           {"fp8", "", "weight_scale_inv"},
           {"fbgemm_fp8", "", "weight_scale"},
           {"modelopt", R"(, "quant_algo": "FP8")", "weight_scale"},
           {"compressed-tensors", R"(, "config_groups": {"group_0": {"weights": {"num_bits": 4}}})", "weight_packed"},
           {"gptq", R"(, "bits": 4)", "qweight and qzeros and scales and g_idx"},
           {"awq", R"(, "bits": 4)", "qweight and qzeros and scales"},
           {"bitsandbytes", R"(, "load_in_4bit": true)", "weight.quant_map"},
           {"mxfp4", "", "_blocks"}}) {
    methods.push_back(method);
    test_support::expect_has(
        opening(cat(R"({"quant_method": ")", method, '"', more, "}")),
        {cat("quantised by ", method), part, "got none in", "m.", "remove its quantization_config"});
  }
  methods.pop_back();  // of one family's rules
  EXPECT_NE(refusal_of(R"({"bits": 4})").find(join(methods)), std::string::npos) << "all of them";
  for (const char* groups :
       {"", R"(, "config_groups": {})", R"(, "config_groups": {"g": {"input_activations": {}}})"}) {
    EXPECT_EQ(opening(cat(R"({"quant_method": "compressed-tensors")", groups, "}")), "no error") << groups;
  }
}

// A module "m" of these tensors: the Error of reading its weight.
std::string damage_of(const std::string& settings, const TensorMap& tensors) {
  const TempFolder folder;
  save_safetensors(folder / "model.safetensors", tensors);
  const Json config = Json::parse(cat(R"({"quantization_config": )", settings, "}"), "config.json");
  const auto checkpoint = dequantising(open_checkpoint(folder.path()), config);
  return message_of([&] { checkpoint->tensor("m.weight", at::kFloat); });
}

TEST(Quantised, TensorsThatDoNotFitAreRefusedByName) {
  const auto ints = [](at::IntArrayRef shape) { return at::zeros(shape, at::kInt); };
  const auto halves = [](at::IntArrayRef shape) { return at::zeros(shape, at::kHalf); };
  const TensorMap awq = {{"m.qweight", ints({64, 2})}, {"m.qzeros", ints({2, 2})}, {"m.scales", halves({2, 16})}};
  EXPECT_EQ(damage_of(R"({"quant_method": "awq"})", awq), "no error");
  const auto with = [](TensorMap tensors, const std::string& name, const at::Tensor& tensor) {
    for (auto& [each, value] : tensors) value = each == name ? tensor : value;
    return tensors;
  };
  struct Case {
    const char* settings;
    TensorMap tensors;
    const char* excerpt;
  };
  const char *kAwq = R"({"quant_method": "awq"})", *kGptq = R"({"quant_method": "gptq"})";
  const char* kFp8 = R"({"quant_method": "fp8", "weight_block_size": [128, 128]})";
  const TensorMap gptq = {
      {"m.qweight", ints({8, 16})}, {"m.qzeros", ints({2, 2})}, {"m.scales", halves({2, 16})}, {"m.g_idx", ints({64})}};
  const at::Tensor codes = at::zeros({200, 130}).to(at::kFloat8_e4m3fn);
  EXPECT_EQ(damage_of(kGptq, gptq), "no error");
  for (const Case& c : std::vector<Case>{
           {kAwq, with(awq, "m.qzeros", ints({2, 3})), "qzeros as [2, 2] for m"},
           {kAwq, with(awq, "m.scales", halves({3, 16})), "scales as [groups of 64 rows, 16]"},
           {kAwq, with(awq, "m.qweight", halves({64, 2})), "qweight as Int"},
           {kGptq, with(gptq, "m.g_idx", ints({64}) + 2), "a group below 2"},
           {kGptq, with(gptq, "m.g_idx", ints({60})), "[in * bits / 32, out]"},
           {kGptq, with(gptq, "m.qzeros", ints({1, 2})), "qzeros as [2, 2]"},
           {kFp8, {{"m.weight", codes}, {"m.weight_scale_inv", at::zeros({1, 2})}}, "a block of [128, 128]"},
           {kFp8, {{"m.weight", at::zeros({2, 2})}, {"m.weight_scale_inv", at::zeros({1, 1})}}, "weight as Float8"}}) {
    const std::string message = damage_of(c.settings, c.tensors);
    EXPECT_NE(message.find(c.excerpt), std::string::npos) << c.excerpt << ": " << message;
  }
  EXPECT_EQ(damage_of(kFp8, {{"m.weight", codes}, {"m.weight_scale_inv", at::zeros({2, 2})}}), "no error");
}

}  // namespace
}  // namespace hotswap
