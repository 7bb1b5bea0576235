// Llama's block, which its relatives take over with other options or other parts.
#pragma once

#include <memory>

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/decoder_step.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

//   hidden += attention(norm(hidden)); hidden += mlp(norm(hidden)), each times config.residual_multiplier, by norms of
//   the config's kind
class LlamaBlock : public Block {
 public:
  LlamaBlock(const ModelConfig& config, std::unique_ptr<TokenMixer> attention, std::unique_ptr<FeedForward> mlp,
             const char* mlp_name = "mlp", const char* attention_name = "self_attn");  // in a checkpoint
  LlamaBlock(const ModelConfig& config, const SelfAttentionOptions& attention);        // with one gated MLP
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return self_attn_->make_cache_layer(reserve);
  }

 protected:
  void on_tensors_changed() override {
    if (step_) step_->tensors_changed();
  }

 private:
  Tensor scaled(const Tensor& branch, double dropped) const;
  double residual_multiplier_;
  ResidualDropout dropout_;
  std::unique_ptr<TokenMixer> self_attn_;
  std::unique_ptr<FeedForward> mlp_;
  std::unique_ptr<Norm> input_layernorm_, post_attention_layernorm_;
  std::unique_ptr<DecoderStep> step_;  // null: with parts of other kinds
};

// What every config says of a layer's attention: sizes, window, scale, dropout. Biases and norms are the family's to
// add.
SelfAttentionOptions attention_options(const ModelConfig& config, int64_t layer);

GatedMLPOptions mlp_options(const ModelConfig& config);

// With one gated MLP, and a bias on every projection of attention where the config's attention_bias says so.
std::unique_ptr<Block> make_llama_block(const ModelConfig& config, int64_t layer);

// For families whose files in llama.cpp keep the rows of queries and keys in interleaved rotary order.
TensorRules gguf_interleaved_rules(const ModelConfig& config);

}  // namespace hotswap
