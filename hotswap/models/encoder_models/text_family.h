// What a TextModel is made of: a trunk that makes hidden states of tokens, and a task's head on them. Encoders are rows
// of their own (encoders/bert.cpp is the one to copy); every family of decoders gets its row by itself
// (decoder_trunk.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/encoder_models/text_batch.h"
#include "hotswap/models/encoder_models/text_task.h"

namespace hotswap {

class TextTrunk : public Module {
 public:
  // -> [rows, time, hidden_size]. Where `hidden_states` is not null it gets what is embedded and what each layer
  // returns.
  virtual Tensor forward(const TextBatch& batch, std::vector<Tensor>* hidden_states) = 0;
  // What the family's pooler makes of them, [sequences, hidden_size]; undefined where the trunk has none.
  virtual Tensor pooled(const Tensor& /*hidden*/, const TextBatch& /*batch*/) { return {}; }
  // Whether packed sequences cost it no more than their tokens; else it makes a mask over all of them.
  virtual bool packs() const { return true; }
  virtual Embedding& word_embeddings() = 0;
  virtual at::ScalarType dtype() const = 0;
};

class TextHead : public Module {
 public:
  // hidden: [rows, time, hidden_size]; pooled: the trunk's, or undefined -> [sequences, labels] of a whole text, or of
  // tokens [rows, time, labels or vocab]
  virtual Tensor logits(const Tensor& hidden, const Tensor& pooled, const TextBatch& batch) = 0;
};

struct TextParts {
  std::unique_ptr<TextTrunk> trunk;
  std::unique_ptr<TextHead> head;  // null: of a base model
  int64_t vocab_size = 0, hidden_size = 0, num_labels = 0;
  int64_t type_vocab_size = 0;     // 0: the trunk has no token types
  int64_t max_positions = 0;       // tokens of a sequence that the model was made for; 0: not known
  bool has_position_table = true;  // with no row beyond max_positions
  double initializer_range = 0.02;
  std::string stock_attention = "sdpa";
  bool soft_labels = false;  // several a text, without problem_type: shares of classes, not classes of their own
};

struct TextFamily {
  std::string model_type;
  std::string class_stem;  // "Bert": of BertModel, BertForSequenceClassification
  std::string prefix;      // "bert": of the trunk's tensors in checkpoints of models with a head
  TextParts (*make)(const Json& config, TextTask task);
  std::vector<TextTask> tasks;
  std::vector<std::string> leaves_out = {};  // tensors that checkpoints may have and no model of the family reads
};

// A family's file has one at namespace scope.
class RegisteredTextFamily {
 public:
  explicit RegisteredTextFamily(TextFamily family);
  RegisteredTextFamily(const RegisteredTextFamily&) = delete;
  RegisteredTextFamily& operator=(const RegisteredTextFamily&) = delete;

 private:
  TextFamily family_;
};

// By model_type: an encoder's row, else the one that a family of decoders has. Error naming the known ones.
TextFamily text_family_of(const Json& config);
bool is_encoder(const Json& config);
std::vector<std::string> encoder_types();

// config.json's labels: num_labels, else as many as id2label has, else 2.
int64_t read_num_labels(const Json& config);

}  // namespace hotswap
