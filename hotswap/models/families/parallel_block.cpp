#include "hotswap/models/families/parallel_block.h"

#include <ATen/ops/add.h>

#include "hotswap/layers/dropout.h"
#include "hotswap/models/trunk.h"

namespace hotswap {

ParallelBlock::ParallelBlock(const ModelConfig& c, std::unique_ptr<TokenMixer> attention,
                             std::unique_ptr<FeedForward> mlp, const ParallelBlockOptions& options)
    : dropout_(c.residual_dropout),
      joint_dropout_(options.joint_dropout),
      residual_first_(options.residual_first),
      self_attn_(std::move(attention)),
      mlp_(std::move(mlp)),
      input_layernorm_(make_norm(c)),
      post_attention_layernorm_(options.two_norms ? make_norm(c) : nullptr) {
  own("self_attn", *self_attn_);
  own("mlp", *mlp_);
  own("input_layernorm", *input_layernorm_);
  if (post_attention_layernorm_) own("post_attention_layernorm", *post_attention_layernorm_);
}

HiddenState ParallelBlock::forward(const HiddenState& in, const ForwardContext& context) {
  const auto [y, h] = input_layernorm_->after(in.x, in.residual);
  const Tensor z = post_attention_layernorm_ ? post_attention_layernorm_->forward(h) : y;
  if (joint_dropout_) {
    return {
        seeded_dropout(at::add(self_attn_->forward(y, context), mlp_->forward(z, context)), dropout_.mlp, training()),
        h};
  }
  const Tensor attended = seeded_dropout(self_attn_->forward(y, context), dropout_.attention, training());
  const Tensor fed = seeded_dropout(mlp_->forward(z, context), dropout_.mlp, training());
  if (residual_first_) return {fed, at::add(h, attended)};
  return {at::add(attended, fed), h};
}

}  // namespace hotswap
