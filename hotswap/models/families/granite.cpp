// Granite: Llama's block with four multipliers: of the embedding, the scores, what a block adds, and the logits.
#include "hotswap/models/families/granite.h"

#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/family.h"

namespace hotswap {

void read_granite_multipliers(ModelConfig& c, const Json& json) {
  c.embedding_multiplier = positive_number(json, "embedding_multiplier", 1);
  const bool is_null = json.raw().contains("attention_multiplier") && !json.has("attention_multiplier");
  if (!is_null) c.attention_scale = positive_number(json, "attention_multiplier", 1);
  c.residual_multiplier = positive_number(json, "residual_multiplier", 1);
  c.logits_scaling = positive_number(json, "logits_scaling", 1);
}

static constexpr std::pair<const char*, const char*> kGgufKeys[] = {{"embedding_scale", "embedding_multiplier"},
                                                                    {"attention.scale", "attention_multiplier"},
                                                                    {"residual_scale", "residual_multiplier"},
                                                                    {"logit_scale", "logits_scaling"}};

const std::vector<std::string>& gguf_granite_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> theirs;
    for (const auto& names : kGgufKeys) theirs.emplace_back(names.first);
    return theirs;
  }();
  return keys;
}

void gguf_extend_granite(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  for (const auto& [theirs, ours] : kGgufKeys) {
    if (file.has(prefix + theirs)) config[ours] = file.at<double>(prefix + theirs);
  }
}

}  // namespace hotswap

namespace hotswap::granite {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json);
  check_layer_types(c, json);
  read_granite_multipliers(c, json);
  return c;
}

// Converters state the parts of Granite 4 that a model without them lacks.
std::vector<std::string> gguf_keys() {
  std::vector<std::string> keys = gguf_granite_keys();
  keys.insert(keys.end(), gguf_mamba2_keys().begin(), gguf_mamba2_keys().end());
  keys.emplace_back("expert_shared_feed_forward_length");
  return keys;
}

}  // namespace

const RegisteredFamily kGranite({.model_type = "granite",
                                 .class_name = "GraniteForCausalLM",
                                 .read_config = read_config,
                                 .make_block = make_llama_block,
                                 .make_fused_step = make_fused_decoder_step,
                                 .gguf_architecture = "granite",
                                 .gguf_rules = gguf_interleaved_rules,
                                 .gguf_head_dim_is_rotary = true,
                                 .gguf_reads = gguf_keys(),
                                 .gguf_extend = gguf_extend_granite});

}  // namespace hotswap::granite
