// DistilBERT: BERT's block under other names, without types of tokens and without a pooler.
#include <ATen/ops/relu.h>

#include "hotswap/models/config.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/encoders/encoder_parts.h"

namespace hotswap::distilbert {
namespace {

constexpr PostNormNames kBlock = {"attention.q_lin",   "attention.k_lin",  "attention.v_lin", "attention",
                                  "attention.out_lin", "sa_layer_norm",    "ffn.lin1",        "ffn.activation",
                                  "ffn.lin2",          "output_layer_norm"};
constexpr MaskedLMNames kMaskedLM = {"vocab_transform", "activation", "vocab_layer_norm", "vocab_projector",
                                     "vocab_projector.bias"};

//   classifier(dropout(relu(pre_classifier(first token))))
class SequenceHead : public TextHead {
 public:
  SequenceHead(const EncoderConfig& c, double dropout)
      : dropout_(dropout),
        pre_classifier_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
        classifier_(c.hidden_size, c.num_labels, /*with_bias=*/true) {
    own("pre_classifier", pre_classifier_);
    own("classifier", classifier_);
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch& batch) override {
    const Tensor first = at::relu(pre_classifier_.forward(batch.first_tokens(hidden)));
    return classifier_.forward(dropped_out(first, dropout_, training()));
  }

 private:
  double dropout_;
  Linear pre_classifier_, classifier_;
};

constexpr EncoderKeys kKeys = {.hidden_size = "dim",
                               .intermediate_size = "hidden_dim",
                               .num_hidden_layers = "n_layers",
                               .num_attention_heads = "n_heads",
                               .hidden_act = "activation",
                               .hidden_dropout = "dropout",
                               .attention_dropout = "attention_dropout",
                               .layer_norm_eps = nullptr,
                               .type_vocab_size = nullptr};

TextParts make(const Json& json, TextTask task) {
  const EncoderConfig c = read_encoder_config(json, kKeys);
  TextParts parts = encoder_parts(c);
  parts.trunk = std::make_unique<PostNormTrunk>(
      c, PostNormTrunkNames{.layers = "transformer.layer", .block = kBlock, .drops_attention_output = false},
      /*with_pooler=*/false);
  if (task == TextTask::kSequenceClassification) {
    parts.head = std::make_unique<SequenceHead>(c, read_dropout(json, "seq_classif_dropout", 0.2));
  }
  if (task == TextTask::kTokenClassification) parts.head = std::make_unique<TokenHead>(c, c.hidden_dropout);
  if (task == TextTask::kMaskedLM) {
    parts.head = std::make_unique<MaskedLMHead>(c, parts.trunk->word_embeddings(), kMaskedLM, c.hidden_act.c_str());
  }
  return parts;
}

}  // namespace

const RegisteredTextFamily kDistilBert({.model_type = "distilbert",
                                        .class_stem = "DistilBert",
                                        .prefix = "distilbert",
                                        .make = make,
                                        .tasks = {TextTask::kBase, TextTask::kSequenceClassification,
                                                  TextTask::kTokenClassification, TextTask::kMaskedLM}});

}  // namespace hotswap::distilbert
