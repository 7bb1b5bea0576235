// RoBERTa and XLM-RoBERTa: BERT with positions that count from the padding's id + 1, and heads of their own.
#include <ATen/ops/tanh.h>

#include "hotswap/models/encoders/encoder_parts.h"

namespace hotswap::roberta {
namespace {

//   out_proj(dropout(tanh(dense(dropout(first token)))))
class SequenceHead : public TextHead {
 public:
  explicit SequenceHead(const EncoderConfig& c)
      : dropout_(c.classifier_dropout),
        dense_(c.hidden_size, c.hidden_size, /*with_bias=*/true),
        out_proj_(c.hidden_size, c.num_labels, /*with_bias=*/true) {
    own("classifier.dense", dense_);
    own("classifier.out_proj", out_proj_);
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch& batch) override {
    const Tensor first = dropped_out(batch.first_tokens(hidden), dropout_, training());
    return out_proj_.forward(dropped_out(at::tanh(dense_.forward(first)), dropout_, training()));
  }

 private:
  double dropout_;
  Linear dense_, out_proj_;
};

constexpr MaskedLMNames kMaskedLM = {"lm_head.dense", "lm_head.activation", "lm_head.layer_norm", "lm_head.decoder",
                                     "lm_head.bias"};

TextParts make(const Json& json, TextTask task) {
  const EncoderConfig c = read_encoder_config(json, {.pad_token_id = 1});
  TextParts parts = encoder_parts(c);
  parts.max_positions = c.max_position_embeddings - c.pad_token_id.value_or(0) - 1;
  parts.trunk = std::make_unique<PostNormTrunk>(
      c, PostNormTrunkNames{.layers = "encoder.layer", .block = kBertNames, .counts_from_padding = true},
      /*with_pooler=*/task == TextTask::kBase);
  if (task == TextTask::kSequenceClassification) parts.head = std::make_unique<SequenceHead>(c);
  if (task == TextTask::kTokenClassification) parts.head = std::make_unique<TokenHead>(c, c.classifier_dropout);
  if (task == TextTask::kMaskedLM) {
    parts.head = std::make_unique<MaskedLMHead>(c, parts.trunk->word_embeddings(), kMaskedLM, "gelu");
  }
  return parts;
}

TextFamily row(const char* model_type, const char* class_stem) {
  return {.model_type = model_type,
          .class_stem = class_stem,
          .prefix = "roberta",
          .make = make,
          .tasks = {TextTask::kBase, TextTask::kSequenceClassification, TextTask::kTokenClassification,
                    TextTask::kMaskedLM}};
}

}  // namespace

const RegisteredTextFamily kRoberta(row("roberta", "Roberta"));
const RegisteredTextFamily kXlmRoberta(row("xlm-roberta", "XLMRoberta"));

}  // namespace hotswap::roberta
