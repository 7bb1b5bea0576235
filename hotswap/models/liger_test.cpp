// Liger's options against Liger's own table, and what they bind in a model of every family.
#include "hotswap/models/liger.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/test_data.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/family.h"
#include "hotswap/models/test_families.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::tiny;

using Options = std::map<std::string, bool>;

// "rope=True, rms_norm=False, model=None" -> the options
Options parsed(const std::string& signature) {
  Options options;
  std::istringstream words(signature);
  for (std::string word; std::getline(words >> std::ws, word, ',');) {
    const size_t equals = word.find('=');
    const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
    if (value == "True" || value == "False") options[word.substr(0, equals)] = value == "True";
  }
  return options;
}

// The file was written from Liger 0.8.5 itself; the Python package is tested against the same.
TEST(Liger, TheTableIsLigersOwn) {
  const Json names = Json::read(test_support::source_folder() / "python/tests/liger_names.json").child("families");
  std::set<std::string> of_liger, here;
  for (const auto& [name, signature] : names.items()) {
    const std::string family = name.substr(std::string("apply_liger_kernel_to_").size());
    of_liger.insert(family);
    const auto& options = liger_family(family).options;
    EXPECT_EQ(Options(options.begin(), options.end()), parsed(signature.as<std::string>())) << name;
  }
  for (const LigerFamily& family : liger_families()) here.insert(family.model_type);
  EXPECT_EQ(here, of_liger);
}

TEST(Liger, OptionsChooseLayers) {
  const LigerFamily& llama = liger_family("llama");
  const auto by_default = liger_layers(llama);
  for (const char* layer : {"rotary_pos_emb", "RMSNorm", "AddRMSNorm", "SwiGLUMLP", "LinearCrossEntropy"}) {
    EXPECT_TRUE(by_default.contains(layer)) << layer;
  }
  for (const char* layer : {"ForCausalLMLoss", "LayerNorm", "Linear", "DecoderLayer", "attention"}) {
    EXPECT_FALSE(by_default.contains(layer)) << layer;
  }
  EXPECT_FALSE(liger_layers(llama, {{"rms_norm", false}}).contains("AddRMSNorm"));
  EXPECT_FALSE(liger_layers(llama, {{"swiglu", false}}).contains("SiLU"));
  const auto by_logits = liger_layers(llama, {{"cross_entropy", true}});
  EXPECT_TRUE(by_logits.contains("ForCausalLMLoss"));
  EXPECT_FALSE(by_logits.contains("LinearCrossEntropy")) << "the requested loss goes before the default";
  EXPECT_TRUE(liger_layers(liger_family("granite")).contains("ForCausalLMLoss"));
  EXPECT_EQ(liger_family("llama4_text").model_type, "llama4");
  EXPECT_EQ(liger_family("mllama_text_model").model_type, "mllama");
  EXPECT_EQ(liger_family("gemma3_text").model_type, "gemma3_text");
}

TEST(Liger, ErrorsNameWhatIsNear) {
  const LigerFamily& llama = liger_family("llama");
  expect_has(message_of([&] { liger_layers(llama, {{"rms_nrom", true}}); }), {"rms_nrom", "did you mean rms_norm?"});
  expect_has(message_of([&] { liger_layers(llama, {{"geglu", true}}); }), {"swiglu", "'geglu'"});
  expect_has(message_of([&] {
               liger_layers(llama, {{"cross_entropy", true}, {"fused_linear_cross_entropy", true}});
             }),
             {"both"});
  expect_has(message_of([&] { liger_layers(liger_family("gemma4"), {{"rope", true}}); }), {"no such kernel"});
  expect_has(message_of([&] { liger_family("bert"); }), {"bert", "kernelize()"});
  expect_has(message_of([&] { apply_liger_kernel_to_gemma(*tiny("llama")); }), {"apply_liger_kernel_to_llama"});
}

class LigerEveryFamily : public testing::TestWithParam<const Family*> {};

TEST_P(LigerEveryFamily, BindsWhatLigerHasAndGoesBack) {
  const std::string type = GetParam()->model_type;
  const auto model = tiny(type);
  model->train();
  const std::set<std::string> without = {
      "qwen2_moe", "olmoe",  "mamba",    "falcon_mamba", "mamba2", "jamba",      "cohere",           "cohere2",
      "ernie4_5",  "falcon", "glm",      "glm4_moe",     "gpt2",   "gpt_neox",   "granitemoe",       "olmo",
      "phi",       "phimoe", "stablelm", "starcoder2",   "bamba",  "nemotron_h", "granitemoehybrid", "lfm2"};
  if (without.contains(type)) {
    expect_has(message_of([&] { apply_liger_kernel(*model); }), {type, "kernelize()"});
    return;
  }
  const Tensor ids = at::randint(40, {2, 7}, at::kLong);
  const auto loss = [&] { return (*model)({.input_ids = ids, .labels = ids}).loss.item<double>(); };
  const double stock = loss();
  const int64_t before = op_calls("norm", "rms_norm") + op_calls("norm", "rms_norm_fwd");
  const KernelReport& report = apply_liger_kernel(*model);
  const auto on = liger_layers(liger_family(type));
  int64_t norms = 0;
  for (const KernelRow& row : report.rows) {
    EXPECT_TRUE(!row.package || on.contains(row.layer)) << row.layer << " is none of Liger's";
    norms += row.package && row.layer == "RMSNorm";
  }
  EXPECT_GT(norms, 0) << report;
  EXPECT_NEAR(loss(), stock, 1e-4 * std::abs(stock));  // float32, three layers: rounding in another order
  EXPECT_GT(op_calls("norm", "rms_norm") + op_calls("norm", "rms_norm_fwd"), before) << "the kernel ran";
  const auto rows = apply_liger_kernel(*model, {{"rms_norm", false}}).rows;
  for (const KernelRow& row : rows) EXPECT_FALSE(row.package && row.layer.ends_with("RMSNorm")) << row.name;
  model->unkernelize();
  EXPECT_EQ(loss(), stock) << "to the bit";
}

INSTANTIATE_TEST_SUITE_P(Families, LigerEveryFamily, testing::ValuesIn(families()),
                         [](const auto& info) { return std::string(info.param->model_type); });

}  // namespace
}  // namespace hotswap
