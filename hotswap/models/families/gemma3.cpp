// Gemma 3, text alone: Gemma 2's block with a norm on every query and key head instead of caps, five sliding layers
// before each full one, and a rotary embedding for each of the two. EmbeddingGemma's tokens see those after them too.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/gemma.h"
#include "hotswap/models/families/gemma2.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::gemma3 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c =
      read_gemma_config(json, {.activation_key = "hidden_activation", .rope = {.theta = 1e6, .sliding_theta = 1e4}});
  read_gemma2_scores(c, json, {});
  refuse_if(c.attn_logit_softcapping != 0, json, "attn_logit_softcapping");  // transformers drops it
  read_sliding_pattern(c, json, positive(json, "sliding_window_pattern", 6));
  c.causal = !sees_both_sides(json);
  if (!c.causal && c.sliding_window > 0) c.sliding_window = c.sliding_window / 2 + 1;  // half of it to each side
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = c.norm();
  return std::make_unique<Gemma2Block>(c, attention);
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  add_gemma2_keys(file, prefix, /*root_layers=*/62, config);
  if (!file.has(prefix + "rope.freq_base")) config["rope_theta"] = 1e6;
  if (file.has(prefix + "rope.freq_base_swa"))
    config["rope_local_base_freq"] = file.at<double>(prefix + "rope.freq_base_swa");
}

}  // namespace

const RegisteredFamily kGemma3({.model_type = "gemma3_text",
                                .class_name = "Gemma3ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .gguf_architecture = "gemma3",
                                .gguf_rules = gemma2_gguf_rules,
                                .gguf_reads = {"attention.sliding_window", "final_logit_softcapping",
                                               "rope.freq_base_swa"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::gemma3
