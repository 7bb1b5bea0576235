#include <cmath>
#include <cstdio>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/attributes.h"
#include "hotswap/chat/jinja/format.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

constexpr int64_t kMaxBraceWidth = 1 << 20;

struct Spec {
  std::u32string fill = U" ";
  char align = 0, sign = 0, grouping = 0, type = 0;
  bool alternate = false, zero = false;
  int64_t width = 0;
  std::optional<int64_t> precision;
};

bool one_of(char32_t c, const char* set) {
  for (; *set != 0; ++set) {
    if (c == static_cast<char32_t>(*set)) return true;
  }
  return false;
}

Spec parse_spec(const std::string& text) {
  const std::u32string spec = decode(text);
  Spec out;
  size_t at = 0;
  const auto peek = [&](size_t i) { return i < spec.size() ? spec[i] : U'\0'; };
  const auto number = [&] {
    int64_t value = 0;
    while (at < spec.size() && spec[at] >= '0' && spec[at] <= '9') {
      value = value * 10 + static_cast<int64_t>(spec[at++] - '0');
      if (value > kMaxBraceWidth) value_error("Too many decimal digits in format string");
    }
    return value;
  };
  if (spec.size() > 1 && one_of(peek(1), "<>=^")) {
    out.fill = spec.substr(0, 1);
    out.align = static_cast<char>(peek(1));
    at = 2;
  } else if (one_of(peek(0), "<>=^")) {
    out.align = static_cast<char>(spec[at++]);
  }
  if (one_of(peek(at), "+- ")) out.sign = static_cast<char>(spec[at++]);
  if (peek(at) == 'z') ++at;
  if (peek(at) == '#') {
    out.alternate = true;
    ++at;
  }
  if (peek(at) == '0') {
    out.zero = true;
    if (out.align == 0) {
      out.align = '=';
      out.fill.assign(1, U'0');  // g++ 12 warns of its own assignment of a literal
    }
    ++at;
  }
  out.width = number();
  if (one_of(peek(at), ",_")) out.grouping = static_cast<char>(spec[at++]);
  if (peek(at) == '.') {
    ++at;
    if (!(peek(at) >= '0' && peek(at) <= '9')) value_error("Format specifier missing precision");
    out.precision = number();
  }
  if (at < spec.size() && spec[at] < 0x80) out.type = static_cast<char>(spec[at++]);
  if (at != spec.size()) value_error("Invalid format specifier");
  return out;
}

std::string aligned(const Spec& spec, const std::string& head, const std::string& body, char otherwise) {
  const auto used = static_cast<int64_t>(count_characters(head) + count_characters(body));
  const int64_t gap = std::max<int64_t>(0, spec.width - used);
  const char align = spec.align != 0 ? spec.align : otherwise;
  const auto filling = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += encode(spec.fill);
    return out;
  };
  switch (align) {
    case '<':
      return head + body + filling(gap);
    case '^':
      return filling(gap / 2) + head + body + filling(gap - gap / 2);
    case '=':
      return head + filling(gap) + body;
    default:
      return filling(gap) + head + body;
  }
}

// Separators into the whole part of a number, after zeros that fill `width` have been counted in.
std::string grouped(std::string digits, const Spec& spec, int every, size_t head) {
  if (spec.grouping == 0) return digits;
  const size_t end = digits.find_first_not_of("0123456789abcdefABCDEF");
  std::string whole = digits.substr(0, end);
  const std::string rest = end == std::string::npos ? "" : digits.substr(end);
  const auto insert = [&](const std::string& plain) {
    std::string out;
    for (size_t i = 0; i < plain.size(); ++i) {
      if (i > 0 && (plain.size() - i) % static_cast<size_t>(every) == 0) out += spec.grouping;
      out += plain[i];
    }
    return out;
  };
  if (spec.align == '=' && spec.fill == U"0") {
    while (static_cast<int64_t>(head + insert("0" + whole).size() + rest.size()) <= spec.width) whole.insert(0, "0");
  }
  return insert(whole) + rest;
}

std::string sign_of(const Spec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '+' || spec.sign == ' ' ? std::string(1, spec.sign) : "";
}

[[noreturn]] void unknown_code(char type, const Value& value) {
  value_error(cat("Unknown format code '", std::string(1, type), "' for object of type '", type_name(value), "'"));
}

std::string format_float(const Value& value, const Spec& spec) {
  const double number = value.as_float();
  const double magnitude = std::fabs(number);
  std::string digits;
  if (spec.type == 0 && !spec.precision) {
    digits = float_repr(magnitude);
  } else {
    const char letter = spec.type == 0 || spec.type == 'n' ? 'g' : spec.type == '%' ? 'f' : spec.type;
    int precision = static_cast<int>(std::min<int64_t>(spec.precision.value_or(6), 1000));
    if (letter == 'g' || letter == 'G') precision = std::max(precision, 1);
    digits = float_text(spec.type == '%' ? magnitude * 100 : magnitude, letter, precision, spec.alternate);
    if (spec.type == 0 && digits.find_first_of(".en") == std::string::npos) digits += ".0";
    if (spec.type == '%') digits += '%';
  }
  const std::string sign = sign_of(spec, std::signbit(number) && !std::isnan(number));
  return aligned(spec, sign, grouped(digits, spec, 3, sign.size()), '>');
}

std::string format_integer(const Value& value, const Spec& spec) {
  if (spec.precision) value_error("Precision not allowed in integer format specifier");
  const int64_t number = value.as_int();
  if (spec.type == 'c') {
    if (number < 0 || number >= 0x110000) value_error("%c arg not in range(0x110000)");
    std::string character;
    tokenizers::append_utf8(character, static_cast<char32_t>(number));
    return aligned(spec, "", character, '<');
  }
  const int base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : spec.type == 'x' || spec.type == 'X' ? 16 : 10;
  const std::string sign = sign_of(spec, number < 0);
  const std::string prefix = spec.alternate && base != 10 ? std::string("0") + spec.type : "";
  if (base != 10 && spec.grouping == ',')
    value_error(cat("Cannot specify ',' with '", std::string(1, spec.type), "'."));
  const std::string digits =
      grouped(integer_digits(number, base, spec.type == 'X'), spec, base == 10 ? 3 : 4, sign.size() + prefix.size());
  return aligned(spec, sign + prefix, digits, '>');
}

std::string format_text(const Value& value, const Spec& spec) {
  if (spec.type != 0 && spec.type != 's') unknown_code(spec.type, value);
  if (spec.sign != 0) value_error("Sign not allowed in string format specifier");
  if (spec.alternate) value_error("Alternate form (#) not allowed in string format specifier");
  if (spec.grouping != 0) value_error(cat("Cannot specify '", std::string(1, spec.grouping), "' with 's'."));
  if (spec.align == '=' && !spec.zero) value_error("'=' alignment not allowed in string format specifier");
  std::u32string text = decode(value.str());
  if (spec.precision && static_cast<int64_t>(text.size()) > *spec.precision) {
    text.resize(static_cast<size_t>(*spec.precision));
  }
  Spec placed = spec;
  if (placed.align == '=') placed.align = '<';  // what 0 alone means for texts
  return aligned(placed, "", encode(text), '<');
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Arguments& arguments, bool markup)
      : interpreter_(interpreter), arguments_(arguments), markup_(markup) {}

  std::string run(std::string_view text, int depth) {
    if (depth < 0) value_error("Max string recursion exceeded");
    std::string out;
    size_t at = 0;
    while (at < text.size()) {
      const char c = text[at++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (at < text.size() && text[at] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        value_error("Single '}' encountered in format string");
      } else {
        out += field(inside(text, &at), depth);
      }
      if (const Budget* budget = Budget::current()) budget->check_string(out.size());
    }
    return out;
  }

 private:
  static std::string_view inside(std::string_view text, size_t* at) {
    const size_t begin = *at;
    for (int open = 1; *at < text.size(); ++*at) {
      open += text[*at] == '{' ? 1 : text[*at] == '}' ? -1 : 0;
      if (open == 0) return text.substr(begin, (*at)++ - begin);
    }
    value_error(begin == text.size() ? "Single '{' encountered in format string" : "expected '}' before end of string");
  }

  std::string field(std::string_view field, int depth) {
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    const size_t bracket = field.find('[');
    size_t end = name_end;
    if (bracket < name_end) {  // a ! or : may stand in brackets
      const size_t close = field.rfind(']');
      if (close != std::string_view::npos && close > name_end)
        end = std::min(field.find_first_of("!:", close), field.size());
    }
    Value value = resolve(field.substr(0, end));
    std::string_view rest = field.substr(end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) {
        value_error("expected ':' after conversion specifier");
      }
      if (rest[1] == 'r' || rest[1] == 'a') {
        value = Value::string(repr(value));
      } else if (rest[1] == 's') {
        value = Value::string(str(value));
      } else {
        value_error(cat("Unknown conversion specifier ", std::string(1, rest[1])));
      }
      rest.remove_prefix(2);
    }
    const std::string spec = rest.empty() ? "" : run(rest.substr(1), depth - 1);
    if (markup_ && spec.empty()) return escape(value).str();
    const std::string text = format_with_spec(value, spec);
    return markup_ ? escape_html(text) : text;
  }

  Value resolve(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = first(std::string(name.substr(0, first_end)));
    for (size_t at = first_end; at < name.size();) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) value_error("Empty attribute in format string");
        value = get_attribute(interpreter_, value, std::string(name.substr(at + 1, end - at - 1)));
        at = end;
      } else if (name[at] == '[') {
        const size_t end = name.find(']', at);
        if (end == std::string_view::npos) value_error("Missing ']' in format string");
        if (end == at + 1) value_error("Empty attribute in format string");
        const std::string key(name.substr(at + 1, end - at - 1));
        const bool index = key.find_first_not_of("0123456789") == std::string::npos && key.size() < 19;
        value = get_item(interpreter_, value, index ? Value::integer(std::stoll(key)) : Value::string(key));
        at = end + 1;
      } else {
        value_error("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value first(const std::string& name) {
    const bool number = name.find_first_not_of("0123456789") == std::string::npos;
    if (!number) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      value_error(cat("key error: ", repr_of_text(name)));
    }
    if (name.empty() ? manual_ : automatic_) {
      value_error("cannot switch between manual field specification and automatic field numbering");
    }
    (name.empty() ? automatic_ : manual_) = true;
    const size_t at = name.empty() ? next_++ : name.size() < 10 ? std::stoul(name) : SIZE_MAX;
    if (at >= arguments_.positional.size()) {
      value_error("Replacement index out of range for positional args tuple");
    }
    return arguments_.positional[at];
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  bool markup_;
  bool manual_ = false, automatic_ = false;
  size_t next_ = 0;
};

}  // namespace

std::string format_with_spec(const Value& value, const std::string& spec) {
  if (spec.empty()) return str(value);
  const Spec parsed = parse_spec(spec);
  if (value.is_string()) return format_text(value, parsed);
  if (!value.is_number()) {
    type_error(cat("unsupported format string passed to ", type_name(value), ".__format__"));
  }
  const bool as_float = parsed.type != 0 && one_of(static_cast<char32_t>(parsed.type), "eEfFgG%");
  if (value.is(Kind::kFloat) || as_float) {
    if (!as_float && parsed.type != 0 && parsed.type != 'n') unknown_code(parsed.type, value);
    return format_float(value, parsed);
  }
  if (parsed.type != 0 && !one_of(static_cast<char32_t>(parsed.type), "bcdoxXn")) unknown_code(parsed.type, value);
  return format_integer(value, parsed);
}

Value brace_format(Interpreter& interpreter, const Value& format, const Arguments& arguments) {
  BraceFormatter formatter(interpreter, arguments, format.text().markup);
  return Value::string(formatter.run(format.str(), 2), format.text().markup);
}

}  // namespace hotswap::jinja
