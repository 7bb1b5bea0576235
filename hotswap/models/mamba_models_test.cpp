// What models with recurrences promise beyond their values (parity_test.cpp): states of a cache, configs, and no
// attention to swap.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;
using Object = nlohmann::ordered_json;

Object config_of(const std::string& family) {
  Object config = {{"model_type", family},    {"vocab_size", 40},
                   {"hidden_size", 24},       {"num_hidden_layers", 2},
                   {"intermediate_size", 32}, {"num_attention_heads", 4},
                   {"rms_norm_eps", 1e-5},    {"state_size", 5},
                   {"num_heads", 8},          {"head_dim", 6},
                   {"n_groups", 2},           {"initializer_range", 0.4},
                   {"num_experts", 5},        {"num_experts_per_tok", 2},
                   {"attn_layer_period", 2},  {"attn_layer_offset", 1},
                   {"chunk_size", 4},         {"max_position_embeddings", 64}};
  const Object mixed = {{"num_key_value_heads", 2},    {"mamba_n_heads", 8},
                        {"mamba_d_ssm", 48},           {"mamba_d_state", 5},
                        {"mamba_n_groups", 2},         {"mamba_chunk_size", 4},
                        {"attn_layer_indices", {0}},   {"mamba_num_heads", 8},
                        {"mamba_head_dim", 6},         {"ssm_state_size", 5},
                        {"mamba_rms_norm", true},      {"shared_intermediate_size", 20},
                        {"moe_intermediate_size", 12}, {"moe_shared_expert_intermediate_size", 20}};
  config.update(mixed);
  const Object gated_delta = {
      {"full_attention_interval", 2},         {"partial_rotary_factor", 0.7}, {"linear_num_key_heads", 2},
      {"linear_num_value_heads", 4},          {"linear_key_head_dim", 5},     {"linear_value_head_dim", 6},
      {"shared_expert_intermediate_size", 20}};
  if (family.starts_with("qwen")) config.update(gated_delta);
  if (family == "lfm2") config.update(Object{{"full_attn_idxs", {0}}, {"block_multiple_of", 8}});
  if (family == "bamba") config["head_dim"] = 8;                                     // of which half turns
  if (family == "granitemoehybrid") config["layer_types"] = {"attention", "mamba"};  // names of older files
  if (family == "nemotron_h") config["layers_block_type"] = {"attention", "moe", "mamba", "mlp"};
  return config;
}

bool attends_too(const std::string& family) {
  return family != "mamba" && family != "falcon_mamba" && family != "mamba2";
}

// Families whose recurrence is Mamba's of either kind; of the others it has no slot.
bool has_mamba_scan(const std::string& family) { return !family.starts_with("qwen") && family != "lfm2"; }

Json parsed_config(const Object& config) { return Json::parse(config.dump(), "config.json"); }

std::shared_ptr<CausalLM> tiny_mamba(const std::string& family, at::ScalarType dtype = at::kFloat) {
  auto model = AutoModelForCausalLM::from_config(parsed_config(config_of(family)));
  model->init_weights(7, dtype);
  model->eval();
  return model;
}

class MambaModels : public testing::TestWithParam<const char*> {
 protected:
  at::NoGradGuard no_grad_;
};

TEST_P(MambaModels, StatesStayWhereTheyAreAndBeginAnew) {
  const auto model = tiny_mamba(GetParam());
  const Tensor ids = at::randint(0, 40, {2, 9}, at::kLong);
  const Tensor whole = (*model)({.input_ids = ids}).logits;
  const auto cache = model->make_cache();
  (*model)({.input_ids = ids.narrow(1, 0, 6), .cache = cache.get()});
  expect_has(message_of([&] { cache->crop(4); }), {"go back to token 4", "crop(0)"});
  // No layer has forgotten anything, those with keys neither.
  const Tensor rest = (*model)({.input_ids = ids.narrow(1, 6, 3), .cache = cache.get()}).logits;
  EXPECT_LE((rest - whole.narrow(1, 6, 3)).abs().max().item<double>(), 1e-5 * whole.abs().max().item<double>());
  cache->crop(0);
  const Tensor again = (*model)({.input_ids = ids, .cache = cache.get()}).logits;
  EXPECT_LE((again - whole).abs().max().item<double>(), 1e-5 * whole.abs().max().item<double>());
}

// The slots that only steps of generation reach have no backward, and need none.
TEST_P(MambaModels, StrictTrains) {
  const auto model = tiny_mamba(GetParam());
  model->requires_grad(true);
  model->train();
  const at::AutoGradMode grad(true);
  int64_t of_steps = 0;
  for (const KernelRow& row : model->kernelize(Mode::TRAINING, {.strict = true}).rows) {
    if (row.layer != "causal_conv1d_update" && row.layer != "selective_state_update") continue;
    EXPECT_EQ(row.reason, "runs in generation only, not in training");
    ++of_steps;
  }
  EXPECT_GT(of_steps, 0);
  const Tensor ids = at::randint(0, 40, {2, 9}, at::kLong);
  (*model)({.input_ids = ids, .labels = ids}).loss.backward();
  model->eval();
  EXPECT_TRUE(model->kernel_report().left_stock().rows.empty());
}

TEST_P(MambaModels, ReportsEverySlotAndHasNoAttentionToSwap) {
  const auto model = tiny_mamba(GetParam());
  const std::set<std::string> served = {"causal_conv1d_fn",       "causal_conv1d_update",      "selective_scan_fn",
                                        "selective_state_update", "mamba_chunk_scan_combined", "MambaRMSNormGated"};
  std::set<std::string> layers;
  for (const KernelRow& row : model->kernelize(Mode::INFERENCE).rows) {
    layers.insert(row.layer);
    if (served.contains(row.layer)) EXPECT_TRUE(row.package.has_value()) << row.layer << ": " << row.reason;
  }
  EXPECT_TRUE(layers.contains("causal_conv1d_fn") && layers.contains("causal_conv1d_update"));
  EXPECT_EQ(layers.contains("selective_state_update"), has_mamba_scan(GetParam()));
  model->unkernelize();
  if (attends_too(GetParam())) return;
  EXPECT_FALSE(layers.contains("attention"));
  expect_has(message_of([&] { model->set_attn_implementation("flash_attention_2"); }),
             {"a model with attention", GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Models, MambaModels,
                         testing::Values("mamba", "falcon_mamba", "mamba2", "jamba", "bamba", "granitemoehybrid",
                                         "falcon_h1", "nemotron_h", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
                                         "lfm2"));

TEST(MambaConfig, SizesAndLimits) {
  const auto read = [](Object config) { return family_of(parsed_config(config)).read_config(parsed_config(config)); };
  Object one = config_of("mamba");
  EXPECT_EQ(read(one).mamba.rank, 2);  // a sixteenth of hidden_size, rounded up
  one["time_step_rank"] = "auto";
  EXPECT_EQ(read(one).mamba.rank, 2);
  one["time_step_rank"] = 7;
  EXPECT_EQ(read(one).mamba.rank, 7);
  EXPECT_EQ(read(one).mamba.channels, 32);  // intermediate_size
  one.erase("intermediate_size");
  EXPECT_EQ(read(one).mamba.channels, 48);
  one["expand"] = 3;
  EXPECT_EQ(read(one).mamba.channels, 72);
  one["hidden_act"] = "gelu";
  expect_has(message_of([&] { read(one); }), {"hidden_act other than silu"});

  Object two = config_of("mamba2");
  EXPECT_TRUE(std::isinf(read(two).mamba.dt_max));
  two["time_step_limit"] = {0.25, {{"__float__", "Infinity"}}};
  EXPECT_EQ(read(two).mamba.dt_min, 0.25);
  EXPECT_TRUE(std::isinf(read(two).mamba.dt_max));
  two["time_step_limit"] = {0.25, 3};
  EXPECT_EQ(read(two).mamba.dt_max, 3);
  two["time_step_limit"] = {0.25, "wide"};
  expect_has(message_of([&] { read(two); }), {"time_step_limit of two values"});
  two["time_step_limit"] = 3;
  EXPECT_NE(message_of([&] { read(two); }), "no error");
  Object wrong = config_of("mamba2");
  wrong["n_groups"] = 3;
  expect_has(message_of([&] { read(wrong); }), {"48 channels", "8 of 6 in 3"});
  Object mixed = config_of("jamba");
  mixed["attn_layer_offset"] = 2;
  expect_has(message_of([&] { read(mixed); }), {"attn_layer_offset from 0 to below", "2 in config.json"});
}

// Each refusal names the key.
TEST(MambaConfig, OfFamiliesThatAttendToo) {
  const auto read = [](Object config) { return family_of(parsed_config(config)).read_config(parsed_config(config)); };
  const auto refused = [&](const char* family, const char* key, const Object& value) {
    Object config = config_of(family);
    config[key] = value;
    return message_of([&] { read(config); });
  };
  for (const char* family : {"bamba", "granitemoehybrid", "falcon_h1"}) {
    expect_has(refused(family, "hidden_act", "gelu"), {"hidden_act other than silu"});
    expect_has(refused(family, "mamba_n_groups", 3), {"48 channels", "mamba_n_groups", "8 of 6 in 3"});
    expect_has(refused(family, "mamba_d_head", 5), {"mamba_d_head", "8 of 5"});
  }
  expect_has(refused("bamba", "attn_layer_indices", {0, 2}),
             {"attn_layer_indices from 0 to below", "2 in config.json"});
  expect_has(refused("bamba", "partial_rotary_factor", 0.25), {"partial_rotary_factor"});
  expect_has(refused("granitemoehybrid", "layer_types", {"mamba"}), {"2 layer_types", "1 in"});
  expect_has(refused("granitemoehybrid", "layer_types", {"mamba", "conv"}), {"layer_types of", "\"conv\""});
  expect_has(refused("falcon_h1", "mlp_multipliers", {1, 2, 3}), {"2 finite values in mlp_multipliers", "1, 2, 3"});
  expect_has(refused("falcon_h1", "ssm_multipliers", {1}), {"5 finite values in ssm_multipliers"});
  expect_has(refused("nemotron_h", "sliding_window", 8), {"sliding_window"});
  expect_has(refused("nemotron_h", "mamba_hidden_act", "gelu"), {"mamba_hidden_act other than silu"});
  expect_has(refused("nemotron_h", "layers_block_type", Object::array()), {"a layer at least in layers_block_type"});
  expect_has(refused("nemotron_h", "layers_block_type", {"conv"}), {"layers_block_type of", "\"conv\""});

  // A pattern of letters, under which older files have the types, counts where there are no types.
  Object lettered = config_of("nemotron_h");
  lettered["hybrid_override_pattern"] = "M*X";
  EXPECT_EQ(read(lettered).layer_types.size(), 4);
  lettered.erase("layers_block_type");
  expect_has(message_of([&] { read(lettered); }), {"hybrid_override_pattern", "'X'"});
  lettered["hybrid_override_pattern"] = "M*-";
  lettered["mamba_n_groups"] = 4;  // the older name of n_groups counts
  const ModelConfig three = read(lettered);
  EXPECT_EQ(three.layer_types, (std::vector<std::string>{"linear_attention", "full_attention", "mlp"}));
  EXPECT_EQ(three.num_hidden_layers, 3);
  EXPECT_EQ(three.mamba.groups, 4);

  // Without recurrence nothing of its keys is read, and the MLP may have another activation.
  Object dense = config_of("granitemoehybrid");
  dense["layer_types"] = {"full_attention", "full_attention"};
  dense["num_local_experts"] = 0;
  dense["hidden_act"] = "gelu";
  dense["mamba_n_heads"] = 7;
  EXPECT_EQ(read(dense).mamba.heads, 0);
}

TEST(MambaConfig, OlderFilesNameTheEmbeddingOtherwise) {
  const TempFolder folder;
  tiny_mamba("mamba")->save_pretrained(folder.path());
  const auto model = AutoModelForCausalLM::from_pretrained(folder.path());
  const auto file = open_checkpoint(folder.path());
  TensorMap tensors;
  for (const std::string& name : file->names()) {
    const bool is_embedding = name == "backbone.embeddings.weight";
    tensors.emplace_back(is_embedding ? "backbone.embedding.weight" : name, file->tensor(name, at::kFloat).clone());
  }
  save_pretrained_weights(folder.path(), tensors);
  const auto again = AutoModelForCausalLM::from_pretrained(folder.path());
  const at::NoGradGuard no_grad;
  const Tensor ids = at::randint(0, 40, {1, 4}, at::kLong);
  EXPECT_TRUE(at::equal((*again)({.input_ids = ids}).logits, (*model)({.input_ids = ids}).logits));
}

}  // namespace
}  // namespace hotswap
