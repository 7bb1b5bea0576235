#include "hotswap/models/families/llama.h"

#include <cmath>

namespace hotswap {

LlamaAttention::LlamaAttention(const DecoderConfig& c, int64_t layer)
    : layer_(layer),
      head_dim_(c.head_dim),
      dropout_(c.attention_dropout),
      q_proj_(c.dim, c.heads * c.head_dim, c.attention_bias),
      k_proj_(c.dim, c.kv_heads * c.head_dim, c.attention_bias),
      v_proj_(c.dim, c.kv_heads * c.head_dim, c.attention_bias),
      o_proj_(c.heads * c.head_dim, c.dim, c.attention_bias) {
  own("q_proj", q_proj_);
  own("k_proj", k_proj_);
  own("v_proj", v_proj_);
  own("o_proj", o_proj_);
  own("rotary_fn", rotary_fn_);
}

Tensor LlamaAttention::forward(const Tensor& x, const Step& step) {
  auto [q, k] =
      rotary_fn_.forward(split(q_proj_.forward(x), head_dim_), split(k_proj_.forward(x), head_dim_), step.rope);
  Tensor v = split(v_proj_.forward(x), head_dim_);  // [batch, kv_heads, time, head_dim]
  if (step.cache != nullptr) std::tie(k, v) = step.cache->append(layer_, k, v);
  const Tensor out = step.attention.attend({.query = q,
                                            .key = k,
                                            .value = v,
                                            .mask = step.mask,
                                            .scaling = std::pow(static_cast<double>(head_dim_), -0.5),
                                            .dropout = training() ? dropout_ : 0.0});
  return o_proj_.forward(out.reshape({x.size(0), x.size(1), -1}));
}

LlamaForCausalLM::LlamaForCausalLM(const Json& config)
    : CausalLM(read_decoder_config(config), config),
      model_(this->config(), [](const DecoderConfig& c, int64_t layer) -> std::unique_ptr<DecoderAttention> {
        return std::make_unique<LlamaAttention>(c, layer);
      }) {
  own("model", model_);
  add_head();
}

}  // namespace hotswap
