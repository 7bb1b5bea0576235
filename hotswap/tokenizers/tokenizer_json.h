// A tokenizer.json, taken apart: the vocabulary, the pieces and the merges as lists, the rest as Json.
#pragma once

#include "hotswap/base/json.h"

namespace hotswap::tokenizers {

struct TokenizerJson {
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // model.vocab, where it is an object of ids
  std::vector<std::pair<std::string, double>> pieces;       // model.vocab, where it is a list of pairs with scores
  std::vector<std::pair<std::string, std::string>> merges;  // model.merges, as "a b" or ["a", "b"]
  Json rest;
};

// Json::parse would take minutes for a vocabulary: its objects are searched from end to end for every key.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace hotswap::tokenizers
