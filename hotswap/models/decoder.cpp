#include "hotswap/models/decoder.h"

#include "hotswap/base/error.h"
#include "hotswap/kernelize/attention_kernel.h"
#include "hotswap/kernelize/package/device.h"

namespace hotswap {
namespace {

void check(const DecoderInput& in, int64_t past) {
  if (!in.ids.defined() || in.ids.dim() != 2 || in.ids.scalar_type() != at::kLong || in.ids.numel() == 0) {
    throw Error({.wanted = "input_ids [batch, time] of int64, not empty",
                 .got = in.ids.defined() ? cat(in.ids.scalar_type(), " [", join(in.ids.sizes()), "]") : "none",
                 .next = ""});
  }
  const int64_t batch = in.ids.size(0), time = in.ids.size(1);
  if (const Tensor& mask = in.attention_mask;
      mask.defined() && (mask.dim() != 2 || mask.size(0) != batch || mask.size(1) != past + time)) {
    throw Error({.wanted = cat("an attention_mask [", batch, ", ", past + time, "]: cached and new tokens"),
                 .got = cat("[", join(mask.sizes()), "]"),
                 .next = ""});
  }
  if (const Tensor& ids = in.position_ids;
      ids.defined() && (ids.dim() != 2 || (ids.size(0) != batch && ids.size(0) != 1) || ids.size(1) != time)) {
    throw Error(
        {.wanted = cat("position_ids [", batch, ", ", time, "]"), .got = cat("[", join(ids.sizes()), "]"), .next = ""});
  }
}

}  // namespace

DecoderBlock::DecoderBlock(const DecoderConfig& c, std::unique_ptr<DecoderAttention> attention)
    : self_attn_(std::move(attention)),
      mlp_({.dim = c.dim, .hidden = c.ffn, .activation = c.activation, .bias = c.mlp_bias}),
      input_layernorm_(c.dim, {.eps = c.norm_eps}),
      post_attention_layernorm_(c.dim, {.eps = c.norm_eps}) {
  own("self_attn", *self_attn_);
  own("mlp", mlp_);
  own("input_layernorm", input_layernorm_);
  own("post_attention_layernorm", post_attention_layernorm_);
}

DecoderBlock::Stream DecoderBlock::forward(const Stream& in, const Step& step) {
  const auto [y, h] = in.residual.defined() ? input_layernorm_.forward(in.x, in.residual)
                                            : AddRMSNorm::Result{input_layernorm_.forward(in.x), in.x};
  const auto [z, residual] = post_attention_layernorm_.forward(self_attn_->forward(y, step), h);
  return {mlp_.forward(z), residual};
}

Decoder::Decoder(const DecoderConfig& c, MakeAttention make_attention)
    : embed_tokens(c.vocab, c.dim), norm_(c.dim, {.eps = c.norm_eps}), rotary_(c.rope) {
  attention_ = &attention_kind("sdpa");
  own("embed_tokens", embed_tokens);
  for (int64_t i = 0; i < c.layers; ++i) {
    layers_.push_back(std::make_unique<DecoderBlock>(c, make_attention(c, i)));
    own(cat("layers.", i), *layers_.back());
  }
  own("norm", norm_);
}

void Decoder::set_attention(const std::string& name) {
  check_attn_implementation(name, {.device_kind = device_kind(embed_tokens.weight.device())});
  attention_ = &attention_kind(name);
}

Tensor Decoder::forward(const DecoderInput& in) {
  const int64_t past = in.cache != nullptr ? in.cache->length() : 0;
  check(in, past);
  const int64_t time = in.ids.size(1);
  DecoderBlock::Stream stream{embed_tokens.forward(in.ids), {}};
  const auto dtype = stream.x.scalar_type();
  const auto device = stream.x.device();
  const Step step{.rope = rotary_.tables({past, time, in.position_ids}, dtype, device),
                  .mask = attention_->make_mask({time, past + time, in.attention_mask, dtype, device}),
                  .attention = *attention_,
                  .cache = in.cache};
  for (const auto& layer : layers_) stream = layer->forward(stream, step);
  return norm_.forward(stream.x, stream.residual).y;
}

}  // namespace hotswap
