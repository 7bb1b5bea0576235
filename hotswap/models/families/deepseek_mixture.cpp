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

}  // namespace hotswap
