// Random tiny models against transformers: see parity_oracle.py.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gtest/gtest.h>

#include <set>

#include "hotswap/base/file.h"
#include "hotswap/base/test_support.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::TempFolder;

using Object = nlohmann::ordered_json;

struct Configuration {
  const char* family;
  const char* name;
  const char* differs;  // from kBase, as JSON
  int64_t time;
};

void PrintTo(const Configuration& c, std::ostream* out) { *out << c.family << " " << c.differs; }

std::string parity_name(const Configuration& c) { return cat(c.family, "_", c.name); }

constexpr const char* kBase = R"({"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5})";

constexpr const char* kMixtral = R"({"num_local_experts": 6, "num_experts_per_tok": 2})";
constexpr const char* kGptOss =
    R"({"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}})";
// Experts' widths are multiples of 8: in bfloat16 transformers' grouped product wants rows of 16 bytes.
constexpr const char* kQwenMoe = R"({"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 28})";

constexpr const char* kMamba = R"({"state_size": 6, "time_step_rank": 5})";

// Every switch of a family's config, sizes that divide and that do not.
constexpr Configuration kConfigurations[] = {
    {"llama", "plain", "{}", 17},
    {"llama", "mha_tied", R"({"num_key_value_heads": 6, "tie_word_embeddings": true})", 9},
    {"llama", "mqa_biases", R"({"num_key_value_heads": 1, "attention_bias": true, "mlp_bias": true})", 20},
    {"llama", "head_dim", R"({"head_dim": 22, "num_attention_heads": 4, "hidden_size": 36})", 13},
    {"llama", "odd_sizes", R"({"vocab_size": 101, "hidden_size": 30, "intermediate_size": 37, "num_attention_heads": 3,
        "num_key_value_heads": 3, "num_hidden_layers": 1})",
     7},
    {"llama", "linear", R"({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}})", 19},
    {"llama", "dynamic_short", R"({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}})",
     12},
    {"llama", "dynamic_long", R"({"max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}})",
     24},
    {"llama", "llama3", R"({"tie_word_embeddings": true, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5,
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}})",
     40},
    {"llama", "yarn", R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 32}})",
     33},
    {"llama", "yarn_mscale", R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0,
        "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 16.0,
        "beta_slow": 2.0, "truncate": false}})",
     21},
    {"llama", "longrope_short", R"({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 64, "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0]}})",
     18},
    {"llama", "longrope_long", R"({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4,
        "original_max_position_embeddings": 16, "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0]}})",
     30},
    {"llama", "gelu", R"({"hidden_act": "gelu_pytorch_tanh"})", 11},
    {"llama", "quick_gelu", R"({"hidden_act": "quick_gelu", "rms_norm_eps": 1e-3})", 11},
    {"mistral", "plain", R"({"sliding_window": null})", 17},
    {"mistral", "window", R"({"sliding_window": 5, "tie_word_embeddings": true})", 23},
    {"mistral", "narrow_window_mqa", R"({"sliding_window": 2, "num_key_value_heads": 1, "head_dim": 10})", 9},
    {"mistral", "window_longer_than_all", R"({"num_key_value_heads": 6})", 12},
    {"qwen2", "plain", "{}", 17},
    {"qwen2", "tied_mqa", R"({"num_key_value_heads": 1, "tie_word_embeddings": true})", 14},
    {"qwen2", "upper_layers_slide", R"({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1})", 19},
    {"qwen2", "every_other_layer_slides", R"({"use_sliding_window": true, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})",
     21},
    {"qwen2", "window_not_in_use", R"({"use_sliding_window": false, "sliding_window": 3})", 11},
    {"qwen3", "plain", R"({"head_dim": 16})", 17},
    {"qwen3", "tied_mqa", R"({"head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": true})", 14},
    {"qwen3", "bias_yarn", R"({"head_dim": 12, "attention_bias": true, "rope_parameters": {"rope_type": "yarn",
        "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32}})",
     26},
    {"qwen3", "default_head_dim", R"({"hidden_size": 20, "num_attention_heads": 2})", 6},
    {"qwen3", "linear_gelu", R"({"head_dim": 10, "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}})",
     15},
    {"qwen3", "window", R"({"head_dim": 8, "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2})",
     18},
    {"mixtral", "plain", kMixtral, 17},
    {"mixtral", "window_mqa_two_of_five", R"({"sliding_window": 6, "num_key_value_heads": 1, "num_local_experts": 5,
        "num_experts_per_tok": 2, "tie_word_embeddings": true})",
     14},
    {"mixtral", "every_expert",
     R"({"num_local_experts": 3, "num_experts_per_tok": 3, "head_dim": 10, "hidden_act": "gelu"})", 7},
    {"olmoe", "plain", R"({"num_experts": 6, "num_experts_per_tok": 2})", 17},
    {"olmoe", "biases_sum_to_one", R"({"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": true,
        "num_key_value_heads": 3, "attention_bias": true, "tie_word_embeddings": true})",
     12},
    {"gpt_oss", "plain", kGptOss, 17},
    {"gpt_oss", "window_no_bias_yarn", R"({"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 4,
        "head_dim": 10, "attention_bias": false, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 16}})",
     22},
    {"qwen2_moe", "plain", kQwenMoe, 17},
    {"qwen2_moe", "dense_layers_window_no_bias",
     R"({"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 13, "norm_topk_prob": true, "decoder_sparse_step": 2, "qkv_bias": false,
        "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 2})",
     19},
    {"qwen3_moe", "plain", kQwenMoe, 17},
    {"qwen3_moe", "one_mixture_window_tied",
     R"({"num_experts": 6, "num_experts_per_tok": 4, "moe_intermediate_size": 8,
        "norm_topk_prob": true, "mlp_only_layers": [0, 2], "head_dim": 16, "use_sliding_window": true, "sliding_window": 7,
        "tie_word_embeddings": true, "attention_bias": true})",
     18},
    {"gemma", "plain", R"({"head_dim": 16})", 17},
    {"gemma", "mqa_biases", R"({"head_dim": 10, "num_key_value_heads": 1, "attention_bias": true})", 12},
    {"gemma", "untied_gelu", R"({"head_dim": 8, "tie_word_embeddings": false, "hidden_act": "gelu"})", 9},
    {"gemma2", "plain", R"({"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0})",
     17},
    {"gemma2", "default_caps_mqa", R"({"head_dim": 8, "num_key_value_heads": 1, "attention_bias": true})", 13},
    {"gemma2", "no_caps", R"({"head_dim": 10, "attn_logit_softcapping": null, "final_logit_softcapping": null,
        "sliding_window": 4, "layer_types": ["full_attention", "full_attention", "sliding_attention"]})",
     15},
    {"gemma3_text", "plain", R"({"head_dim": 16, "sliding_window": 5, "num_hidden_layers": 7,
        "query_pre_attn_scalar": 20})",
     19},
    {"gemma3_text", "pattern_untied", R"({"head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2,
        "tie_word_embeddings": false, "attention_bias": true, "num_key_value_heads": 6})",
     14},
    {"gemma3_text", "stretched", R"({"head_dim": 12, "sliding_window": 6, "final_logit_softcapping": 3.0,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"], "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}})",
     21},
    {"phi3", "plain", "{}", 17},
    {"phi3", "window_tied", R"({"sliding_window": 5, "tie_word_embeddings": true, "num_key_value_heads": 6})", 16},
    {"phi3", "partial", R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
        "partial_rotary_factor": 0.75}})",
     11},
    {"phi3", "longrope_short", R"({"original_max_position_embeddings": 64, "rope_parameters": {"rope_type": "longrope",
        "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}})",
     18},
    {"phi3", "longrope_long_partial", R"({"original_max_position_embeddings": 16, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.1],
        "long_factor": [2.0, 3.0]}})",
     30},
    {"smollm3", "plain", R"({"num_hidden_layers": 5})", 17},
    {"smollm3", "some_slide", R"({"use_sliding_window": true, "sliding_window": 4, "no_rope_layers": [1, 0, 0],
        "mlp_bias": true, "tie_word_embeddings": false})",
     15},
    // All layers rotate: a bias of keys that do not moves all scores of a query alike, and its gradient is rounding.
    {"smollm3", "biases", R"({"no_rope_layer_interval": 5, "attention_bias": true})", 12},
    {"olmo2", "plain", "{}", 17},
    {"olmo2", "mqa_biases", R"({"num_key_value_heads": 1, "attention_bias": true, "tie_word_embeddings": true})", 12},
    {"olmo3", "plain", R"({"sliding_window": 5, "num_hidden_layers": 5, "head_dim": 8})", 17},
    {"olmo3", "yarn_on_full_layers", R"({"sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0,
                "original_max_position_embeddings": 32},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}})",
     19},
    {"granite", "plain", "{}", 14},
    {"granite", "multipliers", R"({"embedding_multiplier": 12.0, "attention_multiplier": 0.3,
        "residual_multiplier": 0.22, "logits_scaling": 6.0, "attention_bias": true, "tie_word_embeddings": true})",
     17},
    {"llama4_text", "plain",
     R"({"head_dim": 8, "num_local_experts": 5, "intermediate_size_mlp": 56, "num_hidden_layers": 4,
        "attention_chunk_size": 6, "floor_scale": 4, "attn_scale": 0.5})",
     17},
    {"llama4_text", "some_dense_two_experts", R"({"head_dim": 12, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size_mlp": 64, "moe_layers": [1], "use_qk_norm": false,
        "no_rope_layers": [1, 0, 1], "attn_temperature_tuning": false, "attention_chunk_size": 5,
        "tie_word_embeddings": true})",
     15},
    {"deepseek_v2", "plain", R"({"num_key_value_heads": 6, "first_k_dense_replace": 3, "q_lora_rank": 20,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10})",
     17},
    {"deepseek_v2", "direct_queries_yarn", R"({"num_key_value_heads": 6, "first_k_dense_replace": 3,
        "q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
        "attention_bias": true, "mlp_bias": true, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4,
        "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 0.707, "mscale_all_dim": 0.707}})",
     21},
    {"deepseek_v3", "plain", R"({"num_key_value_heads": 6, "first_k_dense_replace": 4, "q_lora_rank": 20,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10})",
     17},
    {"deepseek_v3", "halves_yarn", R"({"num_key_value_heads": 6, "first_k_dense_replace": 3, "rope_interleave": false,
        "q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "attention_bias": true, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0,
        "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.6}})",
     20},
    {"deepseek_v3", "experts", R"({"num_key_value_heads": 6, "first_k_dense_replace": 1, "q_lora_rank": 20,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2, "n_shared_experts": 2})",
     17},
    {"mamba", "plain", kMamba, 17},
    {"mamba", "untied_biases_narrow", R"({"hidden_size": 30, "expand": 3, "state_size": 1, "conv_kernel": 3,
        "use_bias": true, "tie_word_embeddings": false})",
     9},
    {"mamba", "residual_in_its_dtype", R"({"state_size": 17, "use_conv_bias": false, "residual_in_fp32": false,
        "conv_kernel": 2})",
     12},
    {"falcon_mamba", "plain", kMamba, 17},
    {"falcon_mamba", "untied_biases",
     R"({"hidden_size": 20, "state_size": 5, "use_bias": true, "tie_word_embeddings": false, "mixer_rms_eps": 1e-2})",
     8},
    {"mamba2", "plain", R"({"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 6, "chunk_size": 5})", 17},
    {"mamba2", "one_group_tied_limits", R"({"num_heads": 6, "head_dim": 16, "n_groups": 1, "state_size": 10,
        "time_step_limit": [0.1, 0.9], "use_bias": true, "use_conv_bias": false, "tie_word_embeddings": true})",
     11},
    {"jamba", "plain", R"({"num_hidden_layers": 4, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 6,
        "num_experts_per_tok": 2, "mamba_d_state": 6, "mamba_dt_rank": 5})",
     17},
    {"jamba", "biases_tied", R"({"attn_layer_period": 2, "attn_layer_offset": 0, "expert_layer_period": 3,
        "expert_layer_offset": 0, "num_experts": 5, "num_experts_per_tok": 3, "mamba_d_state": 9, "mamba_d_conv": 3,
        "mamba_expand": 1, "mamba_proj_bias": true, "mamba_conv_bias": false, "tie_word_embeddings": true})",
     10},
};

// The families whose tests this run of the program has.
std::set<std::string> selected_families() {
  std::set<std::string> families;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    if (std::string(suite.name()) != "Families/Parity") continue;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!test.should_run()) continue;
      const std::string name = test.name();  // "StockInBfloat16/llama_plain"
      for (const Configuration& c : kConfigurations) {
        if (name.substr(name.find('/') + 1) == parity_name(c)) families.insert(c.family);
      }
    }
  }
  return families;
}

// A folder for each family, all made by one process when the first test asks: importing transformers takes seconds.
struct Oracle {
  TempFolder folder;
  uint64_t seed = test_support::test_seed();
  test_support::PythonRun run;
  Oracle() {
    Object cases;
    const std::set<std::string> families = selected_families();
    for (const Configuration& c : kConfigurations) {
      if (families.count(c.family) == 0) continue;
      Object config = Object::parse(kBase);
      config["model_type"] = c.family;
      config.update(Object::parse(c.differs));
      cases[c.family][c.name] = {{"config", config}, {"time", c.time}};
    }
    test_support::put_file(folder / "cases.json", cases.dump());
    run = test_support::run_script(test_support::source_folder() / "hotswap/models/parity_oracle.py",
                                   cat(folder.path().string(), " ", seed), ".", /*seconds=*/800);
  }
  // What went wrong with this family; empty: nothing.
  std::string error(const std::string& family) const {
    if (run.status != 0) return cat("exit status ", run.status, ": ", run.output);
    const std::filesystem::path file = folder / family / "error.txt";
    return std::filesystem::exists(file) ? read_file(file) : "";
  }
};
const Oracle& oracle() {
  static const Oracle made;
  return made;
}

double relative_max(const Tensor& got, const Tensor& want) {
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

double relative_l2(const Tensor& got, const Tensor& want) {
  return (at::linalg_vector_norm(got - want) / at::linalg_vector_norm(want).clamp_min(1e-30)).item<double>();
}

Tensor greedy(CausalLM& model, Tensor ids, int64_t length) {
  const at::NoGradGuard no_grad;
  const auto cache = model.make_cache();
  Tensor next = ids;
  while (ids.size(1) < length) {
    const Tensor logits =
        model({.input_ids = next, .cache = cache.get(), .logits_to_keep = 1}).logits;  // [1, 1, vocab]
    next = at::argmax(logits, -1);
    ids = at::cat({ids, next}, 1);
  }
  return ids;
}

class Case {
 public:
  explicit Case(const Configuration& c)
      : folder_(oracle().folder / c.family / c.name), expected_(folder_ / "expected.safetensors") {}
  std::shared_ptr<CausalLM> load(const PretrainedOptions& options) const {
    return AutoModelForCausalLM::from_pretrained(folder_, options);
  }
  Tensor want(const std::string& name) const { return expected_.tensor(name); }
  const SafetensorsFile& expected() const { return expected_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  SafetensorsFile expected_;
};

// One rounding of the weights alone moves gradients of a recurrence by up to 8e-6 in transformers itself, for it decays
// by an exponential of an exponential of a weight; here both sides round all the way.
double gradient_tolerance(const CausalLM& model) { return model.config().mamba.hidden_size > 0 ? 1e-4 : 1e-5; }

// Float32 tolerances: 1e-4 of the largest logit, 1e-5 of a gradient's norm, the loss to 6 digits.
void expect_values(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  const Tensor ids = c.want("input_ids"), labels = c.want("labels");
  const auto out = (*model)({.input_ids = ids, .labels = labels, .need_logits = true});
  EXPECT_LE(relative_max(out.logits, c.want("logits")), 1e-4);
  const double loss = c.want("loss").item<double>();
  EXPECT_NEAR(out.loss.item<double>(), loss, 2e-6 * loss);

  // Training without logits: the loss may fuse with the head.
  model->train();
  const auto trained = (*model)({.input_ids = ids, .labels = labels});
  EXPECT_NEAR(trained.loss.item<double>(), loss, 2e-6 * loss);
  trained.loss.backward();
  // Under the model's names, or where transformers' module has another form, under the checkpoint's.
  TensorMap gradients, others;
  model->each_parameter([&](const std::string& name, Tensor& tensor) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    (c.expected().has("grad." + name) ? gradients : others).emplace_back(name, tensor.grad());
  });
  const TensorMap converted = in_checkpoint_terms(others, model->family().tensor_rules(model->config()));
  gradients.insert(gradients.end(), converted.begin(), converted.end());
  for (const auto& [name, gradient] : gradients) {
    EXPECT_LE(relative_l2(gradient, c.want("grad." + name)), gradient_tolerance(*model)) << name;
  }
  size_t wanted = 0;
  for (const auto& name : c.expected().names()) wanted += name.rfind("grad.", 0) == 0 ? 1 : 0;
  EXPECT_EQ(gradients.size(), wanted);
  const auto items = (*model)({.input_ids = ids, .labels = labels, .num_items_in_batch = 7});
  EXPECT_NEAR(items.loss.item<double>(), c.want("loss_items").item<double>(), 1e-4);
  model->eval();

  const at::NoGradGuard no_grad;
  const Tensor mask = c.want("mask");
  const Tensor masked =
      (*model)({.input_ids = ids, .attention_mask = mask, .position_ids = c.want("position_ids")}).logits;
  const Tensor visible = mask.to(at::kBool).unsqueeze(-1);  // padded positions see nothing that means anything
  EXPECT_LE(relative_max(masked * visible, c.want("masked_logits") * visible), 1e-4);
}

// Optimizer states are exchanged with torch by the order of parameters. These families have another one, or joined
// projections: order_of() in training/resume.cpp has the same list.
void expect_order(const Case& c, const PretrainedOptions& options) {
  const std::set<std::string> others = {"deepseek_v3", "falcon_mamba", "jamba", "llama4_text",
                                        "mamba",       "mamba2",       "phi3",  "qwen3_moe"};
  const std::string family = c.folder().parent_path().filename();
  if (others.contains(family)) return;
  std::vector<std::string> names;
  c.load(options)->each_parameter([&](const std::string& name, Tensor&) { names.push_back(name); });
  EXPECT_EQ(names, Json::read(c.folder() / "parameters.json").as<std::vector<std::string>>());
}

// Of mixtures of experts: each router's logits, and a loss that asks for even use of the experts. Float32 sums in
// another order: as above.
void expect_auxiliary_loss(const Case& c, const PretrainedOptions& options) {
  if (!c.expected().has("aux_loss")) return;
  const auto model = c.load(options);
  const Tensor ids = c.want("input_ids");
  const auto out = (*model)({.input_ids = ids, .labels = c.want("labels"), .output_router_logits = true});
  const auto expect_number = [&](const Tensor& got, const char* name) {
    const double want = c.want(name).item<double>();
    EXPECT_NEAR(got.item<double>(), want, 2e-6 * want) << name;
  };
  expect_number(out.aux_loss, "aux_loss");
  expect_number(out.loss, "loss_with_aux");
  for (size_t i = 0; i < out.router_logits.size(); ++i) {
    EXPECT_LE(relative_max(out.router_logits[i], c.want(cat("router_logits.", i))), 1e-4);
  }
  EXPECT_FALSE(c.expected().has(cat("router_logits.", out.router_logits.size())));
  out.loss.backward();
  model->each_parameter([&](const std::string& name, Tensor& tensor) {
    const std::string wanted = "aux_grad." + name;
    if (!c.expected().has(wanted)) return;
    EXPECT_LE(relative_l2(tensor.grad(), c.want(wanted)), 1e-5) << name;
  });
  const at::NoGradGuard no_grad;
  const auto masked = (*model)({.input_ids = ids,
                                .attention_mask = c.want("mask"),
                                .position_ids = c.want("position_ids"),
                                .output_router_logits = true});
  expect_number(masked.aux_loss, "masked_aux_loss");
  EXPECT_FALSE((*model)({.input_ids = ids}).aux_loss.defined());
}

void expect_greedy(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  const Tensor want = c.want("greedy");
  EXPECT_TRUE(at::equal(greedy(*model, c.want("prompt"), want.size(1)), want));
}

class Parity : public testing::TestWithParam<Configuration> {
 protected:
  void SetUp() override {
    if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
    const std::string error = oracle().error(GetParam().family);
    ASSERT_TRUE(error.empty()) << error;
    trace_ = std::make_unique<testing::ScopedTrace>(__FILE__, __LINE__, cat("oracle seed ", oracle().seed));
    case_ = std::make_unique<Case>(GetParam());
  }
  void expect_parity(const PretrainedOptions& options) {
    expect_values(*case_, options);
    expect_auxiliary_loss(*case_, options);
    expect_greedy(*case_, options);
  }
  std::unique_ptr<testing::ScopedTrace> trace_;
  std::unique_ptr<Case> case_;
};

TEST_P(Parity, Stock) { expect_parity({}); }
TEST_P(Parity, StockEager) { expect_parity({.attn_implementation = "eager"}); }
TEST_P(Parity, Kernelized) { expect_parity({.use_kernels = true}); }

TEST_P(Parity, ParametersHaveTransformersOrder) { expect_order(*case_, {}); }

// Every operation rounds where transformers' does; what is left is the order of summation inside one product. Some of
// its models give the same logits as float32.
TEST_P(Parity, StockInBfloat16) {
  const at::NoGradGuard no_grad;
  const auto model = case_->load({.dtype = "bfloat16"});
  const Tensor logits = (*model)({.input_ids = case_->want("input_ids")}).logits;
  ASSERT_EQ(logits.scalar_type(), at::kBFloat16);
  const Tensor got = logits.to(at::kFloat), want = case_->want("bf16_logits").to(at::kFloat);
  EXPECT_TRUE(at::equal(got, want)) << relative_max(got, want);
}

TEST_P(Parity, SavedModelIsTheSameModel) {
  const auto model = case_->load({});
  const TempFolder folder;
  model->save_pretrained(folder.path());
  const auto again = AutoModelForCausalLM::from_pretrained(folder.path());
  const auto ids = case_->want("input_ids");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal((*model)({.input_ids = ids}).logits, (*again)({.input_ids = ids}).logits));
  // and has the names that transformers gave it
  EXPECT_EQ(open_checkpoint(folder.path())->names(), open_checkpoint(case_->folder())->names());
}

INSTANTIATE_TEST_SUITE_P(Families, Parity, testing::ValuesIn(kConfigurations),
                         [](const auto& info) { return parity_name(info.param); });

TEST(Families, EachHasConfigurations) {
  for (const Family* family : families()) {
    EXPECT_TRUE(std::any_of(std::begin(kConfigurations), std::end(kConfigurations), [&](const Configuration& c) {
      return std::string(c.family) == family->model_type;
    })) << family->model_type;
  }
}

}  // namespace
}  // namespace hotswap
