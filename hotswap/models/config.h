// config.json of a decoder under transformers' names, read strictly. An absent required key and a value that is not
// implemented are Errors that name it; nothing is guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/layers/rope.h"
#include "hotswap/models/mixture_config.h"

namespace hotswap {

struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  double rms_norm_eps = 0;
  std::string hidden_act;
  RopeParameters rope_parameters;
  bool tie_word_embeddings = false;  // the output head is the embedding
  bool attention_bias = false, mlp_bias = false;
  double attention_dropout = 0;
  int64_t sliding_window = 0;            // tokens that a query of a sliding layer sees; 0: no layer slides
  std::vector<std::string> layer_types;  // "full_attention" or "sliding_attention", a layer each
  MixtureConfig mixture;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id, pad_token_id;
  std::vector<int64_t> eos_token_id;

  int64_t window_of(int64_t layer) const { return layer_types.at(layer) == "sliding_attention" ? sliding_window : 0; }
};

// What families differ in when a key is absent.
struct ConfigDefaults {
  std::optional<int64_t> head_dim;  // none: hidden_size / num_attention_heads
  bool heads_may_lack = true;       // num_key_value_heads: num_attention_heads then
  bool reads_mxfp4 = false;         // the family's tensor rules dequantise such weights
};

// Reads and checks all of ModelConfig but which layers slide, which families say in three ways: none does here.
ModelConfig read_decoder_config(const Json& config, const ConfigDefaults& defaults = {});

// Qwen's: use_sliding_window, sliding_window, max_window_layers and layer_types.
void read_sliding_layers(ModelConfig& config, const Json& json);
// Of a window that is in use: as many as there are layers, each "full_attention" or "sliding_attention".
std::vector<std::string> read_layer_types(const ModelConfig& config, const Json& json);
// For families whose layers are all alike: Error where the keys above ask for something else than config.layer_types.
void check_layer_types(const ModelConfig& config, const Json& json);
// 0 where it is null; `otherwise` where it is absent.
int64_t read_sliding_window(const Json& json, int64_t otherwise);

// "float32", "bfloat16", "float16" (with or without "torch."); `where` says whose value it was.
at::ScalarType dtype_from(const std::string& name, const std::string& where);
std::string dtype_name(at::ScalarType dtype);

// The type that config.json says its weights have ("dtype", older "torch_dtype").
std::optional<at::ScalarType> config_dtype(const Json& config);

// An integer or a list of them, as token ids are written in configs; empty when absent or null.
std::vector<int64_t> read_ids(const Json& json, std::string_view key);

}  // namespace hotswap
