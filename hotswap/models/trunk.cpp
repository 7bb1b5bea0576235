#include "hotswap/models/trunk.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

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

// Of the new ones.
Tensor of_new_tokens(const Tensor& padding, const Tensor& fixed_places, int64_t time) {
  if (!padding.defined()) return {};
  return fixed_places.defined() ? padding.index_select(1, fixed_places)
                                : padding.narrow(1, padding.size(1) - time, time);
}

}  // namespace

Trunk::Trunk(const ModelConfig& c, MakeBlock make_block)
    : embed_tokens(c.vocab_size, c.hidden_size),
      norm_(c.hidden_size, c.norm()),
      rotates_in_float32_(c.rotates_in_float32),
      multiplier_(c.embedding_multiplier),
      rounds_multiplier_(c.rounds_embedding_multiplier),
      vocab_size_(c.vocab_size) {
  if (c.rope_parameters.dim > 0) rotary_.emplace(c.rope_parameters);
  if (c.sliding_rope_parameters) sliding_rotary_.emplace(*c.sliding_rope_parameters);
  own("embed_tokens", embed_tokens);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    layers_.push_back(make_block(c, i));
    own(cat("layers.", i), *layers_.back());
  }
  own("norm", norm_);
}

at::ScalarType Trunk::dtype() const {
  return (embed_tokens.weight.plain() ? embed_tokens.data() : norm_.weight).scalar_type();
}

Tensor Trunk::embedded(const Tensor& input_ids) const {
  const Tensor x = embed_tokens.forward(input_ids, dtype());
  if (multiplier_ == 1) return x;
  if (!rounds_multiplier_) return at::mul(x, multiplier_);
  return at::mul(x, at::scalar_tensor(multiplier_, at::kFloat).to(x.scalar_type()));
}

// Of one token a row behind what a cache of a fixed size holds, where all that a step begins with are two look-ups.
std::optional<DecoderInputs> Trunk::inputs_at_once(const TrunkInput& in) {
  const Tensor& embedding = embed_tokens.data();
  const bool plain = in.cache != nullptr && in.cache->capacity() > 0 && in.cache->position().defined() &&
                     !at::GradMode::is_enabled() && !in.position_ids.defined() && !in.attention_mask.defined() &&
                     !in.cu_seqlens.defined() && rotary_ && !sliding_rotary_ && !rotates_in_float32_ &&
                     multiplier_ == 1 && !layers_.empty() && embed_tokens.plain();
  if (!plain || !embedding.is_contiguous() || !in.input_ids.is_contiguous()) return std::nullopt;
  const DecoderLayerSlot* slot = layers_.front()->step_inputs(in.input_ids.size(0));
  if (slot == nullptr) return std::nullopt;
  const Tensor rope = rotary_->rows(in.cache->capacity(), embedding.scalar_type(), embedding.device());
  if (!rope.defined()) return std::nullopt;
  DecoderInputs inputs = slot->inputs(in.input_ids, embedding, rope, in.cache->device_length());
  in.cache->counted(inputs.place);
  return inputs;
}

ForwardContext Trunk::context_for(const TrunkInput& in, at::ScalarType dtype, const Tensor& rope) {
  const int64_t past = in.cache != nullptr ? in.cache->length() : 0, time = in.input_ids.size(1);
  const Tensor fixed = in.cache != nullptr ? in.cache->positions() : Tensor();  // of a static cache's tokens: [time]
  Positions positions{past, time, in.position_ids};
  if (!positions.ids.defined() && fixed.defined()) {
    positions.ids = fixed.unsqueeze(0);
    positions.below = in.cache->capacity();
  }
  if (!positions.ids.defined() && in.cu_seqlens.defined()) {
    positions.ids = packed_places(in.cu_seqlens, time).unsqueeze(0);
  }
  const at::Device device = in.input_ids.device();
  const at::ScalarType table_dtype = rotates_in_float32_ ? at::kFloat : dtype;
  // Of a prompt the keys are those of a cache that grows: its own.
  const bool prompt = fixed.defined() && in.cache->prompt();
  Tensor padding = real_padding(in);
  if (prompt && padding.defined()) padding = padding.narrow(1, 0, time);
  const auto tables = [&](const std::optional<RotaryEmbedding>& rotary) {
    if (rope.defined() && &rotary == &rotary_) return RotaryEmbedding::halves(rope);
    return rotary ? rotary->tables(positions, table_dtype, device) : RotaryTables();
  };
  return {.rope = tables(rotary_),
          .sliding_rope = tables(sliding_rotary_),
          .attention = AttentionMetadata({.start = past,
                                          .padding = padding,
                                          .cu_seqlens = in.cu_seqlens,
                                          .max_seqlen = in.max_seqlen > 0 ? in.max_seqlen : time,
                                          .positions = prompt ? Tensor() : fixed}),
          .real = of_new_tokens(padding, prompt ? Tensor() : fixed, time),
          .seq_idx = in.cu_seqlens.defined() ? packed_sequences(in.cu_seqlens, time).unsqueeze(0) : Tensor(),
          .memory = in.cache,
          .position = in.cache != nullptr ? in.cache->position() : Tensor(),
          .router_logits = in.router_logits};
}

// Rows stand where their own sequences are. What has no tokens before it attends as a batch without a cache.
ForwardContext Trunk::step_context(const TrunkInput& in, at::ScalarType dtype) {
  const StepBatch& step = *in.step;
  const int64_t rows = step.batch(), time = step.new_tokens;
  Positions positions{.start = 0, .length = time, .below = step.kv_len_bucket, .lengths = step.rope_for};
  if (!step.from_start) positions.ids = step.positions.view({rows, time});
  positions.each_row = step.is_static;
  const at::ScalarType table_dtype = rotates_in_float32_ ? at::kFloat : dtype;
  const auto tables = [&](std::optional<RotaryEmbedding>& rotary) {
    return rotary ? rotary->tables(positions, table_dtype, step.ids.device()) : RotaryTables();
  };
  Tensor position;
  if (time == 1 && !step.from_start) position = step.one_length ? step.positions.narrow(0, 0, 1) : step.positions;
  const int64_t past = step.from_start ? 0 : *std::min_element(step.lengths.begin(), step.lengths.end()) - time;
  SequenceInfo sequence{.start = past};
  if (step.is_static) {
    sequence.positions = positions.ids;
  } else if (!step.from_start) {
    sequence.step = &step;
  }
  return {.rope = tables(rotary_),
          .sliding_rope = tables(sliding_rotary_),
          .attention = AttentionMetadata(sequence),
          .memory = in.memory,
          .position = position,
          .router_logits = in.router_logits};
}

HiddenState Trunk::through_layers(const Tensor& x, const ForwardContext& context) {
  HiddenState state{x, {}};
  for (const auto& layer : layers_) state = layer->forward(state, context);
  return state;
}

Tensor Trunk::normed(const HiddenState& state) {
  const Tensor hidden = state.residual.defined() ? norm_.forward(state.x, state.residual).y : norm_.forward(state.x);
  return hidden.to(dtype());  // of a residual in float32 too
}

Tensor Trunk::forward(const TrunkInput& in) {
  check_input(in, {.vocab_size = vocab_size_, .device = embed_tokens.data().device()});
  if (in.step != nullptr) {
    const Tensor x = embedded(ids_of(in));
    return normed(through_layers(x, step_context(in, x.scalar_type())));
  }
  if (const auto row = documents_in_one_row(in)) {
    return forward(*row).view({in.input_ids.size(0), in.input_ids.size(1), -1});
  }
  const int64_t time = in.input_ids.size(1);
  if (in.cache != nullptr) in.cache->begin(time, in.input_ids.device());
  const auto inputs = inputs_at_once(in);
  const Tensor x = inputs ? inputs->x : embedded(in.input_ids);
  const HiddenState state = through_layers(x, context_for(in, x.scalar_type(), inputs ? inputs->row : Tensor()));
  if (in.cache != nullptr) in.cache->end(time);
  return normed(state);
}

std::unique_ptr<Cache> Trunk::make_cache(const CacheOptions& options) const {
  std::vector<std::unique_ptr<CacheLayer>> parts;
  for (const auto& layer : layers_) parts.push_back(layer->make_cache_layer(options));
  return std::make_unique<Cache>(std::move(parts), options);
}

}  // namespace hotswap
