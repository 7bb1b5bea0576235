#include "hotswap/models/encoder_models/decoder_trunk.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/family.h"
#include "hotswap/models/trunk.h"

namespace hotswap {
namespace {

class DecoderTrunk : public TextTrunk {
 public:
  DecoderTrunk(const Family& family, const ModelConfig& config) : trunk_(config, family.make_block) { own("", trunk_); }
  Tensor forward(const TextBatch& batch, std::vector<Tensor>* hidden_states) override {
    if (hidden_states != nullptr) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "an encoder for output_hidden_states",
                   .got = "a decoder, whose layers hand sums on to the next norm",
                   .next = "read last_hidden_state"});
    }
    return trunk_.forward({.input_ids = batch.ids,
                           .attention_mask = batch.padding,
                           .position_ids = batch.position_ids,
                           .cu_seqlens = batch.packed() ? batch.starts() : Tensor(),
                           .max_seqlen = batch.packed() ? batch.longest() : 0});
  }
  bool packs() const override { return false; }
  Embedding& word_embeddings() override { return trunk_.embed_tokens; }
  at::ScalarType dtype() const override { return trunk_.dtype(); }

 private:
  Trunk trunk_;
};

// Of the last token that is none of padding, found by its id and not by the mask, as transformers does it.
class DecoderSequenceHead : public TextHead {
 public:
  DecoderSequenceHead(int64_t hidden, int64_t labels, std::optional<int64_t> pad)
      : pad_(pad), score_(hidden, labels, /*with_bias=*/false) {
    own("score", score_);
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch& batch) override {
    if (batch.packed()) return score_.forward(batch.last_tokens(hidden));
    if (!pad_ && batch.ids.size(0) > 1) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a pad_token_id in config.json for batches of more than one text",
                   .got = "none",
                   .next = "add it, or pass one text at a time"});
    }
    if (!pad_) return score_.forward(hidden.select(1, hidden.size(1) - 1));
    const Tensor real = at::ne(batch.ids, *pad_).to(at::kLong), positions = at::arange(hidden.size(1), real.options());
    const Tensor last = at::argmax(at::mul(real, positions), 1);
    const Tensor rows = at::arange(hidden.size(0), real.options());
    return score_.forward(hidden.flatten(0, 1).index_select(0, at::add(last, rows, hidden.size(1))));
  }

 private:
  std::optional<int64_t> pad_;
  Linear score_;
};

class DecoderTokenHead : public TextHead {
 public:
  DecoderTokenHead(int64_t hidden, int64_t labels, double dropout)
      : dropout_(dropout), score_(hidden, labels, /*with_bias=*/true) {
    own("score", score_);
  }
  Tensor logits(const Tensor& hidden, const Tensor&, const TextBatch&) override {
    return score_.forward(training() && dropout_ > 0 ? at::dropout(hidden, dropout_, /*train=*/true) : hidden);
  }

 private:
  double dropout_;
  Linear score_;
};

TextParts make_parts(const Json& json, TextTask task) {
  const Family& family = family_of(json);
  const ModelConfig config = family.read_config(json);
  if (!family.tensor_rules(config).empty()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a family whose checkpoints keep every tensor as its modules do, to read texts with",
                 .got = cat("model_type ", family.model_type, " in ", json.where()),
                 .next = "take another model: this is not implemented"});
  }
  TextParts parts{.trunk = std::make_unique<DecoderTrunk>(family, config),
                  .head = nullptr,
                  .vocab_size = config.vocab_size,
                  .hidden_size = config.hidden_size,
                  .num_labels = read_num_labels(json),
                  .max_positions = config.rope_parameters.max_position_embeddings,
                  .has_position_table = false,
                  .initializer_range = config.initializer_range};
  parts.stock_attention = stock_attention_of(*parts.trunk);
  if (task == TextTask::kSequenceClassification) {
    parts.head = std::make_unique<DecoderSequenceHead>(config.hidden_size, parts.num_labels, config.pad_token_id);
  } else if (task == TextTask::kTokenClassification) {
    const double dropout = json.get<double>("classifier_dropout", json.get<double>("hidden_dropout", 0.1));
    parts.head = std::make_unique<DecoderTokenHead>(config.hidden_size, parts.num_labels, dropout);
  }
  return parts;
}

}  // namespace

TextFamily decoder_text_family(const Family& family) {
  std::string stem = family.class_name;
  stem.resize(stem.find("For"));
  if (std::string_view(family.model_type).ends_with("_text")) stem += "Text";  // Gemma3TextModel
  return {.model_type = family.model_type,
          .class_stem = stem,
          .prefix = "model",
          .make = make_parts,
          .tasks = {TextTask::kBase, TextTask::kSequenceClassification, TextTask::kTokenClassification}};
}

}  // namespace hotswap
