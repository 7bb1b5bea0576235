// str() and repr() of values, and the names of their types.
#pragma once

#include <string>
#include <string_view>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

std::string str(const Value& value);
std::string repr(const Value& value);
std::string repr_of_text(std::string_view utf8);
std::string float_repr(double value);  // the shortest digits that give the value again
std::string type_name(const Value& value);

}  // namespace hotswap::jinja
