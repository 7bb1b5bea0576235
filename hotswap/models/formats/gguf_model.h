// What a GGUF file says about a model, in Hugging Face's terms: config.json, tensor names, chat template. The mapping
// is that of transformers' GGUF integration; beyond it, rope scaling and biases are read too, and what a stock model
// would compute differently is refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "hotswap/base/json.h"
#include "hotswap/models/formats/gguf.h"
#include "hotswap/tokenizers/gguf_vocabulary.h"

namespace hotswap {

// config.json of the model: llama, qwen2, qwen3. Another architecture: Error.
Json config_from_gguf(const GgufFile& file);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; none where the model has no such tensor.
std::optional<std::string> hf_tensor_name(const std::string& gguf_name);

// The tensor as Hugging Face's model holds it. llama.cpp keeps Llama's q and k rows in interleaved rotary order; here
// they are back in half-split order.
at::Tensor hf_tensor(const GgufFile& file, const std::string& gguf_name, at::ScalarType dtype);

// tokenizer.ggml.*, for the tokenizers room. Ids and list lengths are checked.
GgufVocabulary vocabulary_from_gguf(const GgufFile& file);

std::optional<std::string> chat_template_from_gguf(const GgufFile& file);

}  // namespace hotswap
