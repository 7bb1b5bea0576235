// Mixtures of experts in GGUF files, as llama.cpp's own package writes them (formats/gguf_experts_oracle.py): what is
// loaded computes what transformers' model of the same weights does, and experts stay packed.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/experts.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/formats/test_gguf_mixture.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::GgufMixture;
using test_support::made_data;
using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;

constexpr const char* kExpertsScript = "models/formats/gguf_experts_oracle.py";

std::map<std::string, int64_t> formats_of_experts(CausalLM& model) {
  std::map<std::string, int64_t> found;
  model.each_module([&](const std::string&, Module& module) {
    if (dynamic_cast<Experts*>(&module) == nullptr) return;
    module.each_weight(
        [&](const std::string& name, const Weight& weight) { ++found[cat(name, " ", name_of(weight.format))]; });
  });
  return found;
}

int64_t rows_by_kernel(const CausalLM& model, const std::string& layer) {
  const auto& rows = model.kernel_report().rows;
  return std::count_if(rows.begin(), rows.end(),
                       [&](const KernelRow& row) { return row.layer == layer && row.package.has_value(); });
}

Tensor logits_for(CausalLM& model, const Tensor& ids) {
  const at::NoGradGuard no_grad;
  return model({.input_ids = ids}).logits;
}

// Each row and, after it, `count` tokens that have the highest logit.
Tensor continued_greedily(CausalLM& model, Tensor ids, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Tensor last = logits_for(model, ids).select(1, ids.size(1) - 1);
    ids = at::cat({ids, last.argmax(-1, /*keepdim=*/true)}, 1);
  }
  return ids;
}

class GgufExperts : public testing::TestWithParam<const char*> {};

constexpr const char* kMixtures[] = {"qwen3moe_q8_0", "qwen3moe_q4_0",   "qwen3moe_q4_1",     "qwen3moe_q5_0",
                                     "qwen3moe_q4_k", "qwen3moe_q5_k",   "qwen3moe_q6_k",     "qwen3moe_mxfp4",
                                     "gpt_oss_mxfp4", "qwen3moe_q4_k_m", "qwen3moe_f32_down", "mixtral_q4_k_m",
                                     "gpt_oss_q8_0"};

TEST_P(GgufExperts, ComputeWhatTransformersDoesPackedAndNot) {
  if (const auto why = test_support::lacking_imports("gguf, safetensors, torch, transformers")) GTEST_SKIP() << *why;
  const auto folder = made_data(kExpertsScript) / GetParam();
  const SafetensorsFile expected(folder / "expected.safetensors");
  const Tensor exact = expected.tensor("logits"), ids = expected.tensor("input_ids");
  const auto load = [&](bool kernels, std::optional<bool> keep) {
    return AutoModelForCausalLM::from_pretrained(folder / "model.gguf",
                                                 {.use_kernels = kernels, .dtype = "float32", .keep_formats = keep});
  };
  const auto plain = load(false, false), stock = load(false, true), packed = load(true, std::nullopt);
  // The weights are the same float32 elements; sums of at most 256 terms, in two layers, are made in another order.
  const double limit = 3e-5 * exact.abs().max().item<double>();
  for (const auto& model : {plain, stock, packed}) {
    EXPECT_LE((logits_for(*model, ids) - exact).abs().max().item<double>(), limit);
  }
  EXPECT_FALSE(plain->has_encoded_weights());
  EXPECT_EQ(formats_of_experts(*stock), formats_of_experts(*packed));
  EXPECT_EQ(formats_of_experts(*plain).count("gate_up_proj plain"), 1);
  EXPECT_EQ(formats_of_experts(*packed).count("gate_up_proj plain"), 0);
  EXPECT_EQ(rows_by_kernel(*packed, "PackedExperts"), 2);
  const Tensor greedy = continued_greedily(*plain, ids, 12);
  EXPECT_TRUE(at::equal(continued_greedily(*packed, ids, 12), greedy));
  EXPECT_TRUE(at::equal(continued_greedily(*stock, ids, 12), greedy));
}

INSTANTIATE_TEST_SUITE_P(Files, GgufExperts, testing::ValuesIn(kMixtures),
                         [](const auto& info) { return std::string(info.param); });

std::shared_ptr<CausalLM> load_mixture(const GgufMixture& mixture, const TempFolder& folder,
                                       const PretrainedOptions& options) {
  put_file(folder / "m.gguf", mixture.bytes());
  return AutoModelForCausalLM::from_pretrained(folder / "m.gguf", options);
}

TEST(GgufMixtures, TheReportNamesThePackedExpertsAndUnkernelizeGoesBackToStock) {
  const TempFolder folder;
  const auto model = load_mixture({}, folder, {.use_kernels = true});
  EXPECT_EQ(formats_of_experts(*model),
            (std::map<std::string, int64_t>{{"gate_up_proj q4_k", 2}, {"down_proj q6_k", 2}}));
  EXPECT_EQ(rows_by_kernel(*model, "PackedExperts"), 2);
  EXPECT_EQ(rows_by_kernel(*model, "Experts"), 0);
  const Tensor ids = at::randint(0, 40, {1, 7}, at::kLong), by_kernels = logits_for(*model, ids);
  model->unkernelize();
  const Tensor stock = logits_for(*model, ids);
  EXPECT_LE((by_kernels - stock).abs().max().item<double>(), 3e-5 * stock.abs().max().item<double>());
  const std::string error = message_of([&] { model->train(); });
  expect_has(error, {"quantised weights, which have no gradient", "unpack()"});
  model->unpack();
  EXPECT_FALSE(model->has_encoded_weights());
  EXPECT_LE((logits_for(*model, ids) - stock).abs().max().item<double>(), 3e-5 * stock.abs().max().item<double>());
}

TEST(GgufMixtures, WhoNamesAKernelOfTheExpertsHasPlainOnes) {
  const TempFolder folder;
  const KernelConfig off{.kernel_mapping = {{"Experts", KernelChoice("")}}};
  const auto model = load_mixture({}, folder, {.kernel_config = off});
  EXPECT_EQ(formats_of_experts(*model).count("gate_up_proj plain"), 1);
  const KernelConfig none{.kernel_mapping = {{"RMSNorm", KernelChoice("hotswap/norm:RMSNorm")}},
                          .inherit_mapping = false};
  const auto by_torch = load_mixture({}, folder, {.kernel_config = none});  // experts without a kernel
  EXPECT_EQ(formats_of_experts(*by_torch).count("gate_up_proj plain"), 1);
  EXPECT_EQ(formats_of_experts(*by_torch).count("down_proj plain"), 1);
}

TEST(GgufMixtures, GateAndUpOfTwoTypesAreDequantised) {
  const TempFolder folder;
  const auto model = load_mixture({.gate = "Q8_0"}, folder, {.keep_formats = true});
  EXPECT_EQ(formats_of_experts(*model),
            (std::map<std::string, int64_t>{{"gate_up_proj plain", 2}, {"down_proj q6_k", 2}}));
  const auto plain = load_mixture({.gate = "Q8_0"}, folder, {});
  EXPECT_EQ(formats_of_experts(*plain).count("down_proj plain"), 1);
}

TEST(GgufMixtures, SavingIsOfWhatIsDequantised) {
  const TempFolder folder, saved;
  const auto packed = load_mixture({}, folder, {.keep_formats = true});
  packed->save_pretrained(saved.path());
  const auto again = AutoModelForCausalLM::from_pretrained(saved.path());
  const Tensor ids = at::randint(0, 40, {1, 7}, at::kLong), expected = logits_for(*packed, ids);
  EXPECT_LE((logits_for(*again, ids) - expected).abs().max().item<double>(),
            3e-5 * expected.abs().max().item<double>());
}

TEST(GgufMixtures, FilesThatDoNotFitAreRefusedByName) {
  const TempFolder folder;
  const auto refusal = [&](const GgufMixture& mixture) {
    return message_of([&] { load_mixture(mixture, folder, {.use_kernels = true}); });
  };
  expect_has(refusal({.left_out = "blk.1.ffn_up_exps.weight"}), {"blk.*.ffn_up_exps.weight", "gate_up_proj", "none"});
  expect_has(refusal({.left_out = "blk.1.ffn_down_exps.weight"}), {"missing", "layers.1.mlp.experts.down_proj"});
  expect_has(refusal({.wrong_rows = 3}), {"of one shape", "ffn_gate_exps", "ffn_up_exps", "259"});
  expect_has(refusal({.down = "IQ2_S"}), {"blk.0.ffn_down_exps.weight", "type IQ2_S", "another quantisation"});
  GgufMixture narrow{.inner = 128};  // rows of Q6_K are multiples of 256
  expect_has(refusal(narrow), {"ffn_down_exps", "whole blocks of 256 (Q6_K)", "rows of 128"});
}

}  // namespace
}  // namespace hotswap
