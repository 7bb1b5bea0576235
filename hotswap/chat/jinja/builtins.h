// Filters, tests and global functions by their names.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

class Interpreter;

using Filter = Value (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);
using Filters = std::map<std::string, Filter, std::less<>>;
using Tests = std::map<std::string, Test, std::less<>>;

const Filters& text_filters();
const Filters& list_filters();
const Filters& number_filters();
const Tests& tests();

bool filter_exists(std::string_view name);
bool test_exists(std::string_view name);
Filter find_filter(std::string_view name);  // a type error for an unknown name
Test find_test(std::string_view name);

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
Value find_global(std::string_view name);  // missing where there is none

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent = std::nullopt;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
};
std::string dump_json(const Value& value, const JsonStyle& style);  // as Python's json.dumps

}  // namespace hotswap::jinja
