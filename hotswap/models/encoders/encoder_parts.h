// What encoders share: dropout, embeddings of words, positions and types of tokens, and BERT's block, of which its
// relatives have the same arithmetic under other names.
#pragma once

#include <memory>
#include <vector>

#include "hotswap/layers/activation.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/norm.h"
#include "hotswap/models/encoder_models/bidirectional_attention.h"
#include "hotswap/models/encoder_models/text_family.h"
#include "hotswap/models/encoders/encoder_config.h"

namespace hotswap {

// What every layer of one forward needs to know.
struct EncoderContext {
  AttentionMetadata attention;
  const std::vector<int64_t>& lengths;  // TextBatch's
};

Tensor dropped_out(const Tensor& x, double p, bool training);

// A look-up in which the padding's row gets no gradient, as torch's padding_idx has it.
Tensor looked_up(const Embedding& table, const Tensor& ids, std::optional<int64_t> padding = std::nullopt);

// The words' embeddings plus those of positions and of types, then a norm.
class EncoderEmbeddings : public Module {
 public:
  // counts_from_padding: as RoBERTa, whose positions count the tokens that are none of padding, from its id + 1 on.
  EncoderEmbeddings(const EncoderConfig& config, bool counts_from_padding);
  Tensor forward(const TextBatch& batch) const;  // -> [rows, time, hidden_size]
  Embedding word_embeddings, position_embeddings;

 private:
  Tensor positions(const TextBatch& batch) const;  // [1 or rows, time]
  std::optional<int64_t> pad_;
  double dropout_;
  bool counts_from_padding_;
  std::unique_ptr<Embedding> token_type_embeddings_;  // null: tokens have no types
  LayerNorm norm_;
};

// The names of a block's parts in checkpoints.
struct PostNormNames {
  const char *query, *key, *value, *attention, *attention_output, *attention_norm;
  const char *up, *activation, *down, *output_norm;
};
inline constexpr PostNormNames kBertNames = {"attention.self.query",   "attention.self.key",
                                             "attention.self.value",   "attention.self",
                                             "attention.output.dense", "attention.output.LayerNorm",
                                             "intermediate.dense",     "intermediate.intermediate_act_fn",
                                             "output.dense",           "output.LayerNorm"};

//   hidden = norm(hidden + attention(hidden)); hidden = norm(hidden + mlp(hidden))
class PostNormBlock : public Module {
 public:
  PostNormBlock(const EncoderConfig& config, const PostNormNames& names, bool drops_attention_output = true)
      : PostNormBlock(config, names, drops_attention_output, attention_options(config)) {}
  // `bias`: of the attention, where its options have one. [rows, time, hidden_size] -> the same
  Tensor forward(const Tensor& x, const EncoderContext& context, const ScoreBias& bias = nullptr) const;

 protected:
  static BidirectionalAttentionOptions attention_options(const EncoderConfig& config);
  PostNormBlock(const EncoderConfig& config, const PostNormNames& names, bool drops_attention_output,
                const BidirectionalAttentionOptions& attention);
  Linear query_, key_, value_;

 private:
  double dropout_;
  bool drops_attention_output_;
  BidirectionalAttention attention_;
  Linear attention_output_;
  LayerNorm attention_norm_;
  Linear up_;
  Activation activation_;
  Linear down_;
  LayerNorm output_norm_;
};

// Embeddings and blocks below these names, and a pooler where the task has one: tanh(dense(first token)).
struct PostNormTrunkNames {
  const char* layers;  // "encoder.layer"
  PostNormNames block;
  bool drops_attention_output = true, counts_from_padding = false;
};
class PostNormTrunk : public TextTrunk {
 public:
  PostNormTrunk(const EncoderConfig& config, const PostNormTrunkNames& names, bool with_pooler);
  Tensor forward(const TextBatch& batch, std::vector<Tensor>* hidden_states) override;
  Tensor pooled(const Tensor& hidden, const TextBatch& batch) override;
  Embedding& word_embeddings() override { return embeddings_.word_embeddings; }
  at::ScalarType dtype() const override { return embeddings_.word_embeddings.data().scalar_type(); }

 private:
  EncoderEmbeddings embeddings_;
  std::vector<std::unique_ptr<PostNormBlock>> layers_;
  std::unique_ptr<Linear> pooler_;
};

// decoder(norm(act(dense(hidden)))): of each token, how likely each word is. The decoder is the words' embedding where
// the config ties them; its bias has a name of its own.
struct MaskedLMNames {
  const char *dense, *activation, *norm, *decoder, *bias;
};
class MaskedLMHead : public TextHead {
 public:
  MaskedLMHead(const EncoderConfig& config, Embedding& words, const MaskedLMNames& names, const char* activation);
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch&) override;

 private:
  Linear dense_;
  Activation activation_;
  LayerNorm norm_;
  Linear decoder_;
  Tensor bias_, unread_bias_;  // [vocab_size]; the second undefined where the decoder is tied
};

// classifier(dropout(hidden)): of each token.
class TokenHead : public TextHead {
 public:
  TokenHead(const EncoderConfig& config, double dropout, const char* name = "classifier");
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch&) override;

 private:
  double dropout_;
  Linear classifier_;
};

// The parts that config.json decides for every encoder; trunk and head are the family's.
TextParts encoder_parts(const EncoderConfig& config);

}  // namespace hotswap
