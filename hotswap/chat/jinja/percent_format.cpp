#include <charconv>
#include <cmath>
#include <cstdio>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/format.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

constexpr int64_t kMaxPercentWidth = 1 << 20;

struct Conversion {
  bool left = false, zero = false, plus = false, blank = false, alternate = false;
  int64_t width = 0;
  std::optional<int64_t> precision;
  char type = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& arguments)
      : text_(format.str()),
        markup_(format.text().markup),
        arguments_(arguments),
        single_(!arguments.is(Kind::kTuple)) {}

  std::string run() {
    while (at_ < text_.size()) {
      const size_t percent = text_.find('%', at_);
      out_ += text_.substr(at_, percent - at_);
      if (percent == std::string::npos) break;
      at_ = percent + 1;
      convert();
      if (const Budget* budget = Budget::current()) budget->check_string(out_.size());
    }
    const bool all = single_ ? taken_ > 0 || arguments_.is(Kind::kDict) || mapping_like() || used_key_
                             : taken_ == arguments_.items().size();
    if (!all) type_error("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  // Lists and the like have items and are no str: Python then does not count them.
  bool mapping_like() const {
    return arguments_.is(Kind::kList) || arguments_.is(Kind::kRange) || arguments_.is_undefined();
  }
  char next() {
    if (at_ >= text_.size()) value_error("incomplete format");
    return text_[at_++];
  }
  Value argument() {
    if (key_) return *key_;
    if (!single_) {
      if (taken_ >= arguments_.items().size()) type_error("not enough arguments for format string");
      return arguments_.items()[taken_++];
    }
    if (taken_++ > 0) type_error("not enough arguments for format string");
    return arguments_;
  }
  int64_t number(std::optional<char> first) {
    if (first && *first == '*') {
      const Value value = argument();
      if (!value.is_integer()) type_error("* wants int");
      return value.as_int();
    }
    int64_t value = 0;
    if (first) value = *first - '0';
    while (at_ < text_.size() && std::isdigit(static_cast<uint8_t>(text_[at_]))) {
      value = std::min(value * 10 + (text_[at_++] - '0'), kMaxPercentWidth + 1);
    }
    return value;
  }
  void read_key() {
    if (!arguments_.is(Kind::kDict)) type_error("format requires a mapping");
    int depth = 1;
    const size_t begin = at_;
    while (depth > 0) {
      const char c = next();
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    const std::string name = text_.substr(begin, at_ - begin - 1);
    const Value* found = arguments_.dict()->find(name);
    if (found == nullptr) value_error(cat("key error: ", repr_of_text(name)));
    key_ = *found;
    used_key_ = true;
  }
  Conversion read();
  void convert();
  std::string shown(const Conversion& c, const Value& value);
  std::string integer(const Conversion& c, const Value& value);
  std::string real(const Conversion& c, const Value& value);
  std::string with_sign(const Conversion& c, bool negative, std::string prefix, std::string digits);

  const std::string& text_;
  bool markup_;
  const Value& arguments_;
  bool single_;
  size_t at_ = 0, taken_ = 0;
  std::optional<Value> key_;
  bool used_key_ = false;
  std::string out_;
};

Conversion PercentFormatter::read() {
  Conversion c;
  char letter = next();
  if (letter == '(') {
    read_key();
    letter = next();
  }
  for (;; letter = next()) {
    if (letter == '-') {
      c.left = true;
    } else if (letter == '+') {
      c.plus = true;
    } else if (letter == ' ') {
      c.blank = true;
    } else if (letter == '#') {
      c.alternate = true;
    } else if (letter == '0') {
      c.zero = true;
    } else {
      break;
    }
  }
  if (letter == '*' || std::isdigit(static_cast<uint8_t>(letter))) {
    c.width = number(letter);
    if (c.width < 0) {
      c.left = true;
      c.width = -c.width;
    }
    letter = next();
  }
  if (letter == '.') {
    letter = next();
    const bool given = letter == '*' || std::isdigit(static_cast<uint8_t>(letter));
    c.precision = given ? std::max<int64_t>(0, number(letter)) : 0;
    if (given) letter = next();
  }
  if (letter == 'h' || letter == 'l' || letter == 'L') letter = next();
  if (c.width > kMaxPercentWidth || c.precision.value_or(0) > kMaxPercentWidth)
    value_error("width or precision too big");
  c.type = letter;
  return c;
}

std::string PercentFormatter::with_sign(const Conversion& c, bool negative, std::string prefix, std::string digits) {
  const std::string sign = negative ? "-" : c.plus ? "+" : c.blank ? " " : "";
  const auto used = static_cast<int64_t>(sign.size() + prefix.size() + digits.size());
  if (c.zero && !c.left && used < c.width) digits.insert(0, static_cast<size_t>(c.width - used), '0');
  return sign + prefix + digits;
}

std::string PercentFormatter::integer(const Conversion& c, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  int64_t number = 0;
  const bool decimal = c.type == 'd' || c.type == 'i' || c.type == 'u';
  if (value.is_integer()) {
    number = value.as_int();
  } else if (decimal && value.is(Kind::kFloat)) {
    number = float_to_int(value.as_float());
  } else {
    type_error(cat("%", std::string(1, c.type), " format: ", decimal ? "a real number" : "an integer",
                   " is required, not ", type_name(value)));
  }
  const int base = decimal ? 10 : c.type == 'o' ? 8 : 16;
  std::string digits = integer_digits(number, base, c.type == 'X');
  const auto least = static_cast<size_t>(c.precision.value_or(0));
  if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
  std::string prefix;
  if (c.alternate && !decimal) prefix = base == 8 ? "0o" : c.type == 'X' ? "0X" : "0x";
  return with_sign(c, number < 0, prefix, digits);
}

std::string PercentFormatter::real(const Conversion& c, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) type_error(cat("must be real number, not ", type_name(value)));
  const double number = value.as_float();
  const int precision = static_cast<int>(std::min<int64_t>(c.precision.value_or(6), 1000));
  return with_sign(c, std::signbit(number) && !std::isnan(number), "",
                   float_text(std::fabs(number), c.type, precision, c.alternate));
}

std::string PercentFormatter::shown(const Conversion& c, const Value& value) {
  std::string text = c.type == 's' ? (markup_ ? escape(value).str() : str(value)) : repr(value);
  if (c.type == 'a') {
    std::string ascii;
    for (const char32_t character : decode(text)) {
      char buffer[16];
      std::snprintf(buffer, sizeof(buffer),
                    character < 0x100     ? "\\x%02x"
                    : character < 0x10000 ? "\\u%04x"
                                          : "\\U%08x",
                    static_cast<unsigned>(character));
      ascii += character < 0x80 ? std::string(1, static_cast<char>(character)) : buffer;
    }
    text = ascii;
  }
  if (c.precision && static_cast<int64_t>(count_characters(text)) > *c.precision) {
    text = encode(decode(text).substr(0, static_cast<size_t>(*c.precision)));
  }
  return text;
}

void PercentFormatter::convert() {
  key_.reset();
  const Conversion c = read();
  if (c.type == '%') {
    out_ += '%';
    return;
  }
  std::string text;
  switch (c.type) {
    case 's':
    case 'r':
    case 'a':
      text = shown(c, argument());
      break;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
      text = integer(c, argument());
      break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      text = real(c, argument());
      break;
    case 'c': {
      const Value value = argument();
      if (value.is_integer() && value.as_int() >= 0 && value.as_int() < 0x110000) {
        tokenizers::append_utf8(text, static_cast<char32_t>(value.as_int()));
      } else if (value.is_string() && count_characters(value.str()) == 1) {
        text = value.str();
      } else {
        type_error("%c requires int or char");
      }
      break;
    }
    default:
      value_error(cat("unsupported format character '", std::string(1, c.type), "'"));
  }
  const auto length = static_cast<int64_t>(count_characters(text));
  const std::string fill(static_cast<size_t>(std::max<int64_t>(0, c.width - length)), ' ');
  out_ += c.left ? text + fill : fill + text;
}

// Without the zeros at the end of the part behind the point.
std::string without_zeros(std::string digits) {
  if (digits.find('.') == std::string::npos) return digits;
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.back() == '.') digits.pop_back();
  return digits;
}

}  // namespace

Value percent_format(const Value& format, const Value& arguments) {
  return Value::string(PercentFormatter(format, arguments).run(), format.text().markup);
}

std::string integer_digits(int64_t value, int base, bool upper) {
  const uint64_t magnitude = value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  char buffer[72];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), magnitude, base).ptr;
  std::string digits(buffer, end);
  return upper ? jinja::upper(std::string_view(digits)) : digits;
}

std::string float_text(double value, char letter, int precision, bool alternate) {
  const bool upper = letter == 'E' || letter == 'F' || letter == 'G';
  const char low = static_cast<char>(letter | 0x20);
  if (!std::isfinite(value)) {
    const std::string word = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return upper ? jinja::upper(std::string_view(word)) : word;
  }
  std::string buffer(static_cast<size_t>(precision) + 400, '\0');
  const char format[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : letter, alternate ? letter : '\0', '\0'};
  const int size = std::snprintf(buffer.data(), buffer.size(), format, precision, value);
  buffer.resize(static_cast<size_t>(size));
  if (low != 'g' || alternate) return buffer;
  const size_t e = buffer.find(upper ? 'E' : 'e');
  return e == std::string::npos ? without_zeros(buffer) : without_zeros(buffer.substr(0, e)) + buffer.substr(e);
}

}  // namespace hotswap::jinja
