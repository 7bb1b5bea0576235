#include "hotswap/grammar/gbnf.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/grammar/cursor.h"
#include "hotswap/grammar/rules.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::grammar {
namespace {

constexpr size_t kMaxBytes = 64 << 10, kMaxGbnfRules = 1000;
constexpr int kMaxGroups = 64;
constexpr int64_t kMaxRepeat = 10000;

class Reader : private Cursor {
 public:
  explicit Reader(const std::string& text) : Cursor(text) {}

  std::string checked() {
    if (text_.size() > kMaxBytes) fail(cat("a grammar of ", text_.size(), " bytes; ", kMaxBytes, " at most"));
    if (tokenizers::find_invalid_utf8(text_) != std::string::npos) fail("a grammar that is not UTF-8");
    skip(/*lines=*/true);
    while (more()) {
      definition();
      skip(/*lines=*/true);
    }
    for (const auto& [name, one] : names_) {
      if (!one.defined) fail("no rule " + name);
    }
    if (!names_.contains("root")) fail("no rule root");
    const std::string out = rules_.print(rule(names_.at("root").index));
    if (out.empty()) fail("a grammar that matches no text");
    return out;
  }

 private:
  struct Named {
    size_t index;
    bool defined = false;
  };

  [[noreturn]] void fail(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(std::min(at_, text_.size())), '\n');
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a grammar of rules `name ::= ...`, one of which is root",
                 .got = cat(what, " (line ", line, ")"),
                 .next = "correct the grammar"});
  }
  // Blanks and comments; line ends too where an expression goes on after them.
  void skip(bool lines) {
    while (more()) {
      const char c = peek();
      if (c == '#') {
        while (more() && peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool is_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  }
  std::string name() {
    const size_t begin = at_;
    while (more() && is_name(peek())) ++at_;
    if (at_ == begin) fail(cat("'", peek(), "' where a rule's name was expected"));
    return text_.substr(begin, at_ - begin);
  }
  size_t index_of(const std::string& name) {
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second.index;
    if (names_.size() >= kMaxGbnfRules) fail(cat("more than ", kMaxGbnfRules, " rules"));
    return names_.emplace(name, Named{rules_.add("rule")}).first->second.index;
  }

  void definition() {
    const std::string defined = name();
    const size_t index = index_of(defined);
    if (std::exchange(names_.at(defined).defined, true)) fail("a second rule " + defined);
    skip(false);
    if (!(take(':') && take(':') && take('='))) fail("no ::= after " + defined);
    skip(true);
    rules_.set(index, alternatives(false));
    skip(false);
    if (more() && peek() != '\n' && peek() != '\r') fail(cat("'", peek(), "' where the rule was expected to end"));
  }

  ExprPtr alternatives(bool in_group) {
    std::vector<ExprPtr> all;
    do {
      skip(true);
      all.push_back(parts(in_group));
      // An alternative may stand on a line of its own.
      const size_t before = at_;
      skip(true);
      if (peek() != '|' && !in_group) at_ = before;
    } while (take('|'));
    return choice(std::move(all));
  }

  ExprPtr parts(bool in_group) {
    std::vector<ExprPtr> all;
    for (;;) {
      skip(in_group);
      const char c = peek();
      if (c == '"' || c == '[' || c == '(' || c == '.' || is_name(c)) {
        all.push_back(repeated());
      } else {
        return sequence(std::move(all));
      }
    }
  }

  ExprPtr repeated() {
    ExprPtr one = element();
    for (;;) {
      int64_t min = 0, max = kNoMax;
      if (take('+')) {
        min = 1;
      } else if (take('?')) {
        max = 1;
      } else if (take('{')) {
        min = max = count();
        if (take(',')) max = peek() == '}' ? kNoMax : count();
        if (!take('}')) fail("a { without its }");
      } else if (!take('*')) {
        return one;
      }
      if (one->kind == Expr::Kind::kRepeat) fail("a repetition of a repetition");
      if (max != kNoMax && max < min) fail("a repetition whose maximum is below its minimum");
      one = repeat(one, min, max);
    }
  }
  int64_t count() {
    const size_t begin = at_;
    int64_t value = 0;
    for (; std::isdigit(static_cast<unsigned char>(peek())); ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > kMaxRepeat) fail(cat("a repetition of more than ", kMaxRepeat));
    }
    if (begin == at_) fail("a { without a count");
    return value;
  }

  ExprPtr element() {
    if (take('"')) return quoted();
    if (take('[')) return set();
    if (take('.')) return one_of({{0, kLastCodePoint}});
    if (take('(')) {
      if (++depth_ > kMaxGroups) fail(cat("groups nested deeper than ", kMaxGroups));
      ExprPtr inside = alternatives(true);
      skip(true);
      if (!take(')')) fail("a ( without its )");
      --depth_;
      return inside;
    }
    return rule(index_of(name()));
  }

  char32_t character() {
    if (take('\\')) return escape();
    const auto [value, size] = tokenizers::code_point_at(text_, at_);
    at_ += size;
    return value;
  }
  char32_t escape() {
    const char c = peek();
    if (more()) ++at_;
    for (const auto& [letter, value] : {std::pair{'n', '\n'},
                                        {'r', '\r'},
                                        {'t', '\t'},
                                        {'\\', '\\'},
                                        {'"', '"'},
                                        {'[', '['},
                                        {']', ']'},
                                        {'-', '-'},
                                        {'^', '^'},
                                        {'\'', '\''}}) {
      if (c == letter) return static_cast<char32_t>(value);
    }
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) fail(cat("the escape \\", c));
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (!std::isxdigit(static_cast<unsigned char>(peek()))) fail("an escape with too few hexadecimal digits");
      value = value * 16 + (peek() <= '9' ? peek() - '0' : (peek() | 32) - 'a' + 10);
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) fail("an escape of no character");
    return value;
  }

  ExprPtr quoted() {
    std::string out;
    while (!take('"')) {
      if (!more() || peek() == '\n') fail("a \" without its end");
      tokenizers::append_utf8(out, character());
    }
    return literal(out);
  }

  ExprPtr set() {
    const bool negated = take('^');
    CodePoints ranges;
    while (!take(']')) {
      if (!more() || peek() == '\n') fail("a [ without its ]");
      const char32_t first = character();
      char32_t last = first;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        last = character();
      }
      if (last < first) fail("a range that ends before it begins");
      ranges.emplace_back(first, last);
    }
    return one_of(negated ? complement(std::move(ranges)) : std::move(ranges));
  }

  int depth_ = 0;
  std::map<std::string, Named> names_;
  Rules rules_;
};

// The grammar with another name for each of its rules. What stands in a literal or a class is no name.
std::string renamed(const std::string& text, const char* prefix) {
  std::string out;
  char quote = 0;  // of the literal or class that a character is in
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != 0) {
      if (c == '\\') out += text[at++];
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '[') {
      quote = c == '"' ? '"' : ']';
    } else if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      const size_t end = std::min(text.find_first_of(" \n(){}[]*+?|\":", at), text.size());
      out += prefix + text.substr(at, end - at);
      at = end - 1;
      continue;
    }
    out += text[at];
  }
  return out;
}

}  // namespace

std::string either_gbnf(const std::string& one, const std::string& other) {
  return "root ::= a_root | b_root\n" + renamed(one, "a_") + renamed(other, "b_");
}

std::string checked_gbnf(const std::string& text) { return Reader(text).checked(); }

}  // namespace hotswap::grammar
