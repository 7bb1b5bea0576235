// Python's comparisons, truth and hashes.
#pragma once

#include <cstddef>
#include <string_view>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
bool identical(const Value& a, const Value& b);  // `is`
// a < b. Undefined values are an undefined error, types without an order a type error that names `symbol`.
bool less(const Value& a, const Value& b, const char* symbol = "<");
bool less_equal(const Value& a, const Value& b, const char* symbol = "<=");
bool contains(const Value& container, const Value& item);  // item in container
size_t hash_of(const Value& value);                        // a type error for lists, dicts and what holds them
size_t hash_of_text(std::string_view text);

}  // namespace hotswap::jinja
