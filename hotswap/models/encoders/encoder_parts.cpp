#include "hotswap/models/encoders/encoder_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include "hotswap/base/error.h"

namespace hotswap {

Tensor dropped_out(const Tensor& x, double p, bool training) {
  return training && p > 0 ? at::dropout(x, p, /*train=*/true) : x;
}

Tensor looked_up(const Embedding& table, const Tensor& ids, std::optional<int64_t> padding) {
  return at::embedding(table.data(), ids, padding.value_or(-1));
}

EncoderEmbeddings::EncoderEmbeddings(const EncoderConfig& c, bool counts_from_padding)
    : word_embeddings(c.vocab_size, c.hidden_size),
      position_embeddings(c.max_position_embeddings, c.hidden_size),
      pad_(c.pad_token_id),
      dropout_(c.hidden_dropout),
      counts_from_padding_(counts_from_padding),
      norm_(c.hidden_size, c.layer_norm_eps) {
  own("word_embeddings", word_embeddings);
  own("position_embeddings", position_embeddings);
  if (c.type_vocab_size > 0) {
    token_type_embeddings_ = std::make_unique<Embedding>(c.type_vocab_size, c.hidden_size);
    own("token_type_embeddings", *token_type_embeddings_);
  }
  own("LayerNorm", norm_);
}

Tensor EncoderEmbeddings::positions(const TextBatch& batch) const {
  if (batch.position_ids.defined()) return batch.position_ids;
  if (!counts_from_padding_) return batch.positions();
  const int64_t pad = pad_.value_or(0);
  if (batch.packed()) return at::add(batch.positions(), pad + 1);  // no token of it is padding
  const Tensor real = at::ne(batch.ids, pad).to(at::kLong);
  return at::add(at::mul(at::cumsum(real, 1), real), pad);
}

Tensor EncoderEmbeddings::forward(const TextBatch& batch) const {
  Tensor x = looked_up(word_embeddings, batch.ids, pad_);
  if (token_type_embeddings_) {
    const Tensor types = batch.token_type_ids.defined() ? batch.token_type_ids : at::zeros_like(batch.ids);
    x = at::add(x, looked_up(*token_type_embeddings_, types));
  }
  x = at::add(x, looked_up(position_embeddings, positions(batch), counts_from_padding_ ? pad_ : std::nullopt));
  return dropped_out(norm_.forward(x), dropout_, training());
}

BidirectionalAttentionOptions PostNormBlock::attention_options(const EncoderConfig& c) {
  return {.num_heads = c.num_attention_heads, .head_dim = c.head_dim(), .dropout = c.attention_dropout};
}

PostNormBlock::PostNormBlock(const EncoderConfig& c, const PostNormNames& names, bool drops_attention_output,
                             const BidirectionalAttentionOptions& attention)
    : query_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
      key_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
      value_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
      dropout_(c.hidden_dropout),
      drops_attention_output_(drops_attention_output),
      attention_(attention),
      attention_output_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
      attention_norm_(c.hidden_size, c.layer_norm_eps),
      up_(c.hidden_size, c.intermediate_size, /*with_bias=*/true),
      activation_(activation_kind(c.hidden_act, "hidden_act")),
      down_(c.intermediate_size, c.hidden_size, /*with_bias=*/true),
      output_norm_(c.hidden_size, c.layer_norm_eps) {
  own(names.query, query_);
  own(names.key, key_);
  own(names.value, value_);
  own(names.attention, attention_);
  own(names.attention_output, attention_output_);
  own(names.attention_norm, attention_norm_);
  own(names.up, up_);
  own(names.activation, activation_);
  own(names.down, down_);
  own(names.output_norm, output_norm_);
}

Tensor PostNormBlock::forward(const Tensor& x, const EncoderContext& context, const ScoreBias& bias) const {
  const auto heads = [&](const Linear& projection) { return attention_.heads(projection.forward(x)); };
  const Tensor seen =
      attention_.forward(heads(query_), heads(key_), heads(value_), context.attention, context.lengths, bias);
  const Tensor attended =
      dropped_out(attention_output_.forward(seen), drops_attention_output_ ? dropout_ : 0, training());
  const Tensor h = attention_norm_.forward(at::add(attended, x));
  const Tensor fed = dropped_out(down_.forward(activation_.forward(up_.forward(h))), dropout_, training());
  return output_norm_.forward(at::add(fed, h));
}

PostNormTrunk::PostNormTrunk(const EncoderConfig& c, const PostNormTrunkNames& names, bool with_pooler)
    : embeddings_(c, names.counts_from_padding) {
  own("embeddings", embeddings_);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<PostNormBlock>(c, names.block, names.drops_attention_output));
    own(cat(names.layers, ".", i), *layers_.back());
  }
  if (!with_pooler) return;
  pooler_ = std::make_unique<Linear>(c.hidden_size, c.hidden_size, /*with_bias=*/true);
  own("pooler.dense", *pooler_);
}

Tensor PostNormTrunk::forward(const TextBatch& batch, std::vector<Tensor>* hidden_states) {
  const EncoderContext context{.attention = batch.attention(), .lengths = batch.lengths};
  Tensor x = embeddings_.forward(batch);
  if (hidden_states != nullptr) hidden_states->push_back(x);
  for (const auto& layer : layers_) {
    x = layer->forward(x, context);
    if (hidden_states != nullptr) hidden_states->push_back(x);
  }
  return x;
}

Tensor PostNormTrunk::pooled(const Tensor& hidden, const TextBatch& batch) {
  return pooler_ ? at::tanh(pooler_->forward(batch.first_tokens(hidden))) : Tensor();
}

MaskedLMHead::MaskedLMHead(const EncoderConfig& c, Embedding& words, const MaskedLMNames& names, const char* activation)
    : dense_(c.hidden_size, words.data().size(1), /*with_bias=*/true),
      activation_(activation_kind(activation, "hidden_act")),
      norm_(words.data().size(1), c.layer_norm_eps),
      decoder_(c.tie_word_embeddings ? Linear(words.weight)
                                     : Linear(words.data().size(1), c.vocab_size, /*with_bias=*/false)) {
  // A decoder that is not tied has a bias of its own, and the other one stays in files, unread.
  const std::string of_decoder = cat(names.decoder, ".bias");
  if (!c.tie_word_embeddings && of_decoder != names.bias)
    own(names.bias, unread_bias_, {c.vocab_size}, Init::constant(0));
  own(c.tie_word_embeddings ? names.bias : of_decoder, bias_, {c.vocab_size}, Init::constant(0));
  own(names.dense, dense_);
  own(names.activation, activation_);
  own(names.norm, norm_);
  own(names.decoder, decoder_);
}

Tensor MaskedLMHead::logits(const Tensor& hidden, const Tensor&, const TextBatch&) {
  return at::add(decoder_.forward(norm_.forward(activation_.forward(dense_.forward(hidden)))), bias_);
}

TokenHead::TokenHead(const EncoderConfig& c, double dropout, const char* name)
    : dropout_(dropout), classifier_(c.hidden_size, c.num_labels, /*with_bias=*/true) {
  own(name, classifier_);
}

Tensor TokenHead::logits(const Tensor& hidden, const Tensor&, const TextBatch&) {
  return classifier_.forward(dropped_out(hidden, dropout_, training()));
}

TextParts encoder_parts(const EncoderConfig& c) {
  return {.trunk = nullptr,
          .head = nullptr,
          .vocab_size = c.vocab_size,
          .hidden_size = c.hidden_size,
          .num_labels = c.num_labels,
          .type_vocab_size = c.type_vocab_size,
          .max_positions = c.max_position_embeddings,
          .initializer_range = c.initializer_range};
}

}  // namespace hotswap
