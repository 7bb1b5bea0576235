// Tokenizers of tiktoken's kind: tokens as bytes with their rank, where a pair of tokens merges when its bytes are one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap::tokenizers {

// A tekken.json of Mistral. Special tokens come first in the vocabulary.
Tokenizer read_tekken(std::string_view text, const std::string& where);

// Lines of a token in base64 and its rank; `pattern` cuts the text into words, `special` follow the ranks.
Tokenizer read_tiktoken(std::string_view text, const std::string& pattern, const std::vector<std::string>& special,
                        const std::string& where);

}  // namespace hotswap::tokenizers
