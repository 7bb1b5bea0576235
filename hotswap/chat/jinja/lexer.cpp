// Cuts a template into tokens, with trim_blocks and lstrip_blocks on, as transformers sets jinja2 up.
#include <algorithm>
#include <cmath>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"
#include "hotswap/chat/jinja/token.h"

namespace hotswap::jinja {
namespace {

constexpr auto npos = std::string_view::npos;

// CRLF and CR become LF, and one newline at the very end goes.
std::string normalized(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool word_character(char32_t c) {
  return c == '_' || (c < 0x80 ? std::isalnum(static_cast<int>(c)) != 0 : tokenizers::is_word(c));
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    tokens_.push_back({.kind = TokenKind::kEnd, .line = line_});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void syntax(const std::string& message) const { throw TemplateError(Fault::kSyntax, message, line_); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  void advance(size_t bytes) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<long>(at_), text_.begin() + static_cast<long>(at_ + bytes), '\n'));
    at_ += bytes;
  }
  void skip_space() { advance(text_.size() - at_ - strip_left(text_.substr(at_)).size()); }
  void push(TokenKind kind, std::string text = "", Value value = {}) {
    tokens_.push_back({kind, std::move(text), std::move(value), line_});
  }

  void root();
  void data(std::string_view text, char sign, bool variable);
  void comment();
  size_t raw_length() const;
  void raw();
  void tag(bool block);
  bool tag_end(bool block);
  void word(std::vector<char>& open);
  void number();
  void string();
  std::string unescaped(std::string_view text) const;
  void code_point(std::string& out, uint32_t value) const;

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

// The text up to the next tag, and that tag.
void Lexer::root() {
  size_t tag_at = text_.find('{', at_);
  while (tag_at != npos && (tag_at + 1 >= text_.size() || std::string_view("{%#").find(text_[tag_at + 1]) == npos)) {
    tag_at = text_.find('{', tag_at + 1);
  }
  if (tag_at == npos) {
    push(TokenKind::kData, std::string(text_.substr(at_)));
    advance(text_.size() - at_);
    return;
  }
  const char kind = text_[tag_at + 1];
  const char sign = tag_at + 2 < text_.size() ? text_[tag_at + 2] : '\0';
  const bool signed_tag = sign == '-' || sign == '+';
  data(text_.substr(at_, tag_at - at_), signed_tag ? sign : '\0', kind == '{');
  advance(tag_at - at_);
  if (kind == '%' && raw_length() > 0) return raw();
  const std::string_view begin = text_.substr(at_, signed_tag ? 3 : 2);
  advance(begin.size());
  line_starting_ = false;
  if (kind == '#') {
    comment();
  } else {
    push(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
    tag(kind == '%');
  }
}

void Lexer::data(std::string_view text, char sign, bool variable) {
  if (sign == '-') {
    text = strip_right(text);
  } else if (sign != '+' && !variable) {
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == npos ? 0 : newline + 1;
    // Blanks alone before a block on its line go.
    if ((begin > 0 || line_starting_) && strip_left(text.substr(begin)).empty()) text = text.substr(0, begin);
  }
  if (!text.empty()) push(TokenKind::kData, std::string(text));
}

// Behind the sign of an end: "-" takes the white space, nothing takes one newline of a block, "+" keeps it.
void Lexer::comment() {
  const size_t end = text_.find("#}", at_);
  if (end == npos) syntax("Missing end of comment tag");
  const char sign = end > at_ ? text_[end - 1] : '\0';
  advance(end + 2 - at_);
  line_starting_ = false;
  if (sign == '-') {
    const size_t before = at_;
    skip_space();
    line_starting_ = at_ > before && text_[at_ - 1] == '\n';
  } else if (sign != '+' && peek() == '\n') {
    advance(1);
    line_starting_ = true;
  }
}

// The bytes of a {% raw %} that stands here; 0 where none does.
size_t Lexer::raw_length() const {
  std::string_view rest = text_.substr(at_ + 2);
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  rest = strip_left(rest);
  if (!rest.starts_with("raw")) return 0;
  rest = strip_left(rest.substr(3));
  if (rest.starts_with("-%}")) return text_.size() - at_ - strip_left(rest.substr(3)).size();
  return rest.starts_with("%}") ? text_.size() - at_ - (rest.size() - 2) : 0;
}

void Lexer::raw() {
  const size_t length = raw_length();
  line_starting_ = text_[at_ + length - 1] == '\n';
  advance(length);
  for (size_t tag_at = text_.find("{%", at_); tag_at != npos; tag_at = text_.find("{%", tag_at + 1)) {
    std::string_view rest = text_.substr(tag_at + 2);
    const char sign = !rest.empty() && (rest[0] == '-' || rest[0] == '+') ? rest[0] : '\0';
    if (sign != '\0') rest.remove_prefix(1);
    rest = strip_left(rest);
    if (!rest.starts_with("endraw")) continue;
    rest = strip_left(rest.substr(6));
    const bool keep = rest.starts_with("+%}"), strip = rest.starts_with("-%}");
    if (!keep && !strip && !rest.starts_with("%}")) continue;
    rest.remove_prefix(keep || strip ? 3 : 2);
    if (strip) rest = strip_left(rest);
    if (!keep && !strip && rest.starts_with("\n")) rest.remove_prefix(1);
    data(text_.substr(at_, tag_at - at_), sign, false);
    advance(text_.size() - rest.size() - at_);
    line_starting_ = text_[at_ - 1] == '\n';
    return;
  }
  syntax("Missing end of raw directive");
}

bool Lexer::tag_end(bool block) {
  const std::string_view end = block ? "%}" : "}}";
  size_t size = 0;
  bool strip = false, newline = false;
  if (starts(end)) {
    size = 2;
    newline = block;
  } else if (peek() == '-' && text_.substr(at_ + 1).starts_with(end)) {
    size = 3;
    strip = true;
  } else if (block && peek() == '+' && text_.substr(at_ + 1).starts_with(end)) {
    size = 3;
  } else {
    return false;
  }
  push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
  advance(size);
  const size_t before = at_;
  if (strip) skip_space();
  if (newline && peek() == '\n') advance(1);
  line_starting_ = at_ > before && text_[at_ - 1] == '\n';
  return true;
}

void Lexer::tag(bool block) {
  std::vector<char> open;  // brackets: inside of them the end of a tag is none
  while (at_ < text_.size()) {
    if (open.empty() && tag_end(block)) return;
    word(open);
  }
}

void Lexer::word(std::vector<char>& open) {
  const auto [c, size] = tokenizers::code_point_at(text_, at_);
  if (is_space(c)) return skip_space();
  if (c >= '0' && c <= '9') return number();
  if (word_character(c)) {
    size_t end = at_;
    while (end < text_.size()) {
      const auto [next, bytes] = tokenizers::code_point_at(text_, end);
      if (!word_character(next)) break;
      end += bytes;
    }
    std::string name(text_.substr(at_, end - at_));
    if (!is_identifier(name)) syntax("Invalid character in identifier");
    push(TokenKind::kName, std::move(name));
    return advance(end - at_);
  }
  if (c == '\'' || c == '"') return string();
  static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
  for (const std::string_view op : kOperators) {
    if (!starts(op)) continue;
    if (op == "(" || op == "[" || op == "{") open.push_back(op == "(" ? ')' : op == "[" ? ']' : '}');
    if (op == ")" || op == "]" || op == "}") {
      if (open.empty()) syntax(cat("unexpected '", op, "'"));
      if (open.back() != op[0]) syntax(cat("unexpected '", op, "', expected '", std::string(1, open.back()), "'"));
      open.pop_back();
    }
    push(TokenKind::kOperator, std::string(op));
    return advance(op.size());
  }
  syntax(cat("unexpected char ", repr_of_text(text_.substr(at_, size)), " at ", at_));
}

// The digits, with single underscores between them, that stand at `at`; how many bytes.
size_t digit_run(std::string_view text, size_t at, std::string_view digits) {
  const auto digit = [&](size_t i) { return i < text.size() && digits.find(text[i]) != npos; };
  size_t end = at;
  while (digit(end) || (end > at && end < text.size() && text[end] == '_' && digit(end + 1))) ++end;
  return end - at;
}

void Lexer::number() {
  constexpr std::string_view kDecimal = "0123456789";
  const auto plain = [&](size_t end) {
    std::string out(text_.substr(at_, end - at_));
    std::erase(out, '_');
    return out;
  };
  const size_t whole = digit_run(text_, at_, kDecimal);
  size_t end = at_ + whole;
  bool real = false;
  const bool after_point = at_ > 0 && text_[at_ - 1] == '.';  // messages.0.1: the items 0 and 1
  if (!after_point) {
    const size_t fraction = end < text_.size() && text_[end] == '.' ? digit_run(text_, end + 1, kDecimal) : 0;
    if (fraction > 0) {
      end += 1 + fraction;
      real = true;
    }
    if (end < text_.size() && (text_[end] | 0x20) == 'e') {
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      const size_t exponent = digit_run(text_, end + 1 + sign, kDecimal);
      if (exponent > 0) {
        end += 1 + sign + exponent;
        real = true;
      }
    }
  }
  if (real) {
    push(TokenKind::kNumber, "", Value::real(std::strtod(plain(end).c_str(), nullptr)));
    return advance(end - at_);
  }
  int base = 10;
  if (peek() == '0' && at_ + 1 < text_.size()) {
    const char letter = static_cast<char>(text_[at_ + 1] | 0x20);
    const std::string_view digits = letter == 'x'   ? "0123456789abcdefABCDEF"
                                    : letter == 'o' ? "01234567"
                                    : letter == 'b' ? "01"
                                                    : "";
    const size_t skip = at_ + 2 < text_.size() && text_[at_ + 2] == '_' ? 1 : 0;
    const size_t count = digits.empty() ? 0 : digit_run(text_, at_ + 2 + skip, digits);
    if (count > 0) {
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      end = at_ + 2 + skip + count;
    } else {
      end = at_ + digit_run(text_, at_, "0");  // a zero in front of other digits ends the number
    }
  }
  const auto value = parse_int(plain(end), base);
  push(TokenKind::kNumber, "", Value::integer(value.value_or(0)));
  advance(end - at_);
}

void Lexer::string() {
  const char quote = peek();
  size_t end = at_ + 1;
  while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) syntax(cat("unexpected char ", repr_of_text(text_.substr(at_, 1)), " at ", at_));
  push(TokenKind::kString, unescaped(text_.substr(at_ + 1, end - at_ - 1)));
  advance(end + 1 - at_);
}

void Lexer::code_point(std::string& out, uint32_t value) const {
  if (value >= 0x110000) syntax("illegal Unicode character");
  if (value >= 0xD800 && value < 0xE000) syntax("a lone surrogate, which no UTF-8 text can hold");
  tokenizers::append_utf8(out, value);
}

std::string Lexer::unescaped(std::string_view text) const {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 >= text.size()) {
      out += text[i];
      continue;
    }
    const char letter = text[++i];
    constexpr std::string_view kLetters = "ntabfrv\\'\"", kMeanings = "\n\t\a\b\f\r\v\\'\"";
    if (const size_t known = kLetters.find(letter); known != npos) {
      out += kMeanings[known];
    } else if (letter >= '0' && letter <= '7') {
      uint32_t value = 0;
      size_t digits = 0;
      for (; digits < 3 && i + digits < text.size() && text[i + digits] >= '0' && text[i + digits] <= '7'; ++digits) {
        value = value * 8 + static_cast<uint32_t>(text[i + digits] - '0');
      }
      code_point(out, value);
      i += digits - 1;
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const size_t size = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      const std::string hex(text.substr(i + 1, size));
      if (hex.size() < size || hex.find_first_not_of("0123456789abcdefABCDEF") != npos) {
        syntax(cat("truncated \\", std::string(1, letter), " escape"));
      }
      code_point(out, static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
      i += size;
    } else if (letter == 'N') {
      syntax("\\N{...} escapes are not supported; write the character itself");
    } else if (letter != '\n') {  // an unknown escape keeps its backslash
      out += '\\';
      out += letter;
    }
  }
  return out;
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace hotswap::jinja
