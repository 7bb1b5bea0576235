// config.json of an encoder under transformers' names, read strictly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hotswap/base/json.h"

namespace hotswap {

struct EncoderConfig {
  std::string model_type;
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, num_attention_heads = 0;
  int64_t max_position_embeddings = 0;
  int64_t type_vocab_size = 0;  // 0: tokens have no types
  std::optional<int64_t> pad_token_id;
  double layer_norm_eps = 1e-12;
  std::string hidden_act;
  double hidden_dropout = 0, attention_dropout = 0, classifier_dropout = 0;  // in training
  bool tie_word_embeddings = true;
  double initializer_range = 0.02;
  int64_t num_labels = 2;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
};

// Under which names a family has them, and what it takes where a key is absent.
struct EncoderKeys {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  const char* num_hidden_layers = "num_hidden_layers";
  const char* num_attention_heads = "num_attention_heads";
  const char* hidden_act = "hidden_act";
  const char* hidden_dropout = "hidden_dropout_prob";
  const char* attention_dropout = "attention_probs_dropout_prob";
  const char* layer_norm_eps = "layer_norm_eps";
  const char* type_vocab_size = "type_vocab_size";  // null: tokens have no types
  double eps = 1e-12, dropout = 0.1;
  int64_t pad_token_id = 0;
  const char* activation = "gelu";
};
EncoderConfig read_encoder_config(const Json& config, const EncoderKeys& keys = {});

}  // namespace hotswap
