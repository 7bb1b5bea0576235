// Every family of which llama.cpp has an architecture, in files as llama.cpp's own package and table of names write
// them (formats/gguf_layouts_oracle.py): what is loaded computes what transformers' model of the same weights does.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::made_data;

constexpr const char* kLayoutsScript = "models/formats/gguf_layouts_oracle.py";

// Of the script's folders; up to a dot the model_type.
constexpr const char* kLayouts[] = {"bamba",
                                    "cohere",
                                    "cohere.norms",
                                    "cohere2",
                                    "deepseek_v2",
                                    "deepseek_v2.lite",
                                    "deepseek_v3",
                                    "ernie4_5",
                                    "exaone4",
                                    "exaone4.windows",
                                    "falcon.11b",
                                    "falcon.40b",
                                    "falcon.7b",
                                    "falcon_h1",
                                    "glm",
                                    "glm4",
                                    "glm4_moe",
                                    "gpt2",
                                    "gpt_neox",
                                    "gpt_neox.sequential",
                                    "granite4.dense",
                                    "granitemoe",
                                    "granitemoehybrid",
                                    "granitemoehybrid.dense",
                                    "nemotron_h",
                                    "nemotron_h.experts",
                                    "nemotron_h.latent",
                                    "olmo",
                                    "olmoe",
                                    "phi",
                                    "phi3",
                                    "phi3.longrope",
                                    "qwen2_moe",
                                    "stablelm",
                                    "stablelm.parallel",
                                    "starcoder2"};

std::string family_in(const std::string& layout) {
  const std::string family = layout.substr(0, layout.find('.'));
  return family == "granite4" ? "granite" : family;  // its files without recurrent layers
}

class GgufLayout : public testing::TestWithParam<const char*> {};

TEST_P(GgufLayout, ComputesWhatTransformersDoes) {
  if (const auto why = test_support::lacking_imports("gguf, safetensors, torch, transformers")) GTEST_SKIP() << *why;
  const auto folder = made_data(kLayoutsScript) / GetParam();
  const SafetensorsFile expected(folder / "expected.safetensors");
  const Tensor exact = expected.tensor("logits"), ids = expected.tensor("input_ids");
  const at::NoGradGuard no_grad;
  // The file's weights are float32 and the checkpoint's own, but for norms, decays and multipliers that it has in other
  // terms; sums of at most 64 terms are made in another order.
  const double limit = 3e-5 * exact.abs().max().item<double>();
  for (const bool kernels : {false, true}) {
    const auto model = AutoModelForCausalLM::from_pretrained(folder / "model.gguf", {.use_kernels = kernels});
    EXPECT_EQ(model->config().model_type, family_in(GetParam()));
    EXPECT_LE(((*model)({.input_ids = ids}).logits - exact).abs().max().item<double>(), limit) << "kernels " << kernels;
  }
  const auto of_folder = AutoModelForCausalLM::from_pretrained(folder / "hf");
  EXPECT_LE(((*of_folder)({.input_ids = ids}).logits - exact).abs().max().item<double>(), limit);
}

INSTANTIATE_TEST_SUITE_P(Files, GgufLayout, testing::ValuesIn(kLayouts), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

// In gguf_families_test.cpp and in gguf_experts_test.cpp.
const std::set<std::string> kTestedElsewhere = {"gemma",   "gemma2", "gemma3_text", "gpt_oss", "granite",   "llama",
                                                "mixtral", "olmo2",  "qwen2",       "qwen3",   "qwen3_moe", "smollm3"};

const std::map<std::string, const char*> kWithoutNames = {
    {"falcon_mamba", "mamba with norms of dt, B and C: not implemented"},
    {"jamba", "jamba: not implemented"},
    {"llama4_text", "llama4: not implemented"},
    {"mamba", "mamba: not implemented"},
    {"mamba2", "mamba2: not implemented"},
    {"mistral", "its files state llama"},
    {"olmo3", "olmo2 with windows: not implemented"},
};

TEST(GgufLayouts, EveryFamilyHasNamesThatAreTestedOrAReason) {
  std::set<std::string> tested = kTestedElsewhere;
  for (const char* layout : kLayouts) tested.insert(family_in(layout));
  for (const Family* family : families()) {
    const bool has_names = family->gguf_architecture != nullptr;
    EXPECT_EQ(has_names, tested.contains(family->model_type)) << family->model_type;
    EXPECT_EQ(has_names, !kWithoutNames.contains(family->model_type)) << family->model_type;
  }
}

}  // namespace
}  // namespace hotswap
