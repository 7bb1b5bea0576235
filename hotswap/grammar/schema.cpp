#include "hotswap/grammar/schema.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "hotswap/base/error.h"

namespace hotswap::grammar {
namespace {

constexpr size_t kMaxSchemaBytes = 64 << 10, kMaxKeys = 1000;
constexpr int kMaxSchemaDepth = 32;
constexpr double kMaxCount = 1e6;

enum class Form { kType, kValues, kAny, kSchemas, kNamedSchemas, kSchema, kNames, kCount, kNumber, kText, kIgnored };

struct Keyword {
  const char* name;
  Form form;
};

constexpr Keyword kKeywords[] = {{"type", Form::kType},
                                 {"enum", Form::kValues},
                                 {"const", Form::kAny},
                                 {"properties", Form::kNamedSchemas},
                                 {"$defs", Form::kNamedSchemas},
                                 {"definitions", Form::kNamedSchemas},
                                 {"required", Form::kNames},
                                 {"additionalProperties", Form::kSchema},
                                 {"minProperties", Form::kCount},
                                 {"maxProperties", Form::kCount},
                                 {"items", Form::kSchema},
                                 {"prefixItems", Form::kSchemas},
                                 {"minItems", Form::kCount},
                                 {"maxItems", Form::kCount},
                                 {"minLength", Form::kCount},
                                 {"maxLength", Form::kCount},
                                 {"pattern", Form::kText},
                                 {"format", Form::kText},
                                 {"minimum", Form::kNumber},
                                 {"maximum", Form::kNumber},
                                 {"exclusiveMinimum", Form::kNumber},
                                 {"exclusiveMaximum", Form::kNumber},
                                 {"anyOf", Form::kSchemas},
                                 {"oneOf", Form::kSchemas},
                                 {"allOf", Form::kSchemas},
                                 {"$ref", Form::kText},
                                 {"title", Form::kIgnored},
                                 {"description", Form::kIgnored},
                                 {"default", Form::kIgnored},
                                 {"examples", Form::kIgnored},
                                 {"example", Form::kIgnored},
                                 {"$schema", Form::kIgnored},
                                 {"$comment", Form::kIgnored},
                                 {"deprecated", Form::kIgnored},
                                 {"readOnly", Form::kIgnored},
                                 {"writeOnly", Form::kIgnored},
                                 {"discriminator", Form::kIgnored}};

constexpr std::array kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

bool is_text_list(const SchemaJson& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const SchemaJson& v) { return v.is_string(); });
}

bool is_type_name(const SchemaJson& value) {
  return value.is_string() && std::find(kTypes.begin(), kTypes.end(), value.get<std::string>()) != kTypes.end();
}

bool is_type_list(const SchemaJson& value) {
  return is_text_list(value) && !value.empty() && std::all_of(value.begin(), value.end(), is_type_name);
}

class Checker {
 public:
  void schema(const SchemaJson& value, int depth) {
    if (value.is_boolean()) return;
    if (!value.is_object())
      refuse_schema("schema", "an object, true or false was expected; got " + value.dump().substr(0, 40));
    if (depth > kMaxSchemaDepth) refuse_schema("schema", cat("more than ", kMaxSchemaDepth, " levels"));
    for (const auto& [name, content] : value.items()) {
      if (++keys_ > kMaxKeys) refuse_schema("schema", cat("more than ", kMaxKeys, " keys"));
      keyword(name, content, depth);
    }
  }

 private:
  void keyword(const std::string& name, const SchemaJson& value, int depth) {
    const auto found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                    [&](const Keyword& known) { return name == known.name; });
    if (found == std::end(kKeywords)) refuse_schema(name.substr(0, 80), "this keyword is not served");
    const auto require = [&](bool holds, const char* what) {
      if (!holds) refuse_schema(name, cat(what, " was expected; got ", value.dump().substr(0, 40)));
    };
    switch (found->form) {
      case Form::kType:
        return require(is_type_name(value) || is_type_list(value), "a type's name or a list of them");
      case Form::kValues:
        return require(value.is_array() && !value.empty(), "a list of values");
      case Form::kNames:
        return require(is_text_list(value), "a list of names");
      case Form::kCount:
        return require(value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMaxCount &&
                           value.get<double>() == std::floor(value.get<double>()),
                       "a count from 0 to 1000000");
      case Form::kNumber:
        return require(value.is_number(), "a value of type number");
      case Form::kText:
        return require(value.is_string(), "a text");
      case Form::kSchema:
        return schema(value, depth + 1);
      case Form::kSchemas:
        require(value.is_array() && !value.empty(), "a list of schemas");
        for (const SchemaJson& one : value) schema(one, depth + 1);
        return;
      case Form::kNamedSchemas:
        require(value.is_object(), "an object of schemas");
        for (const auto& [key, one] : value.items()) {
          if (++keys_ > kMaxKeys) refuse_schema("schema", cat("more than ", kMaxKeys, " keys"));
          schema(one, depth + 1);
        }
        return;
      case Form::kAny:
      case Form::kIgnored:
        return;
    }
  }
  size_t keys_ = 0;
};

// ~1 is /, ~0 is ~; %25 and the like as in addresses.
std::string unescaped(std::string token) {
  for (size_t at = 0; (at = token.find('%', at)) != std::string::npos && at + 2 < token.size(); ++at) {
    token.replace(at, 3, 1, static_cast<char>(std::strtol(token.substr(at + 1, 2).c_str(), nullptr, 16)));
  }
  for (const auto& [from, to] : {std::pair{"~1", "/"}, {"~0", "~"}}) {
    for (size_t at = 0; (at = token.find(from, at)) != std::string::npos; ++at) token.replace(at, 2, to);
  }
  return token;
}

constexpr const char* kDate =
    "[1-9]\\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))";
constexpr const char* kTime = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+\\-]([01]\\d|2[0-3]):[0-5]\\d)";

}  // namespace

void refuse_schema(const std::string& keyword, const std::string& why) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a JSON Schema of the keywords that are served",
               .got = cat("'", keyword, "': ", why),
               .next = "write the schema without it and check the answer yourself"});
}

void check_schema(const SchemaJson& schema) {
  const size_t bytes = schema.dump(-1, ' ', false, SchemaJson::error_handler_t::replace).size();
  if (bytes > kMaxSchemaBytes) refuse_schema("schema", cat(bytes, " bytes; ", kMaxSchemaBytes, " at most"));
  Checker().schema(schema, 0);
}

const SchemaJson& resolve_ref(const SchemaJson& root, const std::string& ref) {
  if (ref == "#") return root;
  if (!ref.starts_with("#/")) refuse_schema("$ref", "one within the schema was expected; got " + ref.substr(0, 80));
  const SchemaJson* node = &root;
  for (size_t begin = 2; begin <= ref.size();) {
    const size_t end = std::min(ref.find('/', begin), ref.size());
    const std::string token = unescaped(ref.substr(begin, end - begin));
    begin = end + 1;
    if (node->is_object() && node->contains(token)) {
      node = &(*node)[token];
      continue;
    }
    const bool digits =
        !token.empty() && token.size() < 6 && token.find_first_not_of("0123456789") == std::string::npos;
    const size_t index = digits ? std::stoul(token) : 0;
    if (!node->is_array() || !digits || index >= node->size())
      refuse_schema("$ref", "nothing is at " + ref.substr(0, 80));
    node = &(*node)[index];
  }
  if (!node->is_object() && !node->is_boolean()) refuse_schema("$ref", "no schema is at " + ref.substr(0, 80));
  return *node;
}

bool same_value(const SchemaJson& a, const SchemaJson& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    return std::all_of(a.items().begin(), a.items().end(), [&](const auto& entry) {
      return b.contains(entry.key()) && same_value(entry.value(), b[entry.key()]);
    });
  }
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_value);
  if (a.is_number() && b.is_number()) return a == b;
  return a.type() == b.type() && a == b;
}

bool is_type(const SchemaJson& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (!value.is_number()) return false;
  return !value.is_number_float() || value.get<double>() == std::floor(value.get<double>());
}

std::optional<std::string> format_pattern(std::string_view format) {
  const std::string host = "[a-z0-9]([a-z0-9\\-]{0,30}[a-z0-9])?(\\.[a-z0-9]([a-z0-9\\-]{0,30}[a-z0-9])?){0,5}";
  const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  if (format == "date") return cat("^", kDate, "$");
  if (format == "time") return cat("^", kTime, "$");
  if (format == "date-time") return cat("^", kDate, "T", kTime, "$");
  if (format == "uuid") return "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
  if (format == "ipv4") return cat("^(", byte, "\\.){3}", byte, "$");
  if (format == "ipv6") return "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$";
  if (format == "hostname") return cat("^", host, "$");
  if (format == "email") return cat("^[A-Za-z0-9_+\\-]{1,32}(\\.[A-Za-z0-9_+\\-]{1,32}){0,3}@", host, "$");
  if (format == "uri") return cat("^https?://", host, "(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~\\-]{0,64}){0,16}$");
  return std::nullopt;
}

}  // namespace hotswap::grammar
