// The tokenizer of a GGUF file as the files that Hugging Face's libraries read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "hotswap/tokenizers/gguf_vocabulary.h"

namespace hotswap {

// Writes tokenizer.json and tokenizer_config.json. Error for a kind of tokenizer whose rules are not known here.
void write_tokenizer(const std::filesystem::path& folder, const GgufVocabulary& vocabulary,
                     const std::optional<std::string>& chat_template);

}  // namespace hotswap
