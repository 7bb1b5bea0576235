#include "hotswap/models/families/mixed_block.h"

#include "hotswap/layers/multiplied.h"

namespace hotswap {

MixedBlock::MixedBlock(const ModelConfig& c, MixedBlockParts parts)
    : residual_multiplier_(c.residual_multiplier),
      mixer_(std::move(parts.mixer)),
      feed_forward_(std::move(parts.feed_forward)),
      input_norm_(c.hidden_size, c.norm()),
      second_norm_(c.hidden_size, c.norm()) {
  own(parts.feed_forward_name, *feed_forward_);
  own("input_layernorm", input_norm_);
  own(parts.second_norm_name, second_norm_);
  own(parts.mixer_name, *mixer_);
}

HiddenState MixedBlock::forward(const HiddenState& in, const ForwardContext& context) {
  const auto [y, h] = input_norm_.after(in.x, in.residual);
  const auto [z, residual] = second_norm_.forward(multiplied(mixer_->forward(y, context), residual_multiplier_), h);
  return {multiplied(feed_forward_->forward(z, context), residual_multiplier_), residual};
}

}  // namespace hotswap
