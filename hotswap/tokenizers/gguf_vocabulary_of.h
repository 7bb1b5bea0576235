// A tokenizer.json in the terms of a GGUF file's metadata.
#pragma once

#include <filesystem>
#include <string>

#include "hotswap/tokenizers/gguf_vocabulary.h"

namespace hotswap {

// For a GGUF file of a model of that architecture with `size` rows of embeddings. Error for a tokenizer that no `model`
// and `pre` stand for, or of which a text that is full of traps would get other ids by them.
GgufVocabulary gguf_vocabulary_of(const std::filesystem::path& folder, const std::string& architecture, size_t size);

}  // namespace hotswap
