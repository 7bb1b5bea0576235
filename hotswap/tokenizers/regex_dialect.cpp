// From Oniguruma's Ruby dialect to PCRE2's.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/regex.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr size_t kMaxPatternBytes = 1 << 20;  // bytes of a translated pattern; classes like \\w are long

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string range(char32_t first, char32_t last) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "\\x{%x}-\\x{%x}", static_cast<unsigned>(first), static_cast<unsigned>(last));
  return text.data();
}

// The inside of a class for a general category, with the characters that PCRE2's tables may not have yet.
std::string category_items(std::string_view name) {
  std::string items = cat("\\p{", name, "}");
  for (const LateCategory& row : late_categories()) {
    if (row.category[0] == name[0] && (name.size() == 1 || row.category[1] == name[1]))
      items += range(row.first, row.last);
  }
  return items;
}

std::string word_items() {
  std::string items = "0-9A-Z_a-z";
  for (const char* category : {"L", "M", "Nd", "Nl", "Pc"}) items += category_items(category);
  return items +
         R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    groups_.push_back({0, 0});
    while (at_ < in_.size()) {
      item();
      if (out_.size() > kMaxPatternBytes) unsupported("too much");
    }
    if (groups_.size() != 1) unsupported("a group without ')'");
    close(groups_.back());
    return std::move(out_);
  }

 private:
  struct Group {
    size_t start;  // of the group in out_
    int to_close;  // groups that "(?i)" opened inside
  };

  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a regular expression of the supported dialect at ", where_),
                 .got = cat(what, " in '", in_, "'"),
                 .next = "this construct is not implemented; use a tokenizer without it"});
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool starts(std::string_view text) const { return in_.substr(at_).substr(0, text.size()) == text; }

  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  void close(const Group& group) { out_.append(static_cast<size_t>(group.to_close), ')'); }

  void item() {
    const char c = in_[at_];
    switch (c) {
      case '\\':
        return escape();
      case '[':
        return bracket();
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '*':
      case '+':
      case '?':
        return quantifier(std::string(1, c), 1);
      case '{':
        return interval();
      default:
        break;
    }
    const size_t size = code_point_at(in_, at_).size;
    atom(in_.substr(at_, size));
    at_ += size;
  }

  // One of *, +, ?, or an interval, and the ? or + behind it.
  void quantifier(const std::string& text, size_t size) {
    out_ += text;
    at_ += size;
    if (peek() == '?' || peek() == '+') out_ += in_[at_++];
  }

  void interval() {
    size_t i = at_ + 1;
    const auto number = [&] {
      const size_t begin = i;
      while (i < in_.size() && is_digit(in_[i])) ++i;
      return std::string(in_.substr(begin, i - begin));
    };
    std::string low = number();
    const bool range = i < in_.size() && in_[i] == ',';
    if (range) ++i;
    const std::string high = range ? number() : low;
    if (i >= in_.size() || in_[i] != '}' || (low.empty() && high.empty())) return atom("\\{"), void(++at_);
    if (low.empty()) low = "0";
    out_ += range ? cat("{", low, ",", high, "}") : cat("{", low, "}");
    at_ = i + 1;
    if (peek() == '?' && !range) unsupported("'{n}?'");
    if (peek() == '?') out_ += in_[at_++];
    if (peek() == '+') {  // not possessive in Ruby's dialect: the interval, once or more
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
  }

  void open_group() {
    const size_t start = out_.size();
    if (peek(1) == '*') unsupported("'(*'");
    if (peek(1) != '?') {
      out_ += '(';
      ++at_;
    } else {
      bool plain = false;
      for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
        if (!starts(kind)) continue;
        out_ += kind;
        at_ += kind.size();
        plain = true;
        break;
      }
      if (!plain && starts("(?<")) {
        const size_t end = in_.find('>', at_);
        if (end == std::string_view::npos) unsupported("a group's name without '>'");
        out_ += in_.substr(at_, end + 1 - at_);
        at_ = end + 1;
      } else if (!plain && starts("(?#")) {
        const size_t end = in_.find(')', at_);
        if (end == std::string_view::npos) unsupported("a comment without ')'");
        at_ = end + 1;
        return;
      } else if (!plain && !flags()) {
        return;  // "(?i)" belongs to the group that is open already
      }
    }
    groups_.push_back({start, 0});
  }

  // "(?i:" opens a group: true. "(?i)" holds up to the end of the open group, alternatives included.
  bool flags() {
    size_t i = at_ + 2;
    std::string text = "(?";
    for (; i < in_.size() && in_[i] != ':' && in_[i] != ')'; ++i) {
      if (in_[i] == 'm') {
        text += 's';  // Ruby's m: the dot takes line ends
      } else if (in_[i] == 'i' || in_[i] == '-') {
        text += in_[i];
      } else {
        unsupported(cat("the group '", in_.substr(at_, i + 1 - at_), "'"));
      }
    }
    if (i >= in_.size()) unsupported("a group without ')'");
    const bool opens = in_[i] == ':';
    out_ += text + ':';
    at_ = i + 1;
    if (!opens) ++groups_.back().to_close;
    return opens;
  }

  void close_group() {
    if (groups_.size() == 1) unsupported("')' without '('");
    close(groups_.back());
    out_ += ')';
    atom_ = groups_.back().start;
    groups_.pop_back();
    ++at_;
  }

  // \p{L}, \P{L}, \p{^L}: the name, and whether it is negated. at_ stands on the p.
  std::pair<std::string, bool> property() {
    bool negated = in_[at_] == 'P';
    const size_t end = in_.find('}', at_);
    if (peek(1) != '{' || end == std::string_view::npos) unsupported("\\p without {name}");
    std::string name(in_.substr(at_ + 2, end - at_ - 2));
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    for (const char c : name) {
      if (!is_letter(c) && c != '_' && !is_digit(c)) unsupported("a property's name");
    }
    at_ = end + 1;
    return {name, negated};
  }

  static std::string property_items(const std::string& name) {
    const bool category = name.size() <= 2 && !name.empty() && name[0] >= 'A' && name[0] <= 'Z';
    if (category) return category_items(name);
#if PCRE2_MAJOR == 10 && PCRE2_MINOR < 40
    return cat("\\p{", name, "}");
#else
    return cat("\\p{sc:", name, "}");  // a bare name would also take the script's extensions, unlike Oniguruma
#endif
  }

  // What \s and its like stand for inside a class; empty when c is none of them.
  static std::string class_items(char c) {
    switch (c) {
      case 's':
        return std::string(kSpace);
      case 'd':
        return category_items("Nd");
      case 'w':
        return word_items();
      case 'h':
        return std::string(kHex);
      default:
        return "";
    }
  }

  // Escapes that mean one character and the same in both dialects; true when taken.
  bool character_escape() {
    const char c = peek();
    if (c == '\0' || static_cast<uint8_t>(c) >= 0x80) unsupported("a '\\' before this");
    if (c == 'v') return out_ += "\\x{b}", ++at_, true;
    if (c == 'u') {
      for (size_t i = 1; i <= 4; ++i) {
        if (kHexDigits.find(peek(i)) == std::string_view::npos || peek(i) == '\0')
          unsupported("\\u without four digits");
      }
      out_ += cat("\\x{", in_.substr(at_ + 1, 4), "}");
      at_ += 5;
      return true;
    }
    if (is_letter(c) && std::string_view("rntfaex").find(c) == std::string_view::npos) return false;
    if (is_digit(c)) return false;
    out_ += '\\';
    out_ += c;
    ++at_;
    return true;
  }

  void escape() {
    atom_ = out_.size();
    ++at_;
    const char c = peek();
    if (character_escape()) return;
    if (c == 'p' || c == 'P') {
      const auto [name, negated] = property();
      out_ += cat(negated ? "[^" : "[", property_items(name), "]");
      return;
    }
    const char lower = static_cast<char>(c | 0x20);
    if (const std::string items = class_items(lower); is_letter(c) && !items.empty()) {
      out_ += cat(c == lower ? "[" : "[^", items, "]");
    } else if (c == 'b' || c == 'B') {
      const std::string word = cat("[", word_items(), "]");
      out_ += c == 'b' ? cat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                       : cat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
    } else if (c == 'A' || c == 'z' || c == 'Z' || (c >= '1' && c <= '9')) {
      out_ += cat("\\", c);
    } else {
      unsupported(cat("'\\", c, "'"));
    }
    ++at_;
  }

  void bracket() {
    atom_ = out_.size();
    out_ += in_[at_++];
    if (peek() == '^') out_ += in_[at_++];
    if (peek() == ']') unsupported("']' at the start of a class");
    while (peek() != ']') {
      if (at_ >= in_.size()) unsupported("a class without ']'");
      if (starts("&&")) unsupported("'&&' in a class");
      if (in_[at_] == '[') {
        posix();
      } else if (in_[at_] == '\\') {
        ++at_;
        class_escape();
      } else {
        const size_t size = code_point_at(in_, at_).size;
        out_ += in_.substr(at_, size);
        at_ += size;
      }
    }
    out_ += in_[at_++];
  }

  void class_escape() {
    const char c = peek();
    if (c == 'b') return out_ += "\\x{8}", void(++at_);
    if (character_escape()) return;
    if (c == 'p' || c == 'P') {
      const auto [name, negated] = property();
      out_ += negated ? cat("\\P{", name, "}") : property_items(name);
      return;
    }
    if (c == 'S') {
      out_ += kNotSpace;
    } else if (c == 'D') {
      out_ += "\\D";
    } else if (const std::string items = class_items(c); !items.empty()) {
      out_ += items;
    } else {
      unsupported(cat("'\\", c, "' in a class"));
    }
    ++at_;
  }

  void posix() {
    if (starts("[:space:]")) {
      out_ += kSpace;
      at_ += 9;
    } else if (starts("[:digit:]")) {
      out_ += category_items("Nd");
      at_ += 9;
    } else {
      unsupported("'[' in a class");
    }
  }

  static constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

  std::string_view in_;
  const std::string& where_;
  std::string out_;
  std::vector<Group> groups_;
  size_t at_ = 0;    // in in_
  size_t atom_ = 0;  // where the last atom starts in out_
};

}  // namespace

std::string translate_regex(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace hotswap::tokenizers
