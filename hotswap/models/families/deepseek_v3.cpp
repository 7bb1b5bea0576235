// DeepSeek-V3: V2, with another order of the numbers that turn together, and behind the first layers mixtures of
// experts, of which a token chooses groups first; a correction has a say in the choice alone.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/deepseek_mixture.h"
#include "hotswap/models/families/deepseek_v2.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::deepseek_v3 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_deepseek_config(json);
  c.rope_interleave = flag(json, "rope_interleave", true);
  // Of the rotary tables in transformers, which turns less of a head then; a wider one it refuses.
  if (json.get<int64_t>("head_dim", c.head_dim) < c.head_dim) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a head_dim of qk_rope_head_dim, ", c.head_dim, ", or none"),
                 .got = cat(json.at<int64_t>("head_dim"), " in ", json.where()),
                 .next = "remove head_dim from config.json"});
  }
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  read_deepseek_mixtures(c, json, {.first_dense = 3, .groups = 8, .top_groups = 4, .scale = 2.5});
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  LatentAttentionOptions attention = latent_attention_options(c, layer);
  attention.rotary_order = c.rope_interleave ? RotaryOrder::kFromInterleaved : RotaryOrder::kHalves;
  return mixture_block(c, std::make_unique<LatentAttention>(attention), deepseek_v3_mixture(c), layer);
}

TensorRules tensor_rules(const ModelConfig& c) {
  TensorRules rules = separate_experts(c);
  rules.push_back(layers_beyond(c));
  return rules;
}

}  // namespace

const RegisteredFamily kDeepseekV3({.model_type = "deepseek_v3",
                                    .class_name = "DeepseekV3ForCausalLM",
                                    .read_config = read_config,
                                    .make_block = make_block,
                                    .tensor_rules = tensor_rules,
                                    .own_parameter_order = true,
                                    .gguf_architecture = "deepseek2",
                                    .gguf_rules = gguf_deepseek_rules,
                                    .gguf_latent_heads = true,
                                    .gguf_reads = gguf_deepseek_keys(),
                                    .gguf_extend = gguf_extend_deepseek,
                                    .gguf_is_own = gguf_has_sigmoid_router});

}  // namespace hotswap::deepseek_v3
