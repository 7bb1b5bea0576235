// The model that knows whole words only ("model" of tokenizer.json, type WordLevel).
#pragma once

#include "hotswap/tokenizers/model.h"

namespace hotswap::tokenizers {

class WordLevel : public Model {
 public:
  // `where` is what errors call the model: "tokenizer.json: model".
  WordLevel(std::vector<std::pair<std::string, int64_t>> vocabulary, std::string unknown_token, std::string where);

  std::unique_ptr<Scratch> make_scratch() const override { return std::make_unique<Scratch>(); }
  void encode(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const override;

 private:
  std::string unknown_token_, where_;
};

}  // namespace hotswap::tokenizers
