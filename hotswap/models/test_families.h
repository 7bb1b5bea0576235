// For tests over every family: a tiny model of each.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "hotswap/models/auto.h"

namespace hotswap::test_support {

// Families in which a part of each head turns.
inline bool turns_a_part(const std::string& family) {
  const std::set<std::string> all = {"gpt_neox",   "phi",          "stablelm",        "glm", "glm4", "glm4_moe",
                                     "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"};
  return all.contains(family);
}

// Where a family can slide, some of its layers do.
inline std::shared_ptr<CausalLM> tiny(const std::string& family) {
  const bool latent = family.starts_with("deepseek");
  const bool asks_to_slide = family.starts_with("qwen") || family == "smollm3";
  nlohmann::ordered_json config = {{"model_type", family},
                                   {"vocab_size", 40},
                                   {"hidden_size", 24},
                                   {"num_hidden_layers", 3},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", latent ? 4 : 2},
                                   {"intermediate_size", 32},
                                   {"rms_norm_eps", 1e-5},
                                   {"initializer_range", 0.4},
                                   {"sliding_window", 5},
                                   {"max_window_layers", 1},
                                   {"sliding_window_pattern", 2},
                                   {"no_rope_layer_interval", 2},
                                   {"head_dim", family == "bamba" ? 8 : 6},  // of which half turns
                                   {"max_position_embeddings", 64},
                                   {"num_experts", 5},  // of mixtures
                                   {"intermediate_size_mlp", 32},
                                   {"attention_chunk_size", 5},
                                   {"n_group", 1},
                                   {"topk_group", 1},
                                   {"num_local_experts", 5},
                                   {"num_experts_per_tok", 2},
                                   {"router_jitter_noise", 0},  // PhiMoE draws experts by it
                                   {"moe_intermediate_size", 12},
                                   {"shared_expert_intermediate_size", 20},
                                   {"use_sliding_window", asks_to_slide},
                                   {"q_lora_rank", 12},
                                   {"kv_lora_rank", 10},
                                   {"qk_nope_head_dim", 6},
                                   {"qk_rope_head_dim", 4},
                                   {"v_head_dim", 8},
                                   {"state_size", 7},  // of recurrences
                                   {"num_heads", 8},
                                   {"n_groups", 2},
                                   {"chunk_size", 4},
                                   {"mamba_n_heads", 8},  // of those beside attention
                                   {"mamba_d_ssm", 48},
                                   {"mamba_d_state", 7},
                                   {"mamba_n_groups", 2},
                                   {"mamba_chunk_size", 4},
                                   {"mamba_rms_norm", true},
                                   {"attn_layer_indices", {1}},
                                   {"shared_intermediate_size", 20},
                                   {"hybrid_override_pattern", "M*E-"},
                                   {"mamba_num_heads", 8},
                                   {"mamba_head_dim", 6},
                                   {"ssm_state_size", 7},
                                   {"moe_shared_expert_intermediate_size", 20},
                                   {"attn_layer_period", 2},
                                   {"attn_layer_offset", 1},
                                   {"full_attention_interval", 2},  // of the gated delta rule
                                   {"linear_num_key_heads", 2},
                                   {"linear_num_value_heads", 4},
                                   {"linear_key_head_dim", 6},
                                   {"linear_value_head_dim", 5},
                                   {"full_attn_idxs", {1}},  // of LFM2
                                   {"block_multiple_of", 8},
                                   {"first_k_dense_replace", 1},
                                   {"resid_pdrop", 0},  // that train in tests
                                   {"embd_pdrop", 0},
                                   {"attn_pdrop", 0}};
  if (turns_a_part(family)) config["partial_rotary_factor"] = 0.7;
  if (family == "granitemoehybrid") config["layer_types"] = {"mamba", "attention", "mamba"};
  if (family == "nemotron_h") {
    config["sliding_window"] = nullptr;  // it has none
    config["time_step_min"] = 1e-7;  // by which a prompt's steps of time are clamped, and those of one token are not
  }
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(5);
  model->eval();
  return model;
}

}  // namespace hotswap::test_support
