// Regular expressions of tokenizer.json, which are written for Oniguruma (Ruby's dialect), on PCRE2.
//
// A pattern is translated first; what the two engines understand differently and the translation does not cover is an
// Error that names it. A match that needs more than kMatchLimit steps of backtracking is an Error too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace hotswap::tokenizers {

// A stretch of a text: what the pattern found, or what lies between two finds.
struct Stretch {
  uint32_t begin, end;  // bytes
  bool found;
};

class Regex {
 public:
  static constexpr uint32_t kMatchLimit = 5'000'000;

  // `where` is what errors call the pattern: "tokenizer.json: pre_tokenizer.pattern".
  Regex(const std::string& pattern, std::string where);

  // Cuts the whole text into stretches, in order.
  void cut(std::string_view text, std::vector<Stretch>& out) const;

 private:
  bool search(std::string_view text, size_t from, size_t& begin, size_t& end) const;

  std::shared_ptr<pcre2_real_code_8> code_;
  std::string where_;
  bool jit_ = false;
};

// The pattern in PCRE2's dialect (UTF, UCP and MULTILINE set).
std::string translate_regex(std::string_view pattern, const std::string& where);

}  // namespace hotswap::tokenizers
