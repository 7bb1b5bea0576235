#include "hotswap/layers/router.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "hotswap/layers/sparse_mixer.h"
#include "hotswap/layers/whole_vectors.h"

namespace hotswap {
Router::Router(const RouterOptions& o) : options_(o) {
  own("weight", weight_, {o.experts, o.dim});
  if (o.bias) own("bias", bias_, {o.experts}, Init::constant(0));
  if (o.correction) {
    own_buffer("e_score_correction_bias", correction_bias_, {o.experts}, at::kFloat, Init::constant(0));
  }
}

Tensor Router::chosen(const Tensor& scores) const {
  Tensor ranked = correction_bias_.defined() ? at::add(scores, correction_bias_) : scores;
  if (options_.groups > 1) {
    const Tensor grouped = ranked.view({-1, options_.groups, options_.experts / options_.groups});
    const Tensor of_group = std::get<0>(at::topk(grouped, options_.group_votes)).sum(-1);  // [tokens, groups]
    const Tensor best = std::get<1>(at::topk(of_group, options_.top_groups, -1, /*largest=*/true, /*sorted=*/false));
    const Tensor lost = at::scatter(at::ones(of_group.sizes(), of_group.options().dtype(at::kBool)), 1, best, false);
    ranked = at::masked_fill(grouped, lost.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view_as(ranked);
  }
  return std::get<1>(at::topk(ranked, options_.top_k, -1, /*largest=*/true, options_.sorted));
}

Router::Result Router::route(const Tensor& x) const {
  const auto in = [&](const Tensor& t) { return options_.float32_logits && t.defined() ? t.to(at::kFloat) : t; };
  const Tensor bias = in(bias_);
  Tensor logits = linear_(in(x), in(weight_), bias.defined() ? std::optional(bias) : std::nullopt);
  const at::ScalarType made_in = logits.scalar_type();
  if (options_.widens_logits) logits = logits.to(at::kFloat);
  if (options_.scoring == Scoring::kSparseMixer) return {sparse_mixer(logits, options_.nearness, training()), logits};
  Tensor scores = logits;
  if (options_.scoring == Scoring::kSoftmax) scores = at::softmax(logits, -1, at::kFloat);
  if (options_.scoring == Scoring::kSigmoid) scores = row_sigmoid(logits);
  const Tensor index = chosen(scores);
  Tensor weights = at::gather(scores, 1, index);
  if (options_.scoring == Scoring::kSoftmaxOfChosen) weights = at::softmax(weights, 1);
  if (options_.scoring == Scoring::kSigmoidOfChosen) weights = row_sigmoid(weights.to(at::kFloat));
  if (options_.renormalize) weights = at::div(weights, at::add(weights.sum(-1, /*keepdim=*/true), options_.eps));
  if (!options_.float32_weights) weights = weights.to(made_in);
  if (options_.scale != 1) weights = at::mul(weights, options_.scale);
  return {{index, weights}, logits};
}

Tensor load_balancing_loss(const std::vector<Tensor>& logits, int64_t top_k, const Tensor& attention_mask) {
  const int64_t experts = logits.front().size(1);
  const auto numbers = logits.front().options().dtype(at::kFloat);
  Tensor chosen = at::zeros({experts}, numbers), likely = at::zeros({experts}, numbers);
  // A token of padding counts nothing.
  const Tensor counts = attention_mask.defined() ? attention_mask.reshape({-1, 1}).to(at::kFloat)
                                                 : at::ones({logits.front().size(0), 1}, numbers);
  for (const Tensor& layer : logits) {
    const Tensor probabilities = at::softmax(layer, -1);
    const Tensor best = std::get<1>(at::topk(probabilities, top_k));  // [tokens, top_k]
    chosen = at::scatter_add(chosen, 0, best.reshape({-1}), counts.expand({-1, top_k}).reshape({-1}));
    likely = at::add(likely, at::mul(probabilities.to(at::kFloat), counts).sum(0));
  }
  const Tensor tokens = at::mul(counts.sum(), static_cast<double>(logits.size()));
  const Tensor share = at::mul(at::div(chosen, tokens), at::div(likely, tokens));
  return at::mul(share.sum(), static_cast<double>(experts));
}

}  // namespace hotswap
