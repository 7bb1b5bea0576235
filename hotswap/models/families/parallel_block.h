// A block whose attention and feed-forward part read the same hidden state, side by side.
#pragma once

#include <memory>

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/token_mixer.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"

namespace hotswap {

struct ParallelBlockOptions {
  bool two_norms = false;       // the feed-forward part has one of its own, post_attention_layernorm
  bool joint_dropout = false;   // of the sum of both
  bool residual_first = false;  // (hidden + attention) + mlp, else hidden + (attention + mlp): they round otherwise
};

//   hidden += attention(norm(hidden)) + mlp(norm(hidden))
class ParallelBlock : public Block {
 public:
  ParallelBlock(const ModelConfig& config, std::unique_ptr<TokenMixer> attention, std::unique_ptr<FeedForward> mlp,
                const ParallelBlockOptions& options);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return self_attn_->make_cache_layer(reserve);
  }

 private:
  ResidualDropout dropout_;
  bool joint_dropout_, residual_first_;
  std::unique_ptr<TokenMixer> self_attn_;
  std::unique_ptr<FeedForward> mlp_;
  std::unique_ptr<Norm> input_layernorm_, post_attention_layernorm_;  // the second may be null
};

}  // namespace hotswap
