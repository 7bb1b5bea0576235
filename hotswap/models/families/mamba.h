// Mamba's block and config, which its relatives take over with other options or another mixer.
#pragma once

#include <memory>

#include "hotswap/layers/token_mixer.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

//   hidden += mixer(norm(hidden)), the sum in float32 where config.residual_in_fp32
class MambaBlock : public Block {
 public:
  MambaBlock(const ModelConfig& config, std::unique_ptr<TokenMixer> mixer);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return mixer_->make_cache_layer(reserve);
  }

 private:
  bool residual_in_fp32_;
  std::unique_ptr<TokenMixer> mixer_;
  AddRMSNorm norm_;
};

// What Mamba, Falcon Mamba and Mamba-2 share of their configs; the mixer's own sizes are the family's to add.
ModelConfig read_mamba_config(const Json& json, bool tie_word_embeddings);
// Mamba-1's sizes beside the state's: `width` times hidden_size channels, and the rank of dt's projection, which is a
// sixteenth of hidden_size where the key's value is "auto".
void read_mamba_sizes(ModelConfig& config, const Json& json, const char* width_key, const char* rank_key);

// Mamba's own, which Falcon Mamba takes over: all of the config, and a block.
ModelConfig read_mamba1_config(const Json& json);
std::unique_ptr<Block> make_mamba1_block(const ModelConfig& config, int64_t layer);

MambaOptions mamba_options(const ModelConfig& config, int64_t layer);

// backbone.embeddings, backbone.layers.*, backbone.norm_f
TensorRules backbone_names(const ModelConfig& config);

}  // namespace hotswap
