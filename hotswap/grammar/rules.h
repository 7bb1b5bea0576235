// Grammars as values: expressions over code points, and named rules. What no text can match is taken out before a
// grammar is printed, so that whatever a matcher begins it can end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap::grammar {

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;
using CodePoints = std::vector<std::pair<char32_t, char32_t>>;  // first and last of each range

inline constexpr char32_t kLastCodePoint = 0x10FFFF;
inline constexpr int64_t kNoMax = -1;

struct Expr {
  enum class Kind { kLiteral, kClass, kRule, kSequence, kChoice, kRepeat };
  Kind kind;
  std::string literal = {};         // UTF-8
  CodePoints ranges = {};           // one code point of these
  size_t rule = 0;                  // its index
  std::vector<ExprPtr> parts = {};  // of a sequence, a choice; the one that is repeated
  int64_t min = 0, max = 0;         // of a repetition; max: kNoMax where there is none
};

ExprPtr literal(std::string_view utf8);
ExprPtr one_of(CodePoints ranges);  // surrogates are left out; none: never
ExprPtr rule(size_t index);
ExprPtr sequence(std::vector<ExprPtr> parts);
ExprPtr choice(std::vector<ExprPtr> parts);  // none: never
ExprPtr repeat(ExprPtr part, int64_t min, int64_t max);
ExprPtr optional(ExprPtr part);
ExprPtr never();

CodePoints complement(CodePoints ranges);  // sorts and merges them first
CodePoints merged(CodePoints ranges);

class Rules {
 public:
  size_t add(std::string name, ExprPtr expr = nullptr);  // -> its index; the expression may follow by set()
  void set(size_t index, ExprPtr expr) { rules_[index].expr = std::move(expr); }
  size_t size() const { return rules_.size(); }
  // The text that GrammarEngine::compile takes. "": nothing matches the root, which is `root`.
  std::string print(const ExprPtr& root) const;

 private:
  struct Rule {
    std::string name;
    ExprPtr expr;
  };
  std::vector<bool> matchable() const;
  std::vector<Rule> rules_;
};

}  // namespace hotswap::grammar
