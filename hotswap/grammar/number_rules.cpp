#include "hotswap/grammar/number_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace hotswap::grammar {
namespace {

constexpr int kDigits = 15;
constexpr size_t kDecimals = 6;  // at most, of a value with bounds
constexpr int64_t kLimit = 999'999'999'999'999;

ExprPtr digits(int64_t min, int64_t max) { return repeat(one_of({{'0', '9'}}), min, max); }

// The digits of a value without an exponent: "12", "5" of 12.5.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;
};

Decimal decimal_of(double value) {
  std::array<char, 400> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), std::fabs(value), std::chars_format::fixed).ptr;
  const std::string all(text.data(), end);
  const size_t dot = std::min(all.find('.'), all.size());
  return {.negative = std::signbit(value) && value != 0,
          .whole = all.substr(0, dot),
          .fraction = dot < all.size() ? all.substr(dot + 1) : ""};
}

// The bound times 10^decimals, rounded into the interval.
int64_t scaled(const Bound& bound, int decimals, bool is_min) {
  const Decimal d = decimal_of(bound.value);
  if (d.whole.size() + static_cast<size_t>(decimals) > kDigits) return d.negative ? -kLimit - 1 : kLimit + 1;
  std::string shown = d.fraction.substr(0, decimals);
  const bool exact = d.fraction.find_first_not_of('0', shown.size()) == std::string::npos;
  shown.resize(decimals, '0');
  int64_t value = 0;
  for (const char c : d.whole + shown) value = value * 10 + (c - '0');
  if (d.negative) value = -value;
  if (exact) return value + (!bound.exclusive ? 0 : is_min ? 1 : -1);
  // Cut off was toward zero.
  if (is_min) return d.negative ? value : value + 1;
  return d.negative ? value - 1 : value;
}

std::string padded(int64_t value, size_t length) {
  const std::string text = std::to_string(value);
  return std::string(length - std::min(length, text.size()), '0') + text;
}

// Texts of digits between two of one length; a point comes before the last `decimals`.
class DigitRange {
 public:
  explicit DigitRange(size_t decimals) : decimals_(decimals) {}
  ExprPtr between(const std::string& low, const std::string& high) const {
    const size_t left = low.size();
    if (left == 0) return sequence({});
    ExprPtr point = decimals_ > 0 && left == decimals_ ? literal(".") : sequence({});
    return sequence({point, tail(low, high)});
  }

 private:
  ExprPtr tail(const std::string& low, const std::string& high) const {
    if (low.find_first_not_of('0') == std::string::npos && high.find_first_not_of('9') == std::string::npos) {
      return any(low.size());
    }
    const std::string low_rest = low.substr(1), high_rest = high.substr(1);
    const auto digit = [](char first, char last) {
      return one_of({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
    };
    if (low[0] == high[0]) return sequence({digit(low[0], low[0]), between(low_rest, high_rest)});
    const std::string zeros(low_rest.size(), '0'), nines(low_rest.size(), '9');
    std::vector<ExprPtr> parts = {sequence({digit(low[0], low[0]), between(low_rest, nines)})};
    if (low[0] + 1 < high[0]) {
      parts.push_back(
          sequence({digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), between(zeros, nines)}));
    }
    parts.push_back(sequence({digit(high[0], high[0]), between(zeros, high_rest)}));
    return choice(std::move(parts));
  }
  ExprPtr any(size_t length) const {
    const auto count = static_cast<int64_t>(length), after = static_cast<int64_t>(decimals_);
    if (after == 0 || count <= after) return digits(count, count);
    return sequence({digits(count - after, count - after), literal("."), digits(after, after)});
  }
  size_t decimals_;
};

int64_t power_of_ten(size_t exponent) {
  int64_t value = 1;
  while (exponent-- > 0) value *= 10;
  return value;
}

// Of low to high, neither below 0, in units of 10^-decimals; no leading zeros.
ExprPtr nonnegative(int64_t low, int64_t high, size_t decimals) {
  std::vector<ExprPtr> parts;
  for (size_t length = decimals + 1; length <= kDigits; ++length) {
    const int64_t first = length == decimals + 1 ? 0 : power_of_ten(length - 1), last = power_of_ten(length) - 1;
    const int64_t from = std::max(low, first), to = std::min(high, last);
    if (from > to) continue;
    parts.push_back(DigitRange(decimals).between(padded(from, length), padded(to, length)));
  }
  return choice(std::move(parts));
}

ExprPtr range(const NumberBounds& bounds, size_t decimals) {
  int64_t low = -kLimit, high = kLimit;
  for (const Bound& b : bounds.min) low = std::max(low, scaled(b, static_cast<int>(decimals), /*is_min=*/true));
  for (const Bound& b : bounds.max) high = std::min(high, scaled(b, static_cast<int>(decimals), /*is_min=*/false));
  if (low > high) return never();
  std::vector<ExprPtr> parts;
  if (high >= 0) parts.push_back(nonnegative(std::max<int64_t>(low, 0), high, decimals));
  if (low < 0) parts.push_back(sequence({literal("-"), nonnegative(std::max<int64_t>(-high, 1), -low, decimals)}));
  return choice(std::move(parts));
}

}  // namespace

ExprPtr integer_expr(const NumberBounds& bounds) { return range(bounds, 0); }

ExprPtr number_expr(const NumberBounds& bounds) {
  if (bounds.min.empty() && bounds.max.empty()) {
    const ExprPtr whole = choice({literal("0"), sequence({one_of({{'1', '9'}}), digits(0, kDigits - 1)})});
    const ExprPtr fraction = sequence({literal("."), digits(1, kDigits)});
    const ExprPtr exponent =
        sequence({one_of({{'e', 'e'}, {'E', 'E'}}), optional(one_of({{'+', '+'}, {'-', '-'}})), digits(1, 2)});
    return sequence({optional(literal("-")), whole, optional(fraction), optional(exponent)});
  }
  std::vector<ExprPtr> parts;
  for (size_t k = 0; k <= kDecimals; ++k) parts.push_back(range(bounds, k));
  return choice(std::move(parts));
}

}  // namespace hotswap::grammar
