// The "model" of tokenizer.json: BPE, WordPiece, WordLevel, Unigram.
#pragma once

#include <memory>

#include "hotswap/tokenizers/model.h"
#include "hotswap/tokenizers/tokenizer_json.h"

namespace hotswap::tokenizers {

// Takes the lists of the file.
std::unique_ptr<Model> read_model(TokenizerJson& file);

}  // namespace hotswap::tokenizers
