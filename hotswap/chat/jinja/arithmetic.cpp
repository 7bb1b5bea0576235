#include "hotswap/chat/jinja/arithmetic.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/format.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

const char* symbol(Operator op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<int>(op)];
}

[[noreturn]] void too_large() { fail(Fault::kLimit, "an integer beyond 64 bits"); }

[[noreturn]] void unsupported(Operator op, const Value& a, const Value& b) {
  type_error(cat("unsupported operand type(s) for ", symbol(op), ": '", type_name(a), "' and '", type_name(b), "'"));
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) too_large();
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) value_error("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return Value::integer(result);
}

Value integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::kDivide:
      if (b == 0) value_error("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
      if (b == 0) value_error("integer division or modulo by zero");
      return Value::integer(floor_divide(a, b));
    case Operator::kModulo:
      if (b == 0) value_error("integer modulo by zero");
      return Value::integer(floor_modulo(a, b));
    case Operator::kPower:
      return integer_power(a, b);
  }
  return Value::none();
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value float_power(double a, double b) {
  if (a == 0 && b < 0) value_error("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    fail(Fault::kUnsupported, "a complex number");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) value_error("Numerical result out of range");
  return Value::real(result);
}

Value floats(Operator op, double a, double b) {
  if (b == 0 && (op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo)) {
    value_error("float division by zero");
  }
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kDivide:
      return Value::real(a / b);
    case Operator::kFloorDivide:
      return Value::real(float_floor_divide(a, b));
    case Operator::kModulo:
      return Value::real(float_modulo(a, b));
    case Operator::kPower:
      return float_power(a, b);
  }
  return Value::none();
}

Value add_texts(const Value& a, const Value& b) {
  const bool markup = a.text().markup || b.text().markup;
  if (!markup) return Value::string(a.str() + b.str());
  return Value::string(escape(a).str() + escape(b).str(), true);
}

Value repeat(const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (what.is_string()) {
    const std::string& text = what.str();
    const auto size = static_cast<__int128>(text.size()) * times;
    const size_t bytes = size > INT64_MAX ? SIZE_MAX : static_cast<size_t>(size);
    if (const Budget* budget = Budget::current()) budget->check_string(bytes);
    std::string out;
    out.reserve(bytes);
    for (int64_t i = 0; i < times && !text.empty(); ++i) out += text;
    return Value::string(std::move(out), what.text().markup);
  }
  const auto& items = what.items();
  const auto size = static_cast<__int128>(items.size()) * times * static_cast<__int128>(sizeof(Value));
  const Counted room(size > INT64_MAX ? SIZE_MAX / 2 : static_cast<size_t>(size));  // refused before it is made
  std::vector<Value> out;
  for (int64_t i = 0; i < times && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return what.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

bool repeatable(const Value& value) { return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple); }

Value concatenated(const Value& a, const Value& b) {
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace

Value apply(Operator op, const Value& left, const Value& right) {
  if (op == Operator::kModulo && left.is_string()) return percent_format(left, right);
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return integers(op, left.as_int(), right.as_int());
    return floats(op, left.as_float(), right.as_float());
  }
  if (op == Operator::kAdd) {
    if (left.is_string() && right.is_string()) return add_texts(left, right);
    if (left.kind() == right.kind() && (left.is(Kind::kList) || left.is(Kind::kTuple))) {
      return concatenated(left, right);
    }
  }
  if (op == Operator::kMultiply) {
    if (repeatable(left) && right.is_integer()) return repeat(left, right.as_int());
    if (repeatable(right) && left.is_integer()) return repeat(right, left.as_int());
  }
  if (left.is(Kind::kBigInt) || right.is(Kind::kBigInt)) too_large();
  unsupported(op, left, right);
}

Value negate(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integer()) return integers(Operator::kSubtract, 0, value.as_int());
  if (value.is(Kind::kFloat)) return Value::real(-value.as_float());
  type_error(cat("bad operand type for unary -: '", type_name(value), "'"));
}

Value plus(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integer()) return Value::integer(value.as_int());
  if (value.is(Kind::kFloat)) return value;
  type_error(cat("bad operand type for unary +: '", type_name(value), "'"));
}

Value escape(const Value& value) {
  if (value.is_string() && value.text().markup) return value;
  return Value::string(escape_html(str(value)), true);
}

Value round_number(const Value& number, int64_t precision) {
  if (number.is_undefined()) fail_undefined(number);
  if (!number.is_number()) type_error(cat("type ", type_name(number), " doesn't define __round__ method"));
  if (number.is_integer()) {
    if (precision >= 0) return Value::integer(number.as_int());
    if (precision < -18) return Value::integer(0);
    int64_t unit = 1;
    for (int64_t i = 0; i < -precision; ++i) unit *= 10;
    const int64_t low = floor_divide(number.as_int(), unit), rest = number.as_int() - low * unit;
    const bool up = rest * 2 > unit || (rest * 2 == unit && (low & 1) != 0);
    return Value::integer((low + (up ? 1 : 0)) * unit);
  }
  const double value = number.as_float();
  if (!std::isfinite(value) || precision > 323) return number;
  if (precision < -308) return Value::real(std::copysign(0.0, value));
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::real(std::nearbyint(value / unit) * unit);
  }
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value);
  return Value::real(std::strtod(buffer, nullptr));
}

int64_t float_to_int(double value) {
  if (std::isnan(value)) value_error("cannot convert float NaN to integer");
  if (std::isinf(value)) value_error("cannot convert float infinity to integer");
  if (value >= 9223372036854775808.0 || value < -9223372036854775808.0) too_large();
  return static_cast<int64_t>(value);
}

namespace {

// Without the white space around it and the underscores between its digits; none where those are misplaced.
std::optional<std::string> plain_digits(std::string_view text) {
  std::string out;
  const std::string_view stripped = strip_left(strip_right(text));
  for (size_t at = 0; at < stripped.size();) {
    const auto [c, size] = tokenizers::code_point_at(stripped, at);
    if (c == '_') {
      const bool between = at > 0 && at + 1 < stripped.size() && std::isalnum(static_cast<uint8_t>(stripped[at - 1])) &&
                           std::isalnum(static_cast<uint8_t>(stripped[at + 1]));
      if (!between) return std::nullopt;
    } else if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      if (!is_decimal(c)) return std::nullopt;
      char32_t zero = c;  // the ten digits of a script follow each other
      while (c - zero < 9 && is_decimal(zero - 1)) --zero;
      out += static_cast<char>('0' + (c - zero) % 10);
    }
    at += size;
  }
  return out;
}

}  // namespace

double parse_float_or(std::string_view text, bool* ok) {
  *ok = false;
  const auto digits = plain_digits(text);
  if (!digits) return 0;
  std::string_view rest = *digits;
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  std::string word = jinja::lower(rest);
  double value = 0;
  if (word == "inf" || word == "infinity") {
    value = INFINITY;
  } else if (word == "nan") {
    value = NAN;
  } else {
    if (rest.empty() || !(std::isdigit(static_cast<uint8_t>(rest[0])) || rest[0] == '.')) return 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (end != rest.data() + rest.size() || error == std::errc::invalid_argument) return 0;
    if (error == std::errc::result_out_of_range) value = std::strtod(std::string(rest).c_str(), nullptr);
  }
  *ok = true;
  return negative ? -value : value;
}

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) value_error("int() base must be >= 2 and <= 36, or 0");
  const auto digits = plain_digits(text);
  if (!digits) return std::nullopt;
  std::string_view rest = *digits;
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  const auto prefix = [&](char letter, int64_t of) {
    if (rest.size() < 2 || rest[0] != '0' || (rest[1] | 0x20) != letter || (base != 0 && base != of)) return false;
    rest.remove_prefix(2);
    base = of;
    return true;
  };
  if (!prefix('x', 16) && !prefix('o', 8) && !prefix('b', 2) && base == 0) {
    if (rest.size() > 1 && rest[0] == '0' && rest.find_first_not_of('0') != std::string_view::npos) return std::nullopt;
    base = 10;
  }
  uint64_t value = 0;
  if (rest.empty() || !std::isalnum(static_cast<uint8_t>(rest[0]))) return std::nullopt;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value, static_cast<int>(base));
  if (end != rest.data() + rest.size()) return std::nullopt;
  if (error != std::errc{} || value > static_cast<uint64_t>(INT64_MAX) + (negative ? 1 : 0)) too_large();
  return static_cast<int64_t>(negative ? -value : value);
}

}  // namespace hotswap::jinja
