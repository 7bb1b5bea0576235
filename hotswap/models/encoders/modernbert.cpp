// ModernBERT: norms before attention and MLP, a rotary embedding, gated MLPs, and in most layers attention to
// neighbours only.
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/layers/rotary.h"
#include "hotswap/models/config.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/encoders/encoder_parts.h"
#include "hotswap/models/rope_config.h"

namespace hotswap::modernbert {
namespace {

struct Config : EncoderConfig {
  bool norm_bias = false, attention_bias = false, mlp_bias = false, decoder_bias = true, classifier_bias = false;
  double mlp_dropout = 0;
  std::string classifier_activation, classifier_pooling;
  std::vector<bool> is_local;  // a layer each
  int64_t window = 0;          // tokens that a local layer sees to each side
  double cutoff = 2;           // of fresh weights, in standard deviations
  RopeParameters global_rope, local_rope;
};

void read_local_layers(Config& c, const Json& json) {
  const int64_t period = positive(json, "global_attn_every_n_layers", 3);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.is_local.push_back(i % period != 0);
  if (!json.has("layer_types")) return;
  const auto types = json.at<std::vector<std::string>>("layer_types");
  c.is_local.clear();
  for (const std::string& type : types) {
    refuse_if(type != "sliding_attention" && type != "full_attention", json, "layer_types of " + type);
    c.is_local.push_back(type == "sliding_attention");
  }
  if (static_cast<int64_t>(types.size()) == c.num_hidden_layers) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(c.num_hidden_layers, " layer_types, one a layer"),
               .got = cat(types.size(), " in ", json.where()),
               .next = "list one type a layer, or leave layer_types out"});
}

Config read_config(const Json& json) {
  Config c{read_encoder_config(json, {.hidden_act = "hidden_activation",
                                      .hidden_dropout = "embedding_dropout",
                                      .attention_dropout = "attention_dropout",
                                      .layer_norm_eps = "norm_eps",
                                      .type_vocab_size = nullptr,
                                      .eps = 1e-5,
                                      .dropout = 0,
                                      .pad_token_id = 50283})};
  c.classifier_dropout = read_dropout(json, "classifier_dropout", 0);
  c.mlp_dropout = read_dropout(json, "mlp_dropout", 0);
  c.norm_bias = json.get<bool>("norm_bias", false);
  c.attention_bias = json.get<bool>("attention_bias", false);
  c.mlp_bias = json.get<bool>("mlp_bias", false);
  c.decoder_bias = json.get<bool>("decoder_bias", true);
  c.classifier_bias = json.get<bool>("classifier_bias", false);
  c.classifier_activation = json.get<std::string>("classifier_activation", "gelu");
  c.classifier_pooling = json.get<std::string>("classifier_pooling", "cls");
  refuse_if(c.classifier_pooling != "cls" && c.classifier_pooling != "mean", json,
            "classifier_pooling = " + c.classifier_pooling);
  refuse_if(flag(json, "sparse_prediction", false), json, "sparse_prediction = true");
  activation_kind(c.classifier_activation, cat(json.where(), ": classifier_activation"));
  c.window = positive(json, "local_attention", 128) / 2;
  c.cutoff = positive_number(json, "initializer_cutoff_factor", 2);
  read_local_layers(c, json);
  if (c.head_dim() % 2 != 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "heads of an even width: rotary embeddings turn pairs",
                 .got = cat(c.head_dim(), " in ", json.where()),
                 .next = "set hidden_size and num_attention_heads as the weights have them"});
  }
  ConfiguredRopes ropes = read_ropes(json, c.head_dim(),
                                     {.theta = positive_number(json, "global_rope_theta", 160000),
                                      .sliding_theta = positive_number(json, "local_rope_theta", 10000)});
  c.global_rope = std::move(ropes.all);
  c.local_rope = *std::move(ropes.sliding);
  return c;
}

// Normal, and none of it further from 0 than `cutoff` standard deviations.
Init cut_normal(const Config& c, double std) {
  const double edge = std::erf(c.cutoff / std::sqrt(2.0));
  return Init::drawn([std, edge](Tensor& fresh, const at::Generator& generator) {
    fresh.uniform_(-edge, edge, generator);
    fresh.copy_(at::mul(at::erfinv(fresh), std * std::sqrt(2.0)));
  });
}
Init into(const Config& c) { return cut_normal(c, c.initializer_range); }
Init out_of(const Config& c) {
  return cut_normal(c, c.initializer_range / std::sqrt(2.0 * static_cast<double>(c.num_hidden_layers)));
}

// act(gate) * up of [gate, up] side by side. With GELU its slot is GeluAndMul; other activations go through their own.
class Gate : public Module {
 public:
  explicit Gate(const std::string& activation) : act_(activation_kind(activation, "hidden_activation")) {
    if (activation == "gelu") {
      gated_ = std::make_unique<Slot<ActivationForward>>(this, "GeluAndMul", "act_and_mul/1",
                                                         [this](const Tensor& x) { return by_parts(x); });
    }
    own("act", act_);
  }
  Tensor forward(const Tensor& x) const { return gated_ ? (*gated_)(x) : by_parts(x); }

 private:
  Tensor by_parts(const Tensor& x) const {
    const int64_t half = x.size(-1) / 2;
    return at::mul(act_.forward(x.narrow(-1, 0, half)), x.narrow(-1, half, half));
  }
  Activation act_;
  std::unique_ptr<Slot<ActivationForward>> gated_;
};

struct Context {
  EncoderContext encoder;
  RotaryTables global, local;
};

class Layer : public Module {
 public:
  Layer(const Config& c, int64_t index)
      : is_local_(c.is_local.at(index)),
        attention_dropout_(c.attention_dropout),
        mlp_dropout_(c.mlp_dropout),
        qkv_(c.hidden_size, 3 * c.hidden_size, c.attention_bias, into(c)),
        attention_({.num_heads = c.num_attention_heads,
                    .head_dim = c.head_dim(),
                    .window = is_local_ ? c.window : 0,
                    .dropout = c.attention_dropout}),
        output_(c.hidden_size, c.hidden_size, c.attention_bias, out_of(c)),
        mlp_norm_(c.hidden_size, c.layer_norm_eps, c.norm_bias),
        up_(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias, into(c)),
        gate_(c.hidden_act),
        down_(c.intermediate_size, c.hidden_size, c.mlp_bias, out_of(c)) {
    if (index > 0) {  // what the first one reads has been through a norm
      attention_norm_ = std::make_unique<LayerNorm>(c.hidden_size, c.layer_norm_eps, c.norm_bias);
      own("attn_norm", *attention_norm_);
    }
    own("attn.Wqkv", qkv_);
    own("attn", attention_);
    own("attn.rotary_fn", rotary_);
    own("attn.Wo", output_);
    own("mlp_norm", mlp_norm_);
    own("mlp.Wi", up_);
    own("mlp", gate_);
    own("mlp.Wo", down_);
  }

  Tensor forward(const Tensor& x, const Context& context) const {
    const Tensor seen = attended(attention_norm_ ? attention_norm_->forward(x) : x, context);
    const Tensor h = at::add(x, dropped_out(output_.forward(seen), attention_dropout_, training()));
    const Tensor gated = gate_.forward(up_.forward(mlp_norm_.forward(h)));
    return at::add(h, down_.forward(dropped_out(gated, mlp_dropout_, training())));
  }

 private:
  Tensor attended(const Tensor& x, const Context& context) const {
    const int64_t width = x.size(-1);
    const Tensor qkv = qkv_.forward(x);
    const auto part = [&](int64_t i) {
      return qkv.narrow(-1, i * width, width).unflatten(-1, {attention_.num_heads(), -1}).transpose(1, 2);
    };
    const RotaryTables& tables = is_local_ ? context.local : context.global;
    // In float32, by tables of the model's type, and rounded once.
    const RotaryTables wide{tables.cos.to(at::kFloat), tables.sin.to(at::kFloat)};
    const auto [q, k] = rotary_.forward(part(0).to(at::kFloat), part(1).to(at::kFloat), wide);
    const auto heads = [&](const Tensor& heads_first) { return heads_first.to(x.scalar_type()).transpose(1, 2); };
    return attention_.forward(heads(q), heads(k), heads(part(2)), context.encoder.attention, context.encoder.lengths);
  }

  bool is_local_;
  double attention_dropout_, mlp_dropout_;
  std::unique_ptr<LayerNorm> attention_norm_;
  Linear qkv_;
  BidirectionalAttention attention_;
  RotaryPosEmb rotary_;
  Linear output_;
  LayerNorm mlp_norm_;
  Linear up_;
  Gate gate_;
  Linear down_;
};

class ModernTrunk : public TextTrunk {
 public:
  explicit ModernTrunk(const Config& c)
      : pad_(c.pad_token_id),
        dropout_(c.hidden_dropout),
        words_(c.vocab_size, c.hidden_size),
        norm_(c.hidden_size, c.layer_norm_eps, c.norm_bias),
        final_norm_(c.hidden_size, c.layer_norm_eps, c.norm_bias),
        global_(c.global_rope),
        local_(c.local_rope) {
    own("embeddings.tok_embeddings", words_);
    own("embeddings.norm", norm_);
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      layers_.push_back(std::make_unique<Layer>(c, i));
      own(cat("layers.", i), *layers_.back());
    }
    own("final_norm", final_norm_);
  }

  Tensor forward(const TextBatch& batch, std::vector<Tensor>* hidden_states) override {
    const Positions positions{.start = 0,
                              .length = batch.ids.size(1),
                              .ids = batch.position_ids.defined() ? batch.position_ids : batch.positions()};
    const auto tables = [&](const RotaryEmbedding& rotary) {
      return rotary.tables(positions, dtype(), batch.ids.device());
    };
    const Context context{.encoder = {.attention = batch.attention(), .lengths = batch.lengths},
                          .global = tables(global_),
                          .local = tables(local_)};
    Tensor x = dropped_out(norm_.forward(looked_up(words_, batch.ids, pad_)), dropout_, training());
    for (const auto& layer : layers_) {
      if (hidden_states != nullptr) hidden_states->push_back(x);
      x = layer->forward(x, context);
    }
    x = final_norm_.forward(x);
    if (hidden_states != nullptr) hidden_states->push_back(x);
    return x;
  }
  Embedding& word_embeddings() override { return words_; }
  at::ScalarType dtype() const override { return words_.data().scalar_type(); }

 private:
  std::optional<int64_t> pad_;
  double dropout_;
  Embedding words_;
  LayerNorm norm_;
  std::vector<std::unique_ptr<Layer>> layers_;
  LayerNorm final_norm_;
  RotaryEmbedding global_, local_;
};

// norm(act(dense(x))), below "head", with which every task begins.
class PredictionHead : public Module {
 public:
  explicit PredictionHead(const Config& c)
      : dense_(c.hidden_size, c.hidden_size, c.classifier_bias, out_of(c)),
        act_(activation_kind(c.classifier_activation, "classifier_activation")),
        norm_(c.hidden_size, c.layer_norm_eps, c.norm_bias) {
    own("dense", dense_);
    own("act", act_);
    own("norm", norm_);
  }
  Tensor forward(const Tensor& x) const { return norm_.forward(act_.forward(dense_.forward(x))); }

 private:
  Linear dense_;
  Activation act_;
  LayerNorm norm_;
};

// The mean of each sequence's tokens. [rows, time, dim] -> [sequences, dim]
Tensor mean_tokens(const Tensor& hidden, const TextBatch& batch) {
  if (batch.packed()) {
    std::vector<Tensor> means;
    int64_t begin = 0;
    for (const int64_t length : batch.lengths) {
      means.push_back(hidden.narrow(1, begin, length).mean(1));
      begin += length;
    }
    return joined_rows(std::move(means));
  }
  if (!batch.padding.defined()) return hidden.mean(1);
  const Tensor kept = batch.padding.unsqueeze(-1);
  return at::div(at::mul(hidden, kept).sum(1), batch.padding.sum(1, /*keepdim=*/true));
}

class ClassHead : public TextHead {
 public:
  ClassHead(const Config& c, bool of_text)
      : of_text_(of_text),
        by_mean_(c.classifier_pooling == "mean"),
        dropout_(c.classifier_dropout),
        head_(c),
        classifier_(c.hidden_size, c.num_labels, /*with_bias=*/true,
                    cut_normal(c, std::pow(static_cast<double>(c.hidden_size), -0.5))) {
    own("head", head_);
    own("classifier", classifier_);
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch& batch) override {
    const Tensor x = !of_text_ ? hidden : by_mean_ ? mean_tokens(hidden, batch) : batch.first_tokens(hidden);
    return classifier_.forward(dropped_out(head_.forward(x), dropout_, training()));
  }

 private:
  bool of_text_, by_mean_;
  double dropout_;
  PredictionHead head_;
  Linear classifier_;
};

class MaskedHead : public TextHead {
 public:
  MaskedHead(const Config& c, Embedding& words)
      : head_(c),
        decoder_(c.tie_word_embeddings ? Linear(words.weight)
                                       : Linear(c.hidden_size, c.vocab_size, /*with_bias=*/false, out_of(c))) {
    own("head", head_);
    own("decoder", decoder_);
    if (c.decoder_bias) own("decoder.bias", bias_, {c.vocab_size}, Init::constant(0));
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch&) override {
    const Tensor scores = decoder_.forward(head_.forward(hidden));
    return bias_.defined() ? at::add(scores, bias_) : scores;
  }

 private:
  PredictionHead head_;
  Linear decoder_;
  Tensor bias_;  // [vocab_size], or undefined
};

TextParts make(const Json& json, TextTask task) {
  const Config c = read_config(json);
  TextParts parts = encoder_parts(c);
  parts.has_position_table = false;
  parts.trunk = std::make_unique<ModernTrunk>(c);
  if (task == TextTask::kSequenceClassification) parts.head = std::make_unique<ClassHead>(c, /*of_text=*/true);
  if (task == TextTask::kTokenClassification) parts.head = std::make_unique<ClassHead>(c, /*of_text=*/false);
  if (task == TextTask::kMaskedLM) parts.head = std::make_unique<MaskedHead>(c, parts.trunk->word_embeddings());
  return parts;
}

}  // namespace

const RegisteredTextFamily kModernBert({.model_type = "modernbert",
                                        .class_stem = "ModernBert",
                                        .prefix = "model",
                                        .make = make,
                                        .tasks = {TextTask::kBase, TextTask::kSequenceClassification,
                                                  TextTask::kTokenClassification, TextTask::kMaskedLM}});

}  // namespace hotswap::modernbert
