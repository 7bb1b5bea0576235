#include "hotswap/models/families/qwen3.h"

#include <cmath>

namespace hotswap {
namespace {

DecoderConfig qwen3_config(const Json& config) {
  (void)config.at<int64_t>("num_key_value_heads");  // transformers' default is 32, not the number of heads: never guess
  return read_decoder_config(config, {.head_dim = 128});
}

}  // namespace

Qwen3Attention::Qwen3Attention(const DecoderConfig& c, int64_t layer)
    : layer_(layer),
      head_dim_(c.head_dim),
      dropout_(c.attention_dropout),
      q_proj_(c.dim, c.heads * c.head_dim, c.attention_bias),
      k_proj_(c.dim, c.kv_heads * c.head_dim, c.attention_bias),
      v_proj_(c.dim, c.kv_heads * c.head_dim, c.attention_bias),
      o_proj_(c.heads * c.head_dim, c.dim, c.attention_bias),
      q_norm_(c.head_dim, {.eps = c.norm_eps}),
      k_norm_(c.head_dim, {.eps = c.norm_eps}) {
  own("q_proj", q_proj_);
  own("k_proj", k_proj_);
  own("v_proj", v_proj_);
  own("o_proj", o_proj_);
  own("q_norm", q_norm_);
  own("k_norm", k_norm_);
  own("rotary_fn", rotary_fn_);
}

Tensor Qwen3Attention::forward(const Tensor& x, const Step& step) {
  const auto heads = [&](const Tensor& y) { return y.view({y.size(0), y.size(1), -1, head_dim_}); };
  const Tensor normed_q = q_norm_.forward(heads(q_proj_.forward(x)));  // [batch, time, heads, head_dim]
  const Tensor normed_k = k_norm_.forward(heads(k_proj_.forward(x)));  // [batch, time, kv_heads, head_dim]
  auto [q, k] = rotary_fn_.forward(normed_q.transpose(1, 2), normed_k.transpose(1, 2), step.rope);
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

Qwen3ForCausalLM::Qwen3ForCausalLM(const Json& config)
    : CausalLM(qwen3_config(config), config),
      model_(this->config(), [](const DecoderConfig& c, int64_t layer) -> std::unique_ptr<DecoderAttention> {
        return std::make_unique<Qwen3Attention>(c, layer);
      }) {
  own("model", model_);
  add_head();
}

}  // namespace hotswap
