// What changes a text before it is cut into words; each change keeps where its characters came from.
#pragma once

#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/pattern.h"
#include "hotswap/tokenizers/pre_tokenized_string.h"
#include "hotswap/tokenizers/unicode_normalization.h"

namespace hotswap::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedString& text) const = 0;
  // True when apply() surely leaves these bytes as they are.
  virtual bool leaves(std::string_view) const { return false; }
};

std::unique_ptr<Normalizer> make_form(NormalizationForm form);
std::unique_ptr<Normalizer> make_lowercase();
std::unique_ptr<Normalizer> make_strip(bool left, bool right);  // of blanks
std::unique_ptr<Normalizer> make_byte_level_normalizer();
std::unique_ptr<Normalizer> make_replace(Pattern pattern, std::string content);
std::unique_ptr<Normalizer> make_prepend(std::string content);
std::unique_ptr<Normalizer> make_normalizer_sequence(std::vector<std::unique_ptr<Normalizer>> parts);

}  // namespace hotswap::tokenizers
