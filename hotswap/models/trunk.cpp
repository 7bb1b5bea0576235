#include "hotswap/models/trunk.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/layers/dropout.h"

namespace hotswap {
namespace {

// Padding that hides nothing is no padding; asking costs a synchronisation on a GPU, as in transformers.
Tensor real_padding(const TrunkInput& in) {
  if (!in.attention_mask.defined()) return {};
  const Tensor kept = in.attention_mask.to(at::kBool);
  return kept.all().item<bool>() ? Tensor() : kept;
}

// Of the new ones.
Tensor of_new_tokens(const Tensor& padding, int64_t time) {
  return padding.defined() ? padding.narrow(1, padding.size(1) - time, time) : Tensor();
}

}  // namespace

std::unique_ptr<Norm> make_norm(const ModelConfig& c) {
  if (c.layer_norm) return std::make_unique<LayerNorm>(c.hidden_size, *c.layer_norm);
  return std::make_unique<AddRMSNorm>(c.hidden_size, c.norm());
}

Trunk::Trunk(const ModelConfig& c, MakeBlock make_block)
    : embed_tokens(c.vocab_size, c.hidden_size),
      norm_(make_norm(c)),
      embedding_dropout_(c.residual_dropout.embedding),
      rotates_in_float32_(c.rotates_in_float32),
      multiplier_(c.embedding_multiplier),
      rounds_multiplier_(c.rounds_embedding_multiplier),
      vocab_size_(c.vocab_size) {
  if (c.rope_parameters.dim > 0) rotary_.emplace(c.rope_parameters);
  if (c.sliding_rope_parameters) sliding_rotary_.emplace(*c.sliding_rope_parameters);
  own("embed_tokens", embed_tokens);
  if (c.position_embeddings > 0) {
    embed_positions_ = std::make_unique<Embedding>(c.position_embeddings, c.hidden_size);
    own("embed_positions", *embed_positions_);
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    layers_.push_back(make_block(c, i));
    own(cat("layers.", i), *layers_.back());
  }
  own("norm", *norm_);
}

at::ScalarType Trunk::dtype() const {
  if (embed_tokens.weight.plain() || !norm_->weight.defined()) return embed_tokens.data().scalar_type();
  return norm_->weight.scalar_type();
}

Tensor Trunk::embedded(const Tensor& input_ids) const {
  const Tensor x = embed_tokens.forward(input_ids, dtype());
  if (multiplier_ == 1) return x;
  if (!rounds_multiplier_) return at::mul(x, multiplier_);
  return at::mul(x, at::scalar_tensor(multiplier_, at::kFloat).to(x.scalar_type()));
}

Tensor Trunk::positions_of(const TrunkInput& in) const {
  const int64_t time = ids_of(in).size(1);
  const auto options = at::TensorOptions().dtype(at::kLong).device(ids_of(in).device());
  if (in.step != nullptr) {
    return in.step->from_start ? at::arange(time, options).unsqueeze(0) : in.step->positions.view({-1, time});
  }
  if (in.position_ids.defined()) return in.position_ids;
  if (in.cu_seqlens.defined()) return AttentionMetadata({.cu_seqlens = in.cu_seqlens}).places(time, options.device());
  const int64_t past = in.cache != nullptr ? in.cache->length() : 0;
  return at::arange(past, past + time, options).unsqueeze(0);
}

Tensor Trunk::with_positions(const Tensor& x, const Tensor& positions) const {
  const int64_t rows = embed_positions_->weight.rows();
  // Looking at a GPU's would wait for it; there the embedding itself fails.
  const int64_t last = positions.is_cpu() ? positions.max().item<int64_t>() : 0;
  if (last >= rows) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("at most ", rows, " tokens: the model has embeddings of no further positions"),
                 .got = cat("position ", last),
                 .next = "shorten the text, or generate fewer tokens"});
  }
  // A captured step also computes rows without a token, at what would be their next position.
  const Tensor inside = positions.is_cpu() ? positions : positions.clamp_max(rows - 1);
  return at::add(x, embed_positions_->forward(inside, x.scalar_type()));
}

ForwardContext Trunk::context_for(const TrunkInput& in, at::ScalarType dtype) {
  const int64_t past = in.cache != nullptr ? in.cache->length() : 0, time = in.input_ids.size(1);
  Positions positions{past, time, in.position_ids};
  if (!positions.ids.defined() && in.cu_seqlens.defined()) {
    positions.ids = packed_places(in.cu_seqlens, time).unsqueeze(0);
  }
  const at::Device device = in.input_ids.device();
  const at::ScalarType table_dtype = rotates_in_float32_ ? at::kFloat : dtype;
  const Tensor padding = real_padding(in);
  const auto tables = [&](const std::optional<RotaryEmbedding>& rotary) {
    return rotary ? rotary->tables(positions, table_dtype, device) : RotaryTables();
  };
  Tensor position;  // on a GPU it would have to be sent there
  if (in.cache != nullptr && time == 1 && device.is_cpu()) position = at::full({1}, past, at::kLong);
  return {.rope = tables(rotary_),
          .sliding_rope = tables(sliding_rotary_),
          .attention = AttentionMetadata({.start = past,
                                          .padding = padding,
                                          .cu_seqlens = in.cu_seqlens,
                                          .max_seqlen = in.max_seqlen > 0 ? in.max_seqlen : time}),
          .real = of_new_tokens(padding, time),
          .seq_idx = in.cu_seqlens.defined() ? packed_sequences(in.cu_seqlens, time).unsqueeze(0) : Tensor(),
          .memory = in.cache,
          .position = position,
          .router_logits = in.router_logits};
}

// Rows stand where their own sequences are. What has no tokens before it attends as a batch without a cache.
ForwardContext Trunk::step_context(const TrunkInput& in, at::ScalarType dtype) {
  const StepBatch& step = *in.step;
  const int64_t time = step.new_tokens;
  Positions positions{
      .start = 0, .length = time, .below = std::max(step.kv_len_bucket, step.capacity), .lengths = step.rope_for};
  if (!step.from_start) positions.ids = step.positions.view({-1, time});  // [1 or rows, time]
  positions.each_row = step.is_static && !step.one_length;
  const at::ScalarType table_dtype = rotates_in_float32_ ? at::kFloat : dtype;
  const auto tables = [&](const std::optional<RotaryEmbedding>& rotary) {
    if (step.rope.defined() && &rotary == &rotary_) return RotaryEmbedding::halves(step.rope);
    return rotary ? rotary->tables(positions, table_dtype, step.ids.device()) : RotaryTables();
  };
  Tensor position;
  if (step.is_ragged) {
    position = step.cache_rows;  // in a cache that is one row of tokens
  } else if (time == 1 && !step.from_start) {
    position = step.one_length ? step.positions.narrow(0, 0, 1) : step.positions;
  }
  const int64_t past = step.from_start ? 0 : *std::min_element(step.lengths.begin(), step.lengths.end()) - time;
  SequenceInfo sequence{.start = past};
  if (step.is_static) sequence.positions = step.one_length ? step.positions : positions.ids;
  if (step.is_ragged || (!step.is_static && !step.from_start)) sequence.step = &step;
  return {.rope = tables(rotary_),
          .sliding_rope = tables(sliding_rotary_),
          .attention = AttentionMetadata(sequence),
          .memory = in.memory,
          .position = position,
          .router_logits = in.router_logits};
}

HiddenState Trunk::through_layers(const Tensor& x, const ForwardContext& context) {
  const bool checkpoints = checkpointing_ && training() && at::GradMode::is_enabled() && context.memory == nullptr;
  HiddenState state{x, {}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool checkpoint = checkpoints && static_cast<int64_t>(i) % checkpointing_->every_n_layers == 0;
    state = checkpoint ? checkpointed(*layers_[i], state, context, checkpointing_->offload)
                       : layers_[i]->forward(state, context);
  }
  return state;
}

Tensor Trunk::normed(const HiddenState& state) {
  return norm_->after(state.x, state.residual).y.to(dtype());  // of a residual in float32 too
}

Tensor Trunk::forward(const TrunkInput& in) {
  check_input(in, {.vocab_size = vocab_size_, .device = embed_tokens.data().device()});
  if (in.step != nullptr) {
    Tensor x = in.step->inputs_embeds.defined() ? in.step->inputs_embeds : embedded(ids_of(in));
    if (embed_positions_) x = with_positions(x, positions_of(in));
    return normed(through_layers(x, step_context(in, x.scalar_type())));
  }
  if (const auto row = documents_in_one_row(in)) {
    return forward(*row).view({in.input_ids.size(0), in.input_ids.size(1), -1});
  }
  const int64_t time = in.input_ids.size(1);
  Tensor x = embedded(in.input_ids);
  if (embed_positions_) x = with_positions(x, positions_of(in));
  x = seeded_dropout(x, embedding_dropout_, training());
  const HiddenState state = through_layers(x, context_for(in, x.scalar_type()));
  if (in.cache != nullptr) in.cache->advance(time);
  return normed(state);
}

std::unique_ptr<Cache> Trunk::make_cache(int64_t reserve) const {
  std::vector<std::unique_ptr<CacheLayer>> parts;
  for (const auto& layer : layers_) parts.push_back(layer->make_cache_layer(reserve));
  return std::make_unique<Cache>(std::move(parts));
}

}  // namespace hotswap
