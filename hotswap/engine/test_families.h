// For tests over every family: a tiny model of each, and when two greedy texts are the same answer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hotswap/models/auto.h"

namespace hotswap::test_support {

using Ids = std::vector<int64_t>;

inline constexpr int64_t kVocabulary = 50, kNewTokens = 20;

// Families in which a part of each head turns.
inline bool turns_a_part(const std::string& family) {
  const std::set<std::string> all = {"gpt_neox",   "phi",          "stablelm",        "glm", "glm4", "glm4_moe",
                                     "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"};
  return all.contains(family);
}

// Where a family can slide, some of its layers do. head_dim: of attention.
inline std::shared_ptr<CausalLM> tiny(const std::string& family, at::Device device, at::ScalarType dtype,
                                      int64_t head_dim) {
  const bool latent = family.starts_with("deepseek");
  const bool asks_to_slide = family.starts_with("qwen") || family == "smollm3";
  nlohmann::ordered_json config = {{"model_type", family},
                                   {"vocab_size", kVocabulary},
                                   {"hidden_size", 32},
                                   {"num_hidden_layers", 3},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", latent ? 4 : 2},
                                   {"intermediate_size", 64},
                                   {"rms_norm_eps", 1e-5},
                                   {"initializer_range", 0.4},
                                   {"sliding_window", 9},
                                   {"max_window_layers", 1},
                                   {"sliding_window_pattern", 2},
                                   {"no_rope_layer_interval", 2},
                                   {"head_dim", family == "mamba2" ? 8 : head_dim},
                                   {"max_position_embeddings", 128},
                                   {"num_experts", 4},  // of mixtures
                                   {"intermediate_size_mlp", 64},
                                   {"attention_chunk_size", 9},
                                   {"n_group", 1},
                                   {"topk_group", 1},
                                   {"num_local_experts", 4},
                                   {"num_experts_per_tok", 2},
                                   {"moe_intermediate_size", 16},
                                   {"shared_expert_intermediate_size", 32},
                                   {"use_sliding_window", asks_to_slide},
                                   {"q_lora_rank", 16},
                                   {"kv_lora_rank", 16},
                                   {"qk_nope_head_dim", 8},
                                   {"qk_rope_head_dim", 8},
                                   {"v_head_dim", 16},
                                   {"state_size", 16},  // of recurrences
                                   {"num_heads", 8},
                                   {"n_groups", 2},
                                   {"chunk_size", 8},
                                   {"mamba_n_heads", 8},  // of those beside attention
                                   {"mamba_d_ssm", 64},
                                   {"mamba_d_state", 16},
                                   {"mamba_n_groups", 2},
                                   {"mamba_chunk_size", 8},
                                   {"mamba_rms_norm", true},
                                   {"attn_layer_indices", {1}},
                                   {"shared_intermediate_size", 32},
                                   {"hybrid_override_pattern", "M*E-"},
                                   {"mamba_num_heads", 8},
                                   {"mamba_head_dim", 8},
                                   {"ssm_state_size", 16},
                                   {"moe_shared_expert_intermediate_size", 32},
                                   {"attn_layer_period", 2},
                                   {"attn_layer_offset", 1},
                                   {"full_attention_interval", 2},  // of the gated delta rule
                                   {"linear_num_key_heads", 2},
                                   {"linear_num_value_heads", 4},
                                   {"linear_key_head_dim", 8},
                                   {"linear_value_head_dim", 16},
                                   {"full_attn_idxs", {1}},  // of LFM2
                                   {"block_multiple_of", 8},
                                   {"first_k_dense_replace", 1},
                                   {"resid_pdrop", 0},  // that train in tests
                                   {"embd_pdrop", 0},
                                   {"attn_pdrop", 0}};
  if (turns_a_part(family)) config["partial_rotary_factor"] = 0.5;
  if (family == "granitemoehybrid") config["layer_types"] = {"mamba", "attention", "mamba"};
  if (family == "nemotron_h") {
    config["sliding_window"] = nullptr;  // it has none
    config["time_step_min"] = 1e-7;  // by which a prompt's steps of time are clamped, and those of one token are not
  }
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3, dtype, device);
  model->eval();
  return model;
}

// Greedy steps.
struct Steps {
  std::vector<Ids> ids;        // a row each
  std::vector<Tensor> logits;  // a step each: [batch, vocab] float32 on the CPU
};

// Two texts may part only where the reference's best two logits are closer than they were rounded, and are then not the
// same question any more. Returns how many tokens were the same question and the same answer.
inline int64_t expect_same(const std::vector<Ids>& got, const Steps& want, double rounding, const std::string& what) {
  int64_t same = 0;
  for (size_t row = 0; row < want.ids.size(); ++row) {
    EXPECT_EQ(got[row].size(), want.ids[row].size()) << what;
    for (size_t step = 0; step < want.ids[row].size(); ++step, ++same) {
      if (got[row][step] == want.ids[row][step]) continue;
      const Tensor logits = want.logits[step][static_cast<int64_t>(row)];
      const Tensor best = std::get<0>(logits.topk(2));
      const double gap = best[0].item<double>() - best[1].item<double>();
      EXPECT_LE(gap, rounding * logits.abs().max().item<double>()) << what << ", row " << row << ", token " << step;
      break;
    }
  }
  return same;
}

}  // namespace hotswap::test_support
