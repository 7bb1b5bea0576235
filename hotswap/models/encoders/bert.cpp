// BERT, and every model of model_type "bert": MiniLM, BGE, E5, GTE, ...
#include "hotswap/models/encoders/encoder_parts.h"

namespace hotswap::bert {
namespace {

// classifier(dropout(pooler)): of a whole text.
class SequenceHead : public TextHead {
 public:
  explicit SequenceHead(const EncoderConfig& c)
      : dropout_(c.classifier_dropout), classifier_(c.hidden_size, c.num_labels, /*with_bias=*/true) {
    own("classifier", classifier_);
  }
  Tensor logits(const Tensor&, const Tensor& pooled, const TextBatch&) override {
    return classifier_.forward(dropped_out(pooled, dropout_, training()));
  }

 private:
  double dropout_;
  Linear classifier_;
};

constexpr MaskedLMNames kMaskedLM = {"cls.predictions.transform.dense", "cls.predictions.transform.transform_act_fn",
                                     "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                                     "cls.predictions.bias"};

TextParts make(const Json& json, TextTask task) {
  const EncoderConfig c = read_encoder_config(json);
  TextParts parts = encoder_parts(c);
  const bool pools = task == TextTask::kBase || task == TextTask::kSequenceClassification;
  parts.trunk =
      std::make_unique<PostNormTrunk>(c, PostNormTrunkNames{.layers = "encoder.layer", .block = kBertNames}, pools);
  if (task == TextTask::kSequenceClassification) parts.head = std::make_unique<SequenceHead>(c);
  if (task == TextTask::kTokenClassification) parts.head = std::make_unique<TokenHead>(c, c.classifier_dropout);
  if (task == TextTask::kMaskedLM) {
    parts.head = std::make_unique<MaskedLMHead>(c, parts.trunk->word_embeddings(), kMaskedLM, c.hidden_act.c_str());
  }
  return parts;
}

}  // namespace

const RegisteredTextFamily kBert({.model_type = "bert",
                                  .class_stem = "Bert",
                                  .prefix = "bert",
                                  .make = make,
                                  .tasks = {TextTask::kBase, TextTask::kSequenceClassification,
                                            TextTask::kTokenClassification, TextTask::kMaskedLM}});

}  // namespace hotswap::bert
