#include "hotswap/serve/python_literal.h"

#include <nlohmann/json.hpp>

#include "hotswap/serve/message_part.h"
#include "hotswap/serve/request_body.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::serve {
namespace {

using OutJson = nlohmann::ordered_json;

constexpr int kMaxNesting = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  std::optional<OutJson> whole() {
    auto found = value();
    skip();
    return found && at_ == text_.size() ? found : std::nullopt;
  }

 private:
  bool more() const { return at_ < text_.size(); }
  char peek() const { return more() ? text_[at_] : '\0'; }
  void skip() {
    while (more() && is_blank(peek())) ++at_;
  }
  bool take(char c) {
    skip();
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  std::optional<OutJson> value() {
    skip();
    const char c = peek();
    if (c == '\'' || c == '"') return text();
    if (c != '[' && c != '(' && c != '{') return word();
    if (++depth_ > kMaxNesting) return std::nullopt;
    ++at_;
    auto found = c == '{' ? dict() : list(c == '[' ? ']' : ')');
    --depth_;
    return found;
  }

  std::optional<OutJson> list(char end) {
    OutJson out = OutJson::array();
    while (!take(end)) {
      auto element = value();
      if (!element) return std::nullopt;
      out.push_back(std::move(*element));
      if (take(',')) continue;
      if (!take(end)) return std::nullopt;
      break;
    }
    return out;
  }

  std::optional<OutJson> dict() {
    OutJson out = OutJson::object();
    while (!take('}')) {
      skip();
      const auto key = text();
      if (!key || !take(':')) return std::nullopt;
      auto entry = value();
      if (!entry) return std::nullopt;
      out[key->get<std::string>()] = std::move(*entry);
      if (take(',')) continue;
      if (!take('}')) return std::nullopt;
      break;
    }
    return out;
  }

  // True, False, None as in Python or as in JSON, or a number.
  std::optional<OutJson> word() {
    const size_t begin = at_;
    while (more() && !is_blank(peek()) && std::string_view(",:)]}'\"").find(peek()) == std::string_view::npos) ++at_;
    const std::string word(text_.substr(begin, at_ - begin));
    if (word == "True" || word == "true") return OutJson(true);
    if (word == "False" || word == "false") return OutJson(false);
    if (word == "None" || word == "null") return OutJson(nullptr);
    if (word.empty() || !json_problem(word).empty()) return std::nullopt;
    OutJson number = OutJson::parse(word);
    return number.is_number() ? std::optional(std::move(number)) : std::nullopt;
  }

  std::optional<OutJson> text() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return std::nullopt;
    ++at_;
    std::string out;
    while (more() && peek() != quote) {
      const char c = text_[at_++];
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return std::nullopt;
      }
    }
    if (!more()) return std::nullopt;
    ++at_;
    return OutJson(std::move(out));
  }

  // What follows a backslash. As in Python an unknown one stays, with its backslash.
  bool escape(std::string& out) {
    if (!more()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kLetters = "nrtbfav0\\'\"", kMeant("\n\r\t\b\f\a\v\0\\'\"", 11);
    if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
      out += kMeant[found];
      return true;
    }
    if (c == '\n') return true;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      out += {'\\', c};
      return true;
    }
    const auto first = code_point(digits);
    if (!first) return false;
    char32_t code = *first;
    // A pair of surrogates, as JSON writes what is beyond U+FFFF.
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const auto second = code_point(4);
      if (!second || *second < 0xDC00 || *second > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (*second - 0xDC00);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    tokenizers::append_utf8(out, code);
    return true;
  }

  std::optional<char32_t> code_point(size_t digits) {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      if (!std::isxdigit(static_cast<unsigned char>(peek()))) return std::nullopt;
      code = code * 16 + static_cast<char32_t>(peek() <= '9' ? peek() - '0' : (peek() | 32) - 'a' + 10);
    }
    return code;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<std::string> json_of_python(std::string_view text) {
  const auto value = Reader(text).whole();
  if (!value) return std::nullopt;
  return value->dump(-1, ' ', false, OutJson::error_handler_t::replace);
}

}  // namespace hotswap::serve
