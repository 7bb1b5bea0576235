// The model that takes the longest token, again and again ("model" of tokenizer.json, type WordPiece).
#pragma once

#include "hotswap/tokenizers/double_array.h"
#include "hotswap/tokenizers/model.h"

namespace hotswap::tokenizers {

struct WordPieceConfig {
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  std::string unknown_token;
  std::string continuing_prefix;  // what tokens inside a word begin with, "##"
  int64_t max_characters = 100;   // a longer word is unknown
  std::string where;              // what errors call the model: "tokenizer.json: model"
};

class WordPiece : public Model {
 public:
  explicit WordPiece(WordPieceConfig config);

  std::unique_ptr<Scratch> make_scratch() const override;
  // A word of which any part is unknown is one unknown token.
  void encode(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const override;

 private:
  class CachingScratch;
  void encode_new(std::string_view word, std::vector<Symbol>& out) const;

  std::string unknown_token_, where_;
  size_t max_characters_;
  DoubleArray first_, continuing_;  // tokens at the start of a word; inside of it, without the prefix
};

}  // namespace hotswap::tokenizers
