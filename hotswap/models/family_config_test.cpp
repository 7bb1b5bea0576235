// What single families read of config.json beyond what decoders share.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/test_support.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/config.h"
#include "hotswap/models/families/deepseek_v2.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using Object = nlohmann::ordered_json;

std::shared_ptr<CausalLM> model_of(const char* type, const Object& more = Object::object()) {
  Object object = {{"model_type", type},      {"vocab_size", 32},         {"hidden_size", 16},
                   {"num_hidden_layers", 3},  {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                   {"intermediate_size", 24}, {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 64}};
  object.update(more);
  return AutoModelForCausalLM::from_config(Json::parse(object.dump(), "config.json"));
}

ModelConfig read_config_of(const char* type, const Object& more = Object::object()) {
  return model_of(type, more)->config();
}

std::string refused(const char* type, const Object& more) {
  return message_of([&] { model_of(type, more); });
}

std::vector<int64_t> windows(const ModelConfig& c) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) all.push_back(c.window_of(i));
  return all;
}
using Windows = std::vector<int64_t>;

TEST(FamilyConfig, GemmasDefaults) {
  for (const char* type : {"gemma", "gemma2", "gemma3_text"}) {
    const ModelConfig c = read_config_of(type);
    EXPECT_EQ(c.head_dim, 256) << type;
    EXPECT_EQ(c.hidden_act, "gelu_pytorch_tanh") << type;
    EXPECT_TRUE(c.tie_word_embeddings) << type;
    EXPECT_EQ(c.embedding_multiplier, 4) << type;
    EXPECT_EQ(c.norm_offset, 1) << type;
    expect_has(refused(type, {{"use_bidirectional_attention", true}}), {"use_bidirectional_attention"});
  }
  const ModelConfig two = read_config_of("gemma2");
  EXPECT_EQ(two.attn_logit_softcapping, 50);
  EXPECT_EQ(two.final_logit_softcapping, 30);
  EXPECT_EQ(two.attention_scale, 0.0625);
  EXPECT_EQ(windows(two), (Windows{4096, 0, 4096}));
  EXPECT_EQ(windows(read_config_of("gemma3_text")), (Windows{4096, 4096, 4096}));
  EXPECT_EQ(windows(read_config_of("gemma3_text", {{"sliding_window", 7}, {"sliding_window_pattern", 2}})),
            (Windows{7, 0, 7}));
  const Object full = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(windows(read_config_of("gemma2", {{"sliding_window", nullptr}, {"layer_types", full}})),
            (Windows{0, 0, 0}));
  expect_has(refused("gemma2", {{"sliding_window", nullptr}}), {"a sliding_window", "null in config.json"});
  expect_has(refused("gemma2", {{"final_logit_softcapping", -1.0}}), {"final_logit_softcapping"});
  expect_has(refused("gemma3_text", {{"attn_logit_softcapping", 50.0}}), {"attn_logit_softcapping"});
}

// A rotary embedding for each kind of layer: as transformers 5 writes it, and as it was before.
TEST(FamilyConfig, Gemma3sTwoRotaryEmbeddings) {
  const Object now = {{"rope_parameters",
                       {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}}},
                        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e3}}}}}};
  const Object before = {
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}, {"rope_theta", 2e6}, {"rope_local_base_freq", 5e3}};
  for (const Object& form : {now, before}) {
    const ModelConfig c = read_config_of("gemma3_text", form);
    EXPECT_EQ(c.rope_parameters.type, "linear");
    EXPECT_EQ(c.rope_parameters.factor, 8);
    EXPECT_EQ(c.rope_parameters.theta, 2e6);
    EXPECT_EQ(c.sliding_rope_parameters.value().type, "default");
    EXPECT_EQ(c.sliding_rope_parameters->theta, 5e3);
  }
  const ModelConfig c = read_config_of("gemma3_text");
  EXPECT_EQ(c.rope_parameters.theta, 1e6);
  EXPECT_EQ(c.sliding_rope_parameters.value().theta, 1e4);
  EXPECT_FALSE(read_config_of("gemma2").sliding_rope_parameters);
  expect_has(refused("llama", now), {"one set of rotary parameters", "rope_parameters"});
}

TEST(FamilyConfig, Phi3s) {
  const Object factors = {{"type", "su"}, {"short_factor", {1.0, 1.0}}, {"long_factor", {2.0, 2.0}}};
  const ModelConfig c = read_config_of("phi3", {{"rope_scaling", factors}, {"max_position_embeddings", 8192}});
  EXPECT_EQ(c.rope_parameters.type, "longrope") << "as its first checkpoints call it";
  EXPECT_EQ(c.rope_parameters.original_max_position_embeddings, 4096) << "the class's default";
  EXPECT_EQ(c.rope_parameters.factor, 2);
  EXPECT_EQ(windows(c), (Windows{0, 0, 0}));
  EXPECT_EQ(windows(read_config_of("phi3", {{"sliding_window", 9}})), (Windows{9, 9, 9}));
  EXPECT_EQ(read_config_of("phi3", {{"partial_rotary_factor", 0.5}}).rope_parameters.dim, 2);
  expect_has(refused("phi3", {{"partial_rotary_factor", 0.75}}), {"partial_rotary_factor", "0.75"});  // 3 of 4
  expect_has(refused("phi3", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}), {"rope type of linear"});
  expect_has(refused("phi3", {{"resid_pdrop", 0.1}}), {"resid_pdrop"});
}

TEST(FamilyConfig, SmolLM3sLayersWithoutRotation) {
  const auto rotates = [](const ModelConfig& c) { return std::vector<bool>{c.rotates(0), c.rotates(1), c.rotates(2)}; };
  EXPECT_EQ(rotates(read_config_of("smollm3", {{"no_rope_layer_interval", 2}})),
            (std::vector<bool>{true, false, true}));
  const Object slides = {{"no_rope_layers", {0, 1, 1}}, {"use_sliding_window", true}, {"sliding_window", 5}};
  EXPECT_EQ(rotates(read_config_of("smollm3", slides)), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(windows(read_config_of("smollm3", slides)), (Windows{5, 0, 0}));
  expect_has(refused("smollm3", {{"no_rope_layers", {1}}}), {"3 no_rope_layers", "got 1"});
}

TEST(FamilyConfig, DeepSeeks) {
  const Object dense = {{"first_k_dense_replace", 3}, {"num_key_value_heads", 4}};
  const auto with = [&](Object more) {
    more.update(dense);
    return more;
  };
  const auto latent = [](const ModelConfig& c) { return latent_attention_options(c, /*layer=*/0); };
  const ModelConfig c = read_config_of("deepseek_v3", dense);
  EXPECT_EQ(latent(c).q_lora_rank, 1536);
  EXPECT_EQ(latent(c).kv_lora_rank, 512);
  EXPECT_EQ(c.rope_parameters.dim, 64);
  EXPECT_FALSE(latent(c).scale);
  EXPECT_FALSE(latent(read_config_of("deepseek_v2", with({{"q_lora_rank", nullptr}}))).q_lora_rank);
  const Object yarn = {{"rope_type", "yarn"}, {"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  const double stretch = 0.1 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(latent(read_config_of("deepseek_v3", with({{"rope_scaling", yarn}}))).scale.value(),
                   std::pow(192.0, -0.5) * stretch * stretch);
  expect_has(refused("deepseek_v2", {{"num_key_value_heads", 4}}), {"num_local_experts"});
  expect_has(refused("deepseek_v3", {{"num_key_value_heads", 4}, {"first_k_dense_replace", 2}}), {"experts"});
  expect_has(refused("deepseek_v3", {{"num_key_value_heads", 4},
                                     {"first_k_dense_replace", 2},
                                     {"n_routed_experts", 4},
                                     {"num_experts_per_tok", 2},
                                     {"moe_intermediate_size", 8},
                                     {"n_group", 4},
                                     {"topk_group", 2}}),
             {"2 at least, of the 4 experts", "n_group 4"});
  expect_has(refused("deepseek_v2", {{"first_k_dense_replace", 3}}), {"num_key_value_heads 4", "got 2"});
  expect_has(refused("deepseek_v2", with({{"qk_rope_head_dim", 7}})), {"even qk_rope_head_dim"});
}

TEST(FamilyConfig, GptOssStretchesWhereNothingIsSaid) {
  const Object sizes = {{"num_local_experts", 2}, {"num_experts_per_tok", 1}};
  const RopeParameters absent = read_config_of("gpt_oss", sizes).rope_parameters;
  EXPECT_EQ(absent.type, "yarn");
  EXPECT_EQ(absent.factor, 32);
  EXPECT_EQ(absent.theta, 150000);
  EXPECT_FALSE(absent.truncate);
  Object plain = sizes;
  plain["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  EXPECT_EQ(read_config_of("gpt_oss", plain).rope_parameters.type, "default");
}

// Each family has its own name for the number of experts, and takes the others.
TEST(FamilyConfig, NumbersOfExperts) {
  for (const char* type : {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"}) {
    const Object one = {{"num_key_value_heads", 4}, {"num_experts_per_tok", 2}, {"first_k_dense_replace", 1}};
    expect_has(refused(type, one),
               {"expected num_local_experts, n_routed_experts or num_experts", "none of them in config.json"});
    for (const char* key : {"num_local_experts", "n_routed_experts", "num_experts"}) {
      Object few = one;
      few[key] = 1;
      expect_has(refused(type, few), {"at most 1 for num_experts_per_tok", "got 2"});
      few[key] = 0;
      expect_has(refused(type, few), {std::string("for ") + key, "got 0"});
    }
  }
}

// Where a layer needs what sdpa lacks, eager is the default; requesting sdpa is an error.
TEST(FamilyConfig, WhichStockAttentionAModelAsksFor) {
  EXPECT_EQ(model_of("gemma")->attn_implementation(), "sdpa");
  EXPECT_EQ(model_of("qwen2")->attn_implementation(), "sdpa") << "biases of its projections are no bias of scores";
  const auto capped = model_of("gemma2", {{"head_dim", 8}});
  EXPECT_EQ(capped->attn_implementation(), "eager");
  capped->init_weights(1);
  const auto forward = [&] { (*capped)({.input_ids = at::zeros({1, 3}, at::kLong)}); };
  EXPECT_EQ(message_of(forward), "no error");
  capped->set_attn_implementation("sdpa");
  expect_has(message_of(forward), {"a softcap", "set attn_implementation to eager"});
  capped->set_attn_implementation("");
  EXPECT_EQ(capped->attn_implementation(), "eager");
  EXPECT_EQ(model_of("gemma2", {{"attn_logit_softcapping", nullptr}})->attn_implementation(), "sdpa");
}

}  // namespace
}  // namespace hotswap
