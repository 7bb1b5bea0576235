// A regular expression as a grammar. Read is what ECMAScript, Python and PCRE understand alike; anything else, such as
// look-around, is an Error that names it. Classes like \d have their ASCII members only, so that every text of the
// grammar matches in each of them.
#pragma once

#include <functional>
#include <string>

#include "hotswap/grammar/rules.h"

namespace hotswap::grammar {

struct RegexTarget {
  // How one character of a set is written in the text: as itself, or within a JSON string.
  std::function<ExprPtr(const CodePoints&)> character = [](const CodePoints& set) { return one_of(set); };
  // What may come before an expression without ^ and after one without $; none: the whole text must match.
  ExprPtr around = nullptr;
};

// Error (kInvalidArgument) where the pattern is wrong, or has something that is not read here.
ExprPtr regex_expr(const std::string& pattern, const RegexTarget& target);

}  // namespace hotswap::grammar
