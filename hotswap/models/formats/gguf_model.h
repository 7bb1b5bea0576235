// What a GGUF file says about a model, in Hugging Face's terms: config.json, tensor names, chat template. The mapping
// is that of transformers' GGUF integration; beyond it, rope scaling and biases are read too, and what a stock model
// would compute differently is refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/models/formats/gguf.h"
#include "hotswap/models/formats/tensor_rules.h"
#include "hotswap/tokenizers/gguf_vocabulary.h"

namespace hotswap {

struct GgufArchitecture {
  std::string name;        // general.architecture, and the prefix of its keys
  std::string model_type;  // of config.json
  std::string class_name;  // "LlamaForCausalLM"
  // The head's width where attention.key_length is absent: the rotated width, else hidden_size / heads.
  bool head_dim_is_rotary = false;
  // A part of each head may turn: the config has partial_rotary_factor then.
  bool rotates_part = false;
  // Keys and values are made of a latent vector, and head_dim is the part that turns; their widths are `extend`'s.
  bool latent_heads = false;
  // The config's key of the norms' epsilon. Any other than this one: the norms are LayerNorms.
  const char* norm_eps = "rms_norm_eps";
  // Keys, less the prefix, that change what a model computes and that `extend` reads; without it they are refused.
  std::vector<std::string> reads = {};
  // Adds what the family's config.json says beyond what all have.
  void (*extend)(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) = nullptr;
};

// config.json of the model.
Json config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture);

// llama.cpp's names for the parts of a decoder: "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight".
const TensorRules& gguf_decoder_rules();
// The same after a family's own, which win.
TensorRules with_gguf_decoder_rules(TensorRules own);
// Queries, keys and values as one tensor: "blk.3.attn_qkv". Gate and up as one: "blk.3.ffn_up".
TensorRule gguf_packed_attention();
TensorRule gguf_packed_gate();

// A number that a file states once, or for each layer: of each.
std::vector<int64_t> gguf_of_each_layer(const GgufFile& file, const std::string& key, int64_t layers);

// Of a config: values under the names that its family has for them.
using GgufConfigNames = std::vector<std::pair<const char*, const char*>>;  // ours, and the family's
// The window, and which layers slide: by a list, or all but every `pattern`-th.
void add_gguf_windows(const GgufFile& file, const std::string& prefix, int64_t pattern, nlohmann::ordered_json& config);
void rename_gguf_keys(nlohmann::ordered_json& config, const GgufConfigNames& names);

// llama.cpp keeps the rows of Llama's queries and keys in interleaved rotary order; Hugging Face's is half-split.
at::Tensor half_split_rows(const at::Tensor& interleaved, int64_t heads);

// tokenizer.ggml.*, for the tokenizers room. Ids and list lengths are checked.
GgufVocabulary vocabulary_from_gguf(const GgufFile& file);

std::optional<std::string> chat_template_from_gguf(const GgufFile& file);

}  // namespace hotswap
