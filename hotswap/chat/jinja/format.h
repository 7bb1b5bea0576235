// The three ways in which Python formats: '%d' % x, '{}'.format(x) and the format specs of the latter.
#pragma once

#include <string>
#include <string_view>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

class Interpreter;

Value percent_format(const Value& format, const Value& arguments);
// str.format, with the attributes and items that the sandbox allows. `arguments.named` are its keywords.
Value brace_format(Interpreter& interpreter, const Value& format, const Arguments& arguments);
std::string format_with_spec(const Value& value, const std::string& spec);  // format(value, spec)

// Numbers as both ways write them. `alternate`: the form that '#' asks for.
std::string integer_digits(int64_t value, int base, bool upper);  // without sign or prefix
// letter: one of eEfFgG; the sign of negative values stands in front. Never "inf" with digits.
std::string float_text(double value, char letter, int precision, bool alternate);

}  // namespace hotswap::jinja
