// Python's operators on values. Integers have 64 bits here: what does not fit is a limit error.
#pragma once

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

Value apply(Operator op, const Value& left, const Value& right);
Value negate(const Value& value);
Value plus(const Value& value);  // unary +
// As markupsafe: a Markup stays as it is, all else is escaped. Returns a Markup.
Value escape(const Value& value);
Value round_number(const Value& number, int64_t precision);             // Python's round(): halves to even
int64_t float_to_int(double value);                                     // towards zero; a value error for nan and inf
double parse_float_or(std::string_view text, bool* ok);                 // as Python's float(text)
std::optional<int64_t> parse_int(std::string_view text, int64_t base);  // as int(text, base); none where that fails

}  // namespace hotswap::jinja
