// A tokenizer.json, taken apart: the vocabulary and the merges as lists, the rest as Json.
#pragma once

#include "hotswap/base/json.h"

namespace hotswap::tokenizers {

struct TokenizerJson {
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // model.vocab, an object of ids; else left in `rest`
  std::vector<std::pair<std::string, std::string>> merges;  // model.merges, as "a b" or ["a", "b"]
  Json rest;
};

// Json::parse would take minutes for a vocabulary: its objects are searched from end to end for every key.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace hotswap::tokenizers
