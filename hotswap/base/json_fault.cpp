#include "hotswap/base/json_fault.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '+' || c == '.';
}

// Bytes of the UTF-8 character that begins there; 0 where none does.
size_t character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0; };
  const auto follows = [&](size_t i, unsigned char low = 0x80, unsigned char high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {  // no overlong forms, no surrogates
    return follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  }
  if (first < 0xF0 || first > 0xF4) return 0;
  return follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
}

class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}

  std::string fault() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    while (!expected_) {
      skip_space();
      if (next_ == Next::kEnd) {
        if (at_ < text_.size()) expect("the end of the text");
        break;
      }
      step();
    }
    return expected_ ? cat(shown(), position(), ", not ", *expected_) : "";
  }

 private:
  enum class Next { kValue, kValueOrEnd, kKey, kKeyOrEnd, kColon, kCommaOrEnd, kEnd };

  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(std::string what) { expected_ = std::move(what); }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool in_object() const { return !open_.empty() && open_.back() == '}'; }
  void value_ended() { next_ = open_.empty() ? Next::kEnd : Next::kCommaOrEnd; }
  void close() {
    ++at_;
    open_.pop_back();
    value_ended();
  }

  void step() {
    switch (next_) {
      case Next::kValueOrEnd:
        return now() == ']' ? close() : value("a value or ']'");
      case Next::kValue:
        return value("a value");
      case Next::kKeyOrEnd:
        return now() == '}' ? close() : key("a key in double quotes, or '}'");
      case Next::kKey:
        return key("a key in double quotes");
      case Next::kColon:
        if (now() != ':') return expect("':'");
        ++at_;
        next_ = Next::kValue;
        return;
      case Next::kCommaOrEnd:
        if (at_ < text_.size() && now() == open_.back()) return close();
        if (now() != ',') return expect(cat("',' or '", open_.back(), "'"));
        ++at_;
        next_ = in_object() ? Next::kKey : Next::kValue;
        return;
      case Next::kEnd:
        return;
    }
  }

  void key(const char* what) {
    if (now() != '"') return expect(what);
    string();
    next_ = Next::kColon;
  }

  void value(const char* what) {
    const char c = now();
    if (c == '{' || c == '[') {
      ++at_;
      open_.push_back(c == '{' ? '}' : ']');
      next_ = c == '{' ? Next::kKeyOrEnd : Next::kValueOrEnd;
      return;
    }
    value_ended();
    if (c == '"') return string();
    if (c == '-' || is_digit(c)) return number();
    for (const std::string_view word : {"true", "false", "null"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      const size_t end = at_ + word.size();
      if (end < text_.size() && in_word(text_[end])) break;
      at_ = end;
      return;
    }
    expect(what);
  }

  void digits() {
    if (!is_digit(now())) return expect("a digit");
    while (is_digit(now())) ++at_;
  }
  void number() {
    const size_t begin = at_;
    if (now() == '-') ++at_;
    if (now() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (!expected_ && now() == '.') {
      ++at_;
      digits();
    }
    if (!expected_ && (now() == 'e' || now() == 'E')) {
      ++at_;
      if (now() == '+' || now() == '-') ++at_;
      digits();
    }
    if (expected_ || std::isfinite(std::strtod(std::string(text_.substr(begin, at_ - begin)).c_str(), nullptr))) return;
    at_ = begin;
    expect("a number that fits 64 bits");
  }

  void string() {
    for (++at_; now() != '"' || at_ >= text_.size();) {
      if (at_ >= text_.size()) return expect("the '\"' that ends the text begun before");
      if (static_cast<unsigned char>(now()) < 0x20)
        return expect("a character, or \\n, \\t, \\u00xx for one of control");
      if (now() == '\\') {
        escape();
        if (expected_) return;
        continue;
      }
      const size_t bytes = character_at(text_, at_);
      if (bytes == 0) return expect("a character of UTF-8");
      at_ += bytes;
    }
    ++at_;
  }

  // The code unit of \uXXXX at `at`; none where that is not there.
  std::optional<unsigned> unit_at(size_t at) const {
    const std::string_view hex = at + 6 <= text_.size() ? text_.substr(at + 2, 4) : "";
    if (text_.substr(at, 2) != "\\u" || hex.empty()) return std::nullopt;
    if (!std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return std::isxdigit(c) != 0; }))
      return std::nullopt;
    return static_cast<unsigned>(std::strtoul(std::string(hex).c_str(), nullptr, 16));
  }
  void escape() {
    const char letter = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (letter != 'u') {
      if (letter == '\0' || std::string_view("\"\\/bfnrt").find(letter) == std::string_view::npos)
        return expect(R"(an escape: \" \\ \/ \b \f \n \r \t \uXXXX)");
      at_ += 2;
      return;
    }
    const auto unit = unit_at(at_);
    if (!unit) return expect("\\u and four hexadecimal digits");
    if (*unit < 0xD800 || *unit > 0xDFFF) {
      at_ += 6;
      return;
    }
    const auto low = unit_at(at_ + 6);
    if (*unit > 0xDBFF || !low || *low < 0xDC00 || *low > 0xDFFF)
      return expect("a pair of surrogates, the high one first");
    at_ += 12;
  }

  // What stands there: a word, a character, a byte, or nothing.
  std::string shown() const {
    if (at_ >= text_.size()) return "the end of the text";
    size_t end = at_;
    while (end < text_.size() && in_word(text_[end]) && end - at_ < 24) ++end;
    if (end == at_) end = at_ + character_at(text_, at_);
    if (end > at_ + 1 || (end > at_ && std::isprint(static_cast<unsigned char>(text_[at_]))))
      return cat("'", text_.substr(at_, end - at_), "'");
    constexpr const char* kHex = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(text_[at_]);
    return cat("the byte 0x", kHex[byte / 16], kHex[byte % 16]);
  }
  std::string position() const {
    const std::string_view before = text_.substr(0, at_);
    const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
    const size_t begin = line == 1 ? 0 : before.rfind('\n') + 1;
    return cat(" at byte ", at_ + 1, " (line ", line, ", column ", at_ - begin + 1, ")");
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string open_;  // the brackets that close what is open, innermost last
  Next next_ = Next::kValue;
  std::optional<std::string> expected_;
};

}  // namespace

std::string json_fault(std::string_view text) { return Scan(text).fault(); }

}  // namespace hotswap
