// The "normalizer" of tokenizer.json: Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Lowercase, Strip.
#pragma once

#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/pre_tokenized_string.h"

namespace hotswap::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedString& text) const = 0;
  // True when apply() surely leaves these bytes as they are.
  virtual bool leaves(std::string_view) const { return false; }
};

std::unique_ptr<Normalizer> read_normalizer(const Json& json);

// For tokenizers that are not read from JSON.
std::unique_ptr<Normalizer> make_nfc();
std::unique_ptr<Normalizer> make_replace(std::string literal, std::string content);
std::unique_ptr<Normalizer> make_prepend(std::string content);
std::unique_ptr<Normalizer> make_normalizer_sequence(std::vector<std::unique_ptr<Normalizer>> parts);

}  // namespace hotswap::tokenizers
