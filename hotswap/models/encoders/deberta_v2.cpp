// DeBERTa-v2 and v3: BERT's block, in whose attention words also meet the distances between them. Distances have
// embeddings, which all layers share; a layer multiplies them by its own projections, or by those of its words.
#include <ATen/ops/add.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/config.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/encoders/encoder_parts.h"
#include "hotswap/models/encoders/relative_positions.h"

namespace hotswap::deberta {
namespace {

struct Config : EncoderConfig {
  int64_t embedding_size = 0;
  bool has_positions = true;                                    // a learned table of them, added to what is embedded
  bool has_distances = false;                                   // all that follows but the last five
  bool words_to_distances = false, distances_to_words = false;  // which scores there are beside those of words
  bool shares_projections = false, norms_distances = false;
  DistanceRows distances;
  int64_t conv_kernel = 0, conv_groups = 1;  // 0: no convolution beside the first layer
  std::string conv_act, pooler_act;
  double pooler_dropout = 0;

  // Scores are sums of as many products.
  double score_scale() const {
    const int64_t products = 1 + (words_to_distances ? 1 : 0) + (distances_to_words ? 1 : 0);
    return 1 / std::sqrt(static_cast<double>(head_dim() * products));
  }
};

// "a|b", or a list.
std::vector<std::string> names_in(const Json& json, const char* key) {
  const auto value = json.find(key);
  if (!value) return {};
  if (value->is_array()) return value->as<std::vector<std::string>>();
  std::vector<std::string> names = {""};
  for (const char c : value->as<std::string>()) {
    if (c == '|') {
      names.emplace_back();
    } else if (c != ' ') {
      names.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void read_distances(Config& c, const Json& json) {
  const std::vector<std::string> scores = names_in(json, "pos_att_type");
  for (const std::string& name : scores) {
    refuse_if(name != "c2p" && name != "p2c" && !name.empty(), json, "pos_att_type of " + name);
  }
  c.words_to_distances = contains(scores, "c2p");
  c.distances_to_words = contains(scores, "p2c");
  c.has_distances = json.get<bool>("relative_attention", false);
  c.shares_projections = json.get<bool>("share_att_key", false);
  c.norms_distances = contains(names_in(json, "norm_rel_ebd"), "layer_norm");
  const auto longest = json.get<int64_t>("max_relative_positions", -1);
  c.distances.max_distance = longest < 1 ? c.max_position_embeddings : positive(json, "max_relative_positions");
  const auto buckets = json.get<int64_t>("position_buckets", -1);
  c.distances.buckets = buckets < 1 ? 0 : positive(json, "position_buckets");
  if (c.distances.buckets == 0 || (buckets > 1 && c.distances.max_distance - 1 > buckets / 2)) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "position_buckets of at least 2, half of which is less than max_relative_positions - 1",
               .got = cat(buckets, " and ", c.distances.max_distance, " in ", json.where()),
               .next = "set both as the weights have them"});
}

void read_convolution(Config& c, const Json& json) {
  if (json.get<int64_t>("conv_kernel_size", 0) == 0) return;
  c.conv_kernel = positive(json, "conv_kernel_size");
  c.conv_groups = positive(json, "conv_groups", 1);
  c.conv_act = json.get<std::string>("conv_act", "tanh");
  activation_kind(c.conv_act, cat(json.where(), ": conv_act"));
  if (c.conv_kernel % 2 == 1 && c.hidden_size % c.conv_groups == 0) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "an odd conv_kernel_size, and conv_groups that divide hidden_size",
               .got = cat(c.conv_kernel, " and ", c.conv_groups, " in ", json.where()),
               .next = "set both as the weights have them"});
}

Config read_config(const Json& json) {
  Config c{read_encoder_config(json, {.type_vocab_size = nullptr, .eps = 1e-7})};
  if (json.get<int64_t>("type_vocab_size", 0) != 0) c.type_vocab_size = positive(json, "type_vocab_size");
  c.embedding_size = positive(json, "embedding_size", c.hidden_size);
  c.classifier_dropout = read_dropout(json, "cls_dropout", c.hidden_dropout);
  c.has_positions = json.get<bool>("position_biased_input", true);
  const auto same = [&](const char* key, int64_t size) {
    refuse_if(json.get<int64_t>(key, size) != size, json, cat(key, " other than ", size));
  };
  same("attention_head_size", c.head_dim());
  same("pooler_hidden_size", c.hidden_size);
  c.pooler_act = json.get<std::string>("pooler_hidden_act", "gelu");
  activation_kind(c.pooler_act, cat(json.where(), ": pooler_hidden_act"));
  c.pooler_dropout = read_dropout(json, "pooler_dropout", 0);
  read_distances(c, json);
  read_convolution(c, json);
  return c;
}

// Padding becomes 0. x: [rows, time, dim]
Tensor zero_at_padding(const Tensor& x, const TextBatch& batch) {
  return batch.padding.defined() ? at::mul(x, batch.padding.unsqueeze(-1)) : x;
}

class Embeddings : public Module {
 public:
  explicit Embeddings(const Config& c)
      : words(c.vocab_size, c.embedding_size),
        pad_(c.pad_token_id),
        dropout_(c.hidden_dropout),
        norm_(c.hidden_size, c.layer_norm_eps) {
    own("word_embeddings", words);
    const auto table = [&](const char* name, int64_t rows) {
      auto made = std::make_unique<Embedding>(rows, c.embedding_size);
      own(name, *made);
      return made;
    };
    if (c.has_positions) positions_ = table("position_embeddings", c.max_position_embeddings);
    if (c.type_vocab_size > 0) types_ = table("token_type_embeddings", c.type_vocab_size);
    if (c.embedding_size != c.hidden_size) {
      projection_ = std::make_unique<Linear>(c.embedding_size, c.hidden_size, /*with_bias=*/false);
      own("embed_proj", *projection_);
    }
    own("LayerNorm", norm_);
  }
  Tensor forward(const TextBatch& batch) const {  // -> [rows, time, hidden_size]
    Tensor x = looked_up(words, batch.ids, pad_);
    if (positions_) {
      x = at::add(x, looked_up(*positions_, batch.position_ids.defined() ? batch.position_ids : batch.positions()));
    }
    if (types_) {
      const Tensor types = batch.token_type_ids.defined() ? batch.token_type_ids : at::zeros_like(batch.ids);
      x = at::add(x, looked_up(*types_, types));
    }
    if (projection_) x = projection_->forward(x);
    return dropped_out(zero_at_padding(norm_.forward(x), batch), dropout_, training());
  }
  Embedding words;

 private:
  std::optional<int64_t> pad_;
  double dropout_;
  std::unique_ptr<Embedding> positions_, types_;  // null: the model has none
  std::unique_ptr<Linear> projection_;
  LayerNorm norm_;
};

// The distances of a forward's tokens, and their embeddings [distances, hidden_size].
struct Distances {
  RelativePositions positions;
  Tensor embedded;
};

constexpr PostNormNames kNames = {"attention.self.query_proj",
                                  "attention.self.key_proj",
                                  "attention.self.value_proj",
                                  kBertNames.attention,
                                  kBertNames.attention_output,
                                  kBertNames.attention_norm,
                                  kBertNames.up,
                                  kBertNames.activation,
                                  kBertNames.down,
                                  kBertNames.output_norm};

class DebertaBlock : public PostNormBlock {
 public:
  explicit DebertaBlock(const Config& c)
      : PostNormBlock(c, kNames, /*drops_attention_output=*/true, options_of(c)),
        heads_(c.num_attention_heads),
        scale_(c.score_scale()),
        dropout_(c.hidden_dropout) {
    if (!c.has_distances) return;
    key_of_distances_ = projection(c, c.words_to_distances, key_, "attention.self.pos_key_proj");
    query_of_distances_ = projection(c, c.distances_to_words, query_, "attention.self.pos_query_proj");
  }

  Tensor forward(const Tensor& x, const EncoderContext& context, const Distances* distances) const {
    if (key_of_distances_ == nullptr && query_of_distances_ == nullptr) return PostNormBlock::forward(x, context);
    const Tensor embedded = dropped_out(distances->embedded, dropout_, training());
    const auto projected = [&](const Linear* projection) {  // [heads, head_dim, distances]
      return projection != nullptr ? projection->forward(embedded).unflatten(1, {heads_, -1}).permute({1, 2, 0})
                                   : Tensor();
    };
    const Tensor keys = projected(key_of_distances_), queries = projected(query_of_distances_);
    return PostNormBlock::forward(x, context, [&](const Tensor& q, const Tensor& k) {
      const Tensor& index = distances->positions.index(q.size(1));
      Tensor bias;
      if (keys.defined()) bias = scores(q, keys, index);
      if (queries.defined()) {
        const Tensor of_keys = scores(k, queries, index.transpose(0, 1)).transpose(2, 3);
        bias = bias.defined() ? at::add(bias, of_keys) : of_keys;
      }
      return bias;
    });
  }

 private:
  static BidirectionalAttentionOptions options_of(const Config& c) {
    BidirectionalAttentionOptions options = attention_options(c);
    options.scale = c.score_scale();
    options.biased = c.has_distances && (c.words_to_distances || c.distances_to_words);
    return options;
  }
  const Linear* projection(const Config& c, bool needed, const Linear& of_words, const char* name) {
    if (!needed) return nullptr;
    if (c.shares_projections) return &of_words;
    own_projections_.push_back(std::make_unique<Linear>(c.hidden_size, c.hidden_size, /*with_bias=*/true));
    own(name, *own_projections_.back());
    return own_projections_.back().get();
  }
  // Of each token with the distances from it. x: [rows, time, heads, head_dim], distances: [heads, head_dim,
  // distances], index: [time, time] -> [rows, heads, time, time]
  Tensor scores(const Tensor& x, const Tensor& distances, const Tensor& index) const {
    const Tensor all = at::matmul(at::mul(x, scale_).transpose(1, 2), distances);
    return at::gather(all, 3, index.expand({all.size(0), all.size(1), -1, -1}));
  }

  int64_t heads_;
  double scale_, dropout_;
  std::vector<std::unique_ptr<Linear>> own_projections_;
  const Linear *key_of_distances_ = nullptr, *query_of_distances_ = nullptr;  // null: no such scores
};

// Beside the first layer: norm(what it returns + act(convolution of what is embedded)).
class Convolution : public Module {
 public:
  explicit Convolution(const Config& c)
      : groups_(c.conv_groups),
        dropout_(c.hidden_dropout),
        act_(activation_kind(c.conv_act, "conv_act")),
        norm_(c.hidden_size, c.layer_norm_eps) {
    own("conv.weight", weight_, {c.hidden_size, c.hidden_size / c.conv_groups, c.conv_kernel});
    own("conv.bias", bias_, {c.hidden_size}, Init::constant(0));
    own("conv_act", act_);
    own("LayerNorm", norm_);
  }
  Tensor forward(const Tensor& embedded, const Tensor& x, const TextBatch& batch) const {
    const auto convolved = [&](const Tensor& part) {  // [sequences, length, hidden_size]
      return at::conv1d(part.transpose(1, 2), weight_, bias_, /*stride=*/1, /*padding=*/weight_.size(2) / 2,
                        /*dilation=*/1, groups_)
          .transpose(1, 2);
    };
    const Tensor seen =
        zero_at_padding(batch.packed() ? by_length(batch.lengths, convolved, embedded) : convolved(embedded), batch);
    return zero_at_padding(norm_.forward(at::add(x, act_.forward(dropped_out(seen, dropout_, training())))), batch);
  }

 private:
  int64_t groups_;
  double dropout_;
  Tensor weight_, bias_;  // [hidden_size, hidden_size / groups, kernel], [hidden_size]
  Activation act_;
  LayerNorm norm_;
};

class DebertaTrunk : public TextTrunk {
 public:
  explicit DebertaTrunk(const Config& c) : rows_(c.distances), embeddings_(c) {
    own("embeddings", embeddings_);
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      layers_.push_back(std::make_unique<DebertaBlock>(c));
      own(cat("encoder.layer.", i), *layers_.back());
    }
    if (c.has_distances) {
      distances_ = std::make_unique<Embedding>(c.distances.rows(), c.hidden_size);
      own("encoder.rel_embeddings", *distances_);
    }
    if (c.norms_distances) {
      distance_norm_ = std::make_unique<LayerNorm>(c.hidden_size, c.layer_norm_eps);
      own("encoder.LayerNorm", *distance_norm_);
    }
    if (c.conv_kernel == 0) return;
    convolution_ = std::make_unique<Convolution>(c);
    own("encoder.conv", *convolution_);
  }

  Tensor forward(const TextBatch& batch, std::vector<Tensor>* hidden_states) override {
    const EncoderContext context{.attention = batch.attention(), .lengths = batch.lengths};
    const std::optional<Distances> distances = distances_of(batch);
    const Tensor embedded = embeddings_.forward(batch);
    Tensor x = embedded;
    if (hidden_states != nullptr) hidden_states->push_back(x);
    for (const auto& layer : layers_) {
      x = layer->forward(x, context, distances ? &*distances : nullptr);
      if (convolution_ && layer == layers_.front()) x = convolution_->forward(embedded, x, batch);
      if (hidden_states != nullptr) hidden_states->push_back(x);
    }
    return x;
  }
  Embedding& word_embeddings() override { return embeddings_.words; }
  at::ScalarType dtype() const override { return embeddings_.words.data().scalar_type(); }

 private:
  std::optional<Distances> distances_of(const TextBatch& batch) const {
    if (!distances_) return std::nullopt;
    const std::vector<int64_t> lengths = batch.packed() ? batch.lengths : std::vector<int64_t>{batch.ids.size(1)};
    RelativePositions positions(rows_, lengths, batch.ids.device());
    const Tensor table = positions.cut(distances_->data());
    return Distances{std::move(positions), distance_norm_ ? distance_norm_->forward(table) : table};
  }

  DistanceRows rows_;
  Embeddings embeddings_;
  std::vector<std::unique_ptr<DebertaBlock>> layers_;
  std::unique_ptr<Embedding> distances_;      // null: attention is BERT's
  std::unique_ptr<LayerNorm> distance_norm_;  // null: none
  std::unique_ptr<Convolution> convolution_;  // null: none
};

// classifier(dropout(act(dense(dropout(first token))))): of a whole text.
class SequenceHead : public TextHead {
 public:
  explicit SequenceHead(const Config& c)
      : pooler_dropout_(c.pooler_dropout),
        dropout_(c.classifier_dropout),
        dense_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
        act_(activation_kind(c.pooler_act, "pooler_hidden_act")),
        classifier_(c.hidden_size, c.num_labels, /*with_bias=*/true) {
    own("pooler.dense", dense_);
    own("pooler", act_);
    own("classifier", classifier_);
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch& batch) override {
    const Tensor first = dropped_out(batch.first_tokens(hidden), pooler_dropout_, training());
    return classifier_.forward(dropped_out(act_.forward(dense_.forward(first)), dropout_, training()));
  }

 private:
  double pooler_dropout_, dropout_;
  Linear dense_;
  Activation act_;
  Linear classifier_;
};

constexpr MaskedLMNames kLegacyHead = {"cls.predictions.transform.dense", "cls.predictions.transform.transform_act_fn",
                                       "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                                       "cls.predictions.bias"};
constexpr MaskedLMNames kHead = {"lm_predictions.lm_head.dense", "lm_predictions.lm_head.transform_act_fn",
                                 "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head",
                                 "lm_predictions.lm_head.bias"};

// Today's head multiplies by the words' embeddings whatever tie_word_embeddings is.
std::unique_ptr<TextHead> masked_head(Config c, const Json& json, Embedding& words) {
  const bool legacy = json.get<bool>("legacy", true);
  refuse_if(!legacy && c.embedding_size != c.hidden_size, json, "embedding_size with legacy = false");
  c.tie_word_embeddings = c.tie_word_embeddings || !legacy;
  return std::make_unique<MaskedLMHead>(c, words, legacy ? kLegacyHead : kHead, c.hidden_act.c_str());
}

TextParts make(const Json& json, TextTask task) {
  const Config c = read_config(json);
  TextParts parts = encoder_parts(c);
  parts.has_position_table = c.has_positions;
  parts.soft_labels = true;
  parts.trunk = std::make_unique<DebertaTrunk>(c);
  parts.stock_attention = stock_attention_of(*parts.trunk);
  if (task == TextTask::kSequenceClassification) parts.head = std::make_unique<SequenceHead>(c);
  if (task == TextTask::kTokenClassification) parts.head = std::make_unique<TokenHead>(c, c.hidden_dropout);
  if (task == TextTask::kMaskedLM) parts.head = masked_head(c, json, parts.trunk->word_embeddings());
  return parts;
}

}  // namespace

const RegisteredTextFamily kDebertaV2({.model_type = "deberta-v2",
                                       .class_stem = "DebertaV2",
                                       .prefix = "deberta",
                                       .make = make,
                                       .tasks = {TextTask::kBase, TextTask::kSequenceClassification,
                                                 TextTask::kTokenClassification, TextTask::kMaskedLM},
                                       .leaves_out = {"embeddings.position_embeddings.weight"}});

}  // namespace hotswap::deberta
