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
#include "hotswap/models/formats/test_gguf.h"
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
    {"qwen3_next", "qwen3next: not implemented"},
    {"qwen3_5_text", "qwen35: not implemented"},
    {"qwen3_5_moe_text", "qwen35moe: not implemented"},
    {"lfm2", "lfm2: not implemented"},
    {"llama4_text", "llama4: not implemented"},
    {"mamba", "mamba: not implemented"},
    {"mamba2", "mamba2: not implemented"},
    {"mistral", "its files state llama"},
    {"olmo3", "olmo2 with windows: not implemented"},
    {"phimoe", "phimoe, whose routing llama.cpp makes a softmax: not implemented"},
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

test_support::Gguf sizes_of(const std::string& architecture) {
  const std::string prefix = architecture + ".";
  test_support::Gguf file;
  file.str("general.architecture", architecture).u32(prefix + "block_count", 2).u32(prefix + "context_length", 16);
  file.u32(prefix + "embedding_length", 8).u32(prefix + "feed_forward_length", 12).u32(prefix + "vocab_size", 10);
  return file.u32(prefix + "attention.head_count", 2);
}

std::string integers(std::initializer_list<uint32_t> values) {
  using test_support::little_endian;
  std::string bytes = little_endian<uint32_t>(4) + little_endian<uint64_t>(values.size());
  for (const uint32_t value : values) bytes += little_endian(value);
  return bytes;
}

std::string refusal_of_config(const test_support::Gguf& file) {
  const test_support::TempFolder folder;
  test_support::put_file(folder / "m.gguf", file.bytes());
  return test_support::message_of([&] { family_of(config_of_gguf(GgufFile(folder / "m.gguf"))); });
}

TEST(GgufLayouts, ListsHaveAValueForEachLayer) {
  using test_support::expect_has;
  const auto llama = [](const std::string& heads) {
    test_support::Gguf file = sizes_of("llama");
    return file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F)
        .key_bytes("llama.attention.head_count_kv", 9, heads);
  };
  expect_has(refusal_of_config(llama(integers({2, 1}))),
             {"one llama.attention.head_count_kv for all layers", "from 1 to 2"});
  expect_has(refusal_of_config(llama(integers({2}))), {"2 values of llama.attention.head_count_kv, one a layer", "1"});
  test_support::Gguf uniform = llama(integers({2, 2}));
  const test_support::TempFolder folder;
  test_support::put_file(folder / "m.gguf", uniform.bytes());
  EXPECT_EQ(config_of_gguf(GgufFile(folder / "m.gguf")).at<int64_t>("num_key_value_heads"), 2);
}

TEST(GgufLayouts, FewerLayersThanNoneBeyondTheLastAreNotRead) {
  test_support::Gguf file = sizes_of("nemotron_h");
  file.f32("nemotron_h.attention.layer_norm_epsilon", 1e-5F).u32("nemotron_h.attention.head_count_kv", 0);
  for (const char* key : {"conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank"}) {
    file.u32(std::string("nemotron_h.ssm.") + key, 4);
  }
  file.key<int32_t>("nemotron_h.nextn_predict_layers", 5, -1000000);
  const test_support::TempFolder folder;
  test_support::put_file(folder / "m.gguf", file.bytes());
  const Json config = config_of_gguf(GgufFile(folder / "m.gguf"));
  EXPECT_EQ(config.at<std::vector<std::string>>("layers_block_type").size(), 2U);
}

TEST(GgufLayouts, KeysThatAFamilyDoesNotHaveAreRefusedByName) {
  test_support::Gguf file = sizes_of("gptneox");
  file.f32("gptneox.attention.layer_norm_epsilon", 1e-5F).key<uint8_t>("gptneox.use_parallel_residual", 7, 1);
  file.f32("gptneox.attention.max_alibi_bias", 8);
  test_support::expect_has(refusal_of_config(file), {"keys of gptneox", "gptneox.attention.max_alibi_bias"});
}

}  // namespace
}  // namespace hotswap
