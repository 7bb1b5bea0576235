// What a folder's tokenizer_config.json states about a text model's inputs, for SentenceEncoder and CrossEncoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "hotswap/base/json.h"

namespace hotswap {

struct TokenizerSettings {
  int64_t max_length = 0;   // of ids, as far as the model has positions; 0: no limit
  bool token_types = true;  // does the model get the types of its tokens?
};

// As transformers has it: the length is model_max_length; types are passed where model_input_names has token_type_ids,
// without that key by the tokenizer's class. positions: that the model has; 0: no limit.
TokenizerSettings read_tokenizer_settings(const std::filesystem::path& folder, int64_t positions);

std::optional<Json> read_if_there(const std::filesystem::path& file);

}  // namespace hotswap
