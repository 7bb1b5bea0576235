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
  // Keys, less the prefix, that change what a model computes and that `extend` reads; without it they are refused.
  std::vector<std::string> reads = {};
  // Adds what the family's config.json says beyond what all have.
  void (*extend)(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) = nullptr;
};

// config.json of the model.
Json config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture);

// llama.cpp's names for the parts of a decoder: "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight".
const TensorRules& gguf_decoder_rules();

// llama.cpp keeps the rows of Llama's queries and keys in interleaved rotary order; Hugging Face's is half-split.
at::Tensor half_split_rows(const at::Tensor& interleaved, int64_t heads);

// tokenizer.ggml.*, for the tokenizers room. Ids and list lengths are checked.
GgufVocabulary vocabulary_from_gguf(const GgufFile& file);

std::optional<std::string> chat_template_from_gguf(const GgufFile& file);

}  // namespace hotswap
