// The block of families whose layers differ in their mixer: a recurrence in some, attention in the others.
#pragma once

#include <memory>

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/token_mixer.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"

namespace hotswap {

struct MixedBlockParts {
  std::unique_ptr<TokenMixer> mixer;
  std::unique_ptr<FeedForward> feed_forward;
  const char* mixer_name;  // in a checkpoint, as the next two
  const char* feed_forward_name = "feed_forward";
  const char* second_norm_name = "pre_ff_layernorm";
};

// hidden += mixer(norm(hidden)), then hidden += feed_forward(norm(hidden)), each times config.residual_multiplier.
class MixedBlock : public Block {
 public:
  MixedBlock(const ModelConfig& config, MixedBlockParts parts);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return mixer_->make_cache_layer(reserve);
  }

 private:
  double residual_multiplier_;
  std::unique_ptr<TokenMixer> mixer_;
  std::unique_ptr<FeedForward> feed_forward_;
  AddRMSNorm input_norm_, second_norm_;
};

}  // namespace hotswap
