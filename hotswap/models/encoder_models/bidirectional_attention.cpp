#include "hotswap/models/encoder_models/bidirectional_attention.h"

#include <cmath>

namespace hotswap {
namespace {

SlotNeeds attention_needs(const BidirectionalAttentionOptions& o) {
  SlotNeeds needs{.features = {}, .numbers = {{"head_dims", {o.head_dim}}}};
  if (o.window > 0) needs.features.emplace_back("window");
  if (o.biased) needs.features.emplace_back("score_bias");
  return needs;
}

}  // namespace

BidirectionalAttention::BidirectionalAttention(const BidirectionalAttentionOptions& o)
    : options_(o),
      attention_options_{.scale = o.scale.value_or(std::pow(static_cast<double>(o.head_dim), -0.5)),
                         .causal = false,
                         .window_left = o.window > 0 ? o.window : -1,
                         .window_right = o.window > 0 ? o.window : -1},
      attention_(this, "attention", "attention/1", stock::sdpa, attention_needs(o)) {
  if (o.dropout > 0) attention_.set_passes_by("training with dropout of the weights, which torch's attention has");
}

Tensor BidirectionalAttention::heads(const Tensor& x) const {
  return x.view({x.size(0), x.size(1), options_.num_heads, options_.head_dim});
}

Tensor BidirectionalAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionMetadata& metadata, const std::vector<int64_t>& lengths,
                                       const ScoreBias& bias) const {
  AttentionOptions options = attention_options_;
  options.dropout = training() ? options_.dropout : 0;
  const bool by_kernel = attention_.bound() && options.dropout == 0;
  const auto attend = [&](const Tensor& queries, const Tensor& keys, const Tensor& values,
                          const AttentionMetadata& of) {
    AttentionOptions with = options;
    if (bias) with.bias = bias(queries, keys);
    if (with.dropout == 0) return attention_(queries, keys, values, with, of);
    return bias ? stock::eager(queries, keys, values, with, of) : stock::sdpa(queries, keys, values, with, of);
  };
  const AttentionMetadata plain;
  const Tensor out =
      lengths.empty() || by_kernel
          ? attend(q, k, v, metadata)
          : by_length(
                lengths, [&](const auto& qs, const auto& ks, const auto& vs) { return attend(qs, ks, vs, plain); }, q,
                k, v);
  return out.reshape({q.size(0), q.size(1), -1});
}

}  // namespace hotswap
