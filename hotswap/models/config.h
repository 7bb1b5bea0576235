// config.json of a decoder under transformers' names, read strictly. An absent required key and a value that is not
// implemented are Errors that name it; nothing is guessed.
#pragma once

#include <any>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/layers/mamba_options.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rope.h"
#include "hotswap/layers/temperature.h"
#include "hotswap/models/mixture_config.h"
#include "hotswap/models/rope_config.h"

namespace hotswap {

// In training: of what is embedded, and of what a block's branches add.
struct ResidualDropout {
  double embedding = 0, attention = 0, mlp = 0;
};

struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  // What a part needs that few families have: put here by read_config of a family's row, in a type of that part, and
  // read by its make_block. Empty: nothing.
  std::any family_options;
  bool rope_interleave = false;
  double rms_norm_eps = 0, norm_offset = 0;
  std::string norm_casting = "llama";          // these three: see RMSNormOptions
  std::optional<LayerNormOptions> layer_norm;  // given: the model's norms are LayerNorms
  std::string hidden_act;
  RopeParameters rope_parameters;                         // of dim 0: the model has no rotary embedding
  std::optional<RopeParameters> sliding_rope_parameters;  // of sliding layers, where they have their own
  bool rotates_in_float32 = false;                        // cos and sin are not rounded to the model's dtype
  int64_t position_embeddings = 0;                        // rows of a learned table of positions; 0: none
  bool tie_word_embeddings = false;                       // the output head is the embedding
  bool head_bias = false;                                 // of the output head
  bool attention_bias = false, mlp_bias = false;
  double attention_dropout = 0;
  bool causal = true;  // false: tokens see those after them; such a model reads text and generates none
  ResidualDropout residual_dropout;
  std::optional<double> attention_scale;                           // of the scores; none: head_dim^-0.5
  double attn_logit_softcapping = 0, final_logit_softcapping = 0;  // 0: off
  double embedding_multiplier = 1, residual_multiplier = 1;        // of what is embedded, of what a block adds
  bool rounds_embedding_multiplier = false;                        // to the model's dtype, before it multiplies
  double logits_scaling = 1;                                       // divides the logits
  double logits_multiplier = 1;                                    // of the logits
  double z_loss_coefficient = 0;         // times the mean square of the logits' log-sum-exp, a part of the loss
  int64_t sliding_window = 0;            // tokens that a query of a sliding layer sees; 0: no layer slides
  std::vector<std::string> layer_types;  // "full_attention" or "sliding_attention", a layer each
  std::vector<int64_t> no_rope_layers;   // 0 where a layer has no rotary embedding, a layer each; empty: all have
  int64_t attention_chunk_size = 0;      // of "chunked_attention"
  bool use_qk_norm = false;              // Llama 4's: queries and keys of one length
  Temperature temperature;               // of its layers without rotary embedding
  MixtureConfig mixture;
  MambaOptions mamba;             // of layers with a recurrence, all but its layer
  bool residual_in_fp32 = false;  // what layers are added to is float32 whatever the model's dtype
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id, pad_token_id;
  std::vector<int64_t> eos_token_id;

  RMSNormOptions norm() const { return {.eps = rms_norm_eps, .offset = norm_offset, .casting = norm_casting}; }
  bool rotates(int64_t layer) const { return no_rope_layers.empty() || no_rope_layers.at(layer) != 0; }
  int64_t window_of(int64_t layer) const { return layer_types.at(layer) == "sliding_attention" ? sliding_window : 0; }
};

// What families differ in when a key is absent.
struct ConfigDefaults {
  const char* head_dim_key = "head_dim";
  std::optional<int64_t> head_dim;  // none: hidden_size / num_attention_heads
  bool heads_may_lack = true;       // num_key_value_heads: num_attention_heads then
  bool grouped_heads = true;        // false: num_attention_heads
  const char* key_heads_key = "num_key_value_heads";
  const char* intermediate_size_key = "intermediate_size";
  int64_t intermediate_times = 0;  // absent: this times hidden_size; 0: the key must be there
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tie_word_embeddings = false;
  const char* norm_eps_key = "rms_norm_eps";
  std::optional<double> norm_eps = std::nullopt;  // none: the key must be there
  bool rotary = true;                             // false: rope_parameters has only max_position_embeddings
  RopeDefaults rope = {};
  bool reads_mxfp4 = false;  // the family's tensor rules dequantise such weights
};

// What every model's config says: sizes, tied weights, the spread of fresh ones, special tokens.
ModelConfig read_model_config(const Json& config, const ConfigDefaults& defaults = {});

// Reads and checks all of ModelConfig but which layers slide, which families say in three ways: none does here.
ModelConfig read_decoder_config(const Json& config, const ConfigDefaults& defaults = {});

// A share of values that training drops; Error unless it is in [0, 1).
double read_dropout(const Json& config, const char* key, double otherwise = 0);

// Gemma's: sliding_window, and layer_types or else a full layer after `pattern` - 1 sliding ones.
void read_sliding_pattern(ModelConfig& config, const Json& json, int64_t pattern);
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
