// Qwen3: Llama's decoder with a norm on every query and key head.
#pragma once

#include "hotswap/models/causal_lm.h"

namespace hotswap {

class Qwen3Attention : public DecoderAttention {
 public:
  Qwen3Attention(const DecoderConfig& config, int64_t layer);
  Tensor forward(const Tensor& x, const Step& step) override;

 private:
  int64_t layer_, head_dim_;
  double dropout_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  RMSNorm q_norm_, k_norm_;  // over head_dim
  RotaryPosEmb rotary_fn_;
};

class Qwen3ForCausalLM : public CausalLM {
 public:
  explicit Qwen3ForCausalLM(const Json& config);
  void set_attn_implementation(const std::string& name) override { model_.set_attention(name); }
  std::string attn_implementation() const override { return model_.attention(); }

 protected:
  Tensor hidden_states(const DecoderInput& in) override { return model_.forward(in); }
  Tensor& embedding() override { return model_.embed_tokens.weight; }

 private:
  Decoder model_;
};

}  // namespace hotswap
