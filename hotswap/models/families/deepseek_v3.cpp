// DeepSeek-V3: V2, with another order of the numbers that turn together, and behind the first layers mixtures of
// experts, of which a token chooses groups first; a correction has a say in the choice alone.
#include <algorithm>

#include "hotswap/models/config_numbers.h"
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
  const int64_t dense = json.get<int64_t>("first_k_dense_replace", 3);
  if (dense < c.num_hidden_layers) {
    c.mixture = read_mixture_config(c.num_hidden_layers, json, {.aux_loss_coef = std::nullopt});
    c.mixture.norm_topk_prob = flag(json, "norm_topk_prob", true);
    c.mixture.shared_expert_intermediate_size = c.mixture.moe_intermediate_size * positive(json, "n_shared_experts", 1);
    c.mixture.n_group = positive(json, "n_group", 8);
    c.mixture.topk_group = positive(json, "topk_group", 4);
    // A group counts as much as its two best experts.
    const bool too_small = c.mixture.n_group > 1 && c.mixture.num_experts < 2 * c.mixture.n_group;
    if (c.mixture.num_experts % c.mixture.n_group != 0 || c.mixture.topk_group > c.mixture.n_group || too_small) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("groups of equal size, two at least, of the ", c.mixture.num_experts,
                                 " experts, and as many at most chosen"),
                   .got = cat("n_routed_experts ", c.mixture.num_experts, ", n_group ", c.mixture.n_group,
                              ", topk_group ", c.mixture.topk_group, " in ", json.where()),
                   .next = "set n_group to a divisor of the experts, and topk_group to at most n_group"});
    }
    c.mixture.routed_scaling_factor = positive_number(json, "routed_scaling_factor", 2.5);
  }
  c.mixture.sparse.assign(c.num_hidden_layers, true);
  for (int64_t i = 0; i < std::min(dense, c.num_hidden_layers); ++i) c.mixture.sparse[i] = false;
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  LatentAttentionOptions attention = latent_attention_options(c, layer);
  attention.rotary_order = c.rope_interleave ? RotaryOrder::kFromInterleaved : RotaryOrder::kHalves;
  MixtureOptions mixture = mixture_options(c);
  mixture.router.scoring = Scoring::kSigmoid;
  mixture.router.correction = mixture.router.float32_logits = mixture.router.float32_weights = true;
  mixture.router.groups = c.mixture.n_group;
  mixture.router.top_groups = c.mixture.topk_group;
  mixture.router.eps = 1e-20;
  mixture.router.scale = c.mixture.routed_scaling_factor;
  mixture.shared_name = "shared_experts";
  return mixture_block(c, std::make_unique<LatentAttention>(attention), mixture, layer);
}

}  // namespace

const RegisteredFamily kDeepseekV3({.model_type = "deepseek_v3",
                                    .class_name = "DeepseekV3ForCausalLM",
                                    .read_config = read_config,
                                    .make_block = make_block,
                                    .tensor_rules = separate_experts});

}  // namespace hotswap::deepseek_v3
