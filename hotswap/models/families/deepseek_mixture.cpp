#include "hotswap/models/families/deepseek_mixture.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"

namespace hotswap {
namespace {

void check_groups(const MixtureConfig& m, int64_t votes, const Json& json) {
  const bool too_small = m.n_group > 1 && m.num_experts < votes * m.n_group;
  const bool uneven = m.num_experts % m.n_group != 0 || m.topk_group > m.n_group || too_small;
  if (!uneven && m.num_experts_per_tok <= m.num_experts / m.n_group * m.topk_group) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("groups of equal size, ", votes, " at least, of the ", m.num_experts,
                             " experts, as many at most chosen, and in those as many as num_experts_per_tok, ",
                             m.num_experts_per_tok),
               .got = cat("n_routed_experts ", m.num_experts, ", n_group ", m.n_group, ", topk_group ", m.topk_group,
                          " in ", json.where()),
               .next = "set n_group to a divisor of the experts, and topk_group to at most n_group"});
}

}  // namespace

void read_deepseek_mixtures(ModelConfig& c, const Json& json, const DeepseekMixtures& absent) {
  const int64_t dense = json.get<int64_t>("first_k_dense_replace", absent.first_dense);
  if (dense < c.num_hidden_layers) {
    MixtureConfig& m = c.mixture;
    m = read_mixture_config(c.num_hidden_layers, json, {.aux_loss_coef = std::nullopt});
    m.norm_topk_prob = flag(json, "norm_topk_prob", absent.renormalize);
    m.shared_expert_intermediate_size =
        m.moe_intermediate_size * positive(json, "n_shared_experts", absent.shared_experts);
    m.n_group = positive(json, "n_group", absent.groups);
    m.topk_group = positive(json, "topk_group", absent.top_groups);
    check_groups(m, absent.group_votes, json);
    m.routed_scaling_factor = positive_number(json, "routed_scaling_factor", absent.scale);
  }
  c.mixture.sparse.assign(c.num_hidden_layers, true);
  for (int64_t i = 0; i < std::min(dense, c.num_hidden_layers); ++i) c.mixture.sparse[i] = false;
}

static RouterOptions deepseek_router(const ModelConfig& c) {
  const MixtureConfig& m = c.mixture;
  return {.dim = c.hidden_size,
          .experts = m.num_experts,
          .top_k = m.num_experts_per_tok,
          .groups = m.n_group,
          .top_groups = m.topk_group,
          .sorted = false,
          .renormalize = m.norm_topk_prob,
          .scale = m.routed_scaling_factor,
          .float32_logits = true,
          .float32_weights = true};
}

RouterOptions deepseek_v3_router(const ModelConfig& c) {
  RouterOptions router = deepseek_router(c);
  router.scoring = Scoring::kSigmoid;
  router.correction = true;
  router.eps = 1e-20;
  return router;
}

MixtureOptions deepseek_mixture(const ModelConfig& c) {
  MixtureOptions mixture = mixture_options(c);
  mixture.router = deepseek_router(c);
  mixture.shared_name = "shared_experts";
  return mixture;
}

MixtureOptions deepseek_v3_mixture(const ModelConfig& c) {
  MixtureOptions mixture = deepseek_mixture(c);
  mixture.router = deepseek_v3_router(c);
  return mixture;
}

TensorRule layers_beyond(const ModelConfig& c) {
  return TensorRule::leave_out(cat("model.layers.", c.num_hidden_layers));
}

TensorRules gguf_deepseek_mixture_rules(const ModelConfig& c) {
  const std::string mlp = "model.layers.*.mlp.", correction = mlp + "gate.e_score_correction_bias";
  TensorRules rules = {TensorRule::leave_out(cat("blk.", c.num_hidden_layers)),
                       TensorRule::rename("blk.*.exp_probs_b.bias", correction),
                       TensorRule::rename("blk.*.exp_probs_b", correction)};  // in older files
  for (const char* part : {"gate", "up", "down"}) {
    rules.push_back(TensorRule::rename(cat("blk.*.ffn_", part, "_shexp"), cat(mlp, "shared_experts.", part, "_proj")));
  }
  const TensorRules experts = gguf_expert_rules();
  rules.insert(rules.end(), experts.begin(), experts.end());
  return rules;
}

const std::vector<std::string>& gguf_deepseek_mixture_keys() {
  static const std::vector<std::string> keys = {
      "expert_count",        "expert_feed_forward_length", "expert_gating_func",
      "expert_group_count",  "expert_group_used_count",    "expert_shared_count",
      "expert_weights_norm", "expert_weights_scale",       "leading_dense_block_count",
      "nextn_predict_layers"};
  return keys;
}

void gguf_extend_deepseek_mixtures(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  const auto layers = config.at("num_hidden_layers").get<int64_t>();
  config["num_hidden_layers"] = layers - file.get<int64_t>(prefix + "nextn_predict_layers", 0);
  if (file.get<int64_t>(prefix + "expert_count", 0) == 0) {
    config["first_k_dense_replace"] = layers;
    return;
  }
  gguf_extend_experts(file, prefix, config, {.experts = "n_routed_experts"});
  config["first_k_dense_replace"] = file.get<int64_t>(prefix + "leading_dense_block_count", 0);
  config["n_shared_experts"] = file.at<int64_t>(prefix + "expert_shared_count");
  config["n_group"] = file.get<int64_t>(prefix + "expert_group_count", 1);
  config["topk_group"] = file.get<int64_t>(prefix + "expert_group_used_count", 1);
  config["norm_topk_prob"] = file.get<bool>(prefix + "expert_weights_norm", false);
  config["routed_scaling_factor"] = file.get<double>(prefix + "expert_weights_scale", 1);
}

bool gguf_has_sigmoid_router(const GgufFile& file, const std::string& prefix) {
  constexpr int64_t kUnstated = 0, kSigmoid = 2;
  const auto function = file.get<int64_t>(prefix + "expert_gating_func", kUnstated);
  const auto& names = file.names();
  return function == kSigmoid ||
         (function == kUnstated && std::any_of(names.begin(), names.end(), [](const auto& name) {
            return name.find(".exp_probs_b") != std::string::npos;
          }));
}

}  // namespace hotswap
