// x.name and x[key], as the sandboxed environment of jinja2 resolves them.
#pragma once

#include <string>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

class Interpreter;

Value get_attribute(Interpreter& interpreter, const Value& object, const std::string& name);  // attribute, then item
Value get_item(Interpreter& interpreter, const Value& object, const Value& key);              // item, then attribute
// The attribute alone; none where Python's object has none of that name.
std::optional<Value> find_attribute(const Value& object, const std::string& name);
// What an attribute or item is that an object lacks.
Value undefined_attribute(const Value& object, const Value& name);
// A method of str, of its text; none where str has none of that name.
std::optional<Value> string_method(const Value& text, const std::string& name);

}  // namespace hotswap::jinja
