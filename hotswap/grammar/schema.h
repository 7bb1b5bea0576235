// A JSON Schema that a request brought: checked before anything else reads it.
//
// Served: type, enum, const, properties, required, additionalProperties, minProperties, maxProperties, items,
// prefixItems, minItems, maxItems, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum,
// exclusiveMaximum, anyOf, oneOf (of branches that exclude each other), allOf, $ref within the schema. Annotations are
// ignored. Any other keyword is an Error that names it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace hotswap::grammar {

using SchemaJson = nlohmann::ordered_json;

// Error (kInvalidArgument) naming the keyword that is not served, is of a wrong type, or is beyond a limit: 64 KiB,
// 32 levels, 1000 keys.
void check_schema(const SchemaJson& schema);

// What "#/$defs/a" leads to. Error where there is nothing.
const SchemaJson& resolve_ref(const SchemaJson& root, const std::string& ref);

// The same value: 1 and 1.0 are, true and 1 are not; members of an object in any order.
bool same_value(const SchemaJson& a, const SchemaJson& b);

// A regular expression for a format that is served; none: the format is an annotation only.
std::optional<std::string> format_pattern(std::string_view format);

bool is_type(const SchemaJson& value, std::string_view type);

[[noreturn]] void refuse_schema(const std::string& keyword, const std::string& why);

}  // namespace hotswap::grammar
