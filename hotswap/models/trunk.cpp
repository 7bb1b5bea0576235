#include "hotswap/models/trunk.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/sub.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// Padding that hides nothing is no padding; asking costs a synchronisation on a GPU, as in transformers, and is left
// out where a step must not wait for the device.
Tensor real_padding(const TrunkInput& in) {
  if (!in.attention_mask.defined()) return {};
  const Tensor kept = in.attention_mask.to(at::kBool);
  if (in.cache != nullptr && in.cache->capacity() > 0) return kept;
  return kept.all().item<bool>() ? Tensor() : kept;
}

// Each packed sequence counts from 0.                                                                 [1, time] int64
Tensor packed_positions(const Tensor& cu_seqlens, int64_t time) {
  const Tensor starts = cu_seqlens.to(at::kLong);
  const Tensor tokens = at::arange(time, starts.options());
  const Tensor sequence = at::bucketize(tokens, starts.narrow(0, 1, starts.size(0) - 1), /*out_int32=*/false, true);
  return at::sub(tokens, starts.index_select(0, sequence)).unsqueeze(0);
}

}  // namespace

Trunk::Trunk(const ModelConfig& c, MakeBlock make_block)
    : embed_tokens(c.vocab_size, c.hidden_size),
      norm_(c.hidden_size, {.eps = c.rms_norm_eps}),
      rotary_(c.rope_parameters),
      vocab_size_(c.vocab_size) {
  own("embed_tokens", embed_tokens);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    layers_.push_back(make_block(c, i));
    own(cat("layers.", i), *layers_.back());
  }
  own("norm", norm_);
}

ForwardContext Trunk::context_for(const TrunkInput& in, at::ScalarType dtype) {
  const int64_t past = in.cache != nullptr ? in.cache->length() : 0, time = in.input_ids.size(1);
  const Tensor fixed = in.cache != nullptr ? in.cache->positions() : Tensor();  // of a static cache's tokens: [time]
  Positions positions{past, time, in.position_ids};
  if (!positions.ids.defined() && fixed.defined()) positions.ids = fixed.unsqueeze(0);
  if (!positions.ids.defined() && in.cu_seqlens.defined()) positions.ids = packed_positions(in.cu_seqlens, time);
  return {.rope = rotary_.tables(positions, dtype, in.input_ids.device()),
          .attention = AttentionMetadata({.start = past,
                                          .padding = real_padding(in),
                                          .cu_seqlens = in.cu_seqlens,
                                          .max_seqlen = in.max_seqlen > 0 ? in.max_seqlen : time,
                                          .positions = fixed}),
          .cache = in.cache};
}

Tensor Trunk::forward(const TrunkInput& in) {
  check_input(in, {.vocab_size = vocab_size_, .device = embed_tokens.weight.device()});
  const int64_t time = in.input_ids.size(1);
  if (in.cache != nullptr) in.cache->begin(time, in.input_ids.device());
  HiddenState state{embed_tokens.forward(in.input_ids), {}};
  const ForwardContext context = context_for(in, state.x.scalar_type());
  for (const auto& layer : layers_) state = layer->forward(state, context);
  if (in.cache != nullptr) in.cache->end(time);
  return state.residual.defined() ? norm_.forward(state.x, state.residual).y : norm_.forward(state.x);
}

std::unique_ptr<Cache> Trunk::make_cache(const CacheOptions& options) const {
  std::vector<std::unique_ptr<CacheLayer>> parts;
  for (const auto& layer : layers_) parts.push_back(layer->make_cache_layer(options));
  return std::make_unique<Cache>(std::move(parts), options);
}

}  // namespace hotswap
