// What normalizers, pre-tokenizers and decoders look for: a string, a regular expression or a class of characters.
#pragma once

#include <string>
#include <variant>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/pre_tokenized_string.h"
#include "hotswap/tokenizers/regex.h"

namespace hotswap::tokenizers {

class Pattern {
 public:
  using Class = bool (*)(char32_t);

  explicit Pattern(std::string literal) : kind_(std::move(literal)) {}
  explicit Pattern(Regex regex) : kind_(std::move(regex)) {}
  explicit Pattern(Class members) : kind_(members) {}
  static Pattern read(const Json& json);  // {"String": ...} or {"Regex": ...}

  // Cuts the whole text into stretches, in order; a class finds single characters.
  void cut(std::string_view text, std::vector<Stretch>& out) const;
  // Whether a string surely does not occur in the text; false for the other kinds, which only cut() knows.
  bool is_absent(std::string_view text) const;

 private:
  std::variant<std::string, Regex, Class> kind_;
};

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior read_behavior(const Json& json);

// Turns the stretches of one piece into the pieces that the behaviour makes of them.
void split(const Piece& piece, const std::vector<Stretch>& stretches, Behavior behavior, std::vector<Piece>& out);

}  // namespace hotswap::tokenizers
