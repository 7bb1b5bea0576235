#include "hotswap/grammar/schema_validator.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::grammar {
namespace {

constexpr int kMaxDepth = 300;  // of schemas in schemas and references
constexpr uint32_t kMatchLimit = 5'000'000;

int64_t length_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !tokenizers::is_continuation(c); });
}

// Anywhere in the text, as JSON Schema has it; ^ and $ are its ends.
bool matches(const std::string& pattern, const std::string& text) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr),
      pcre2_code_free);
  if (!code) return false;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(limits.get(), kMatchLimit);
  pcre2_set_heap_limit(limits.get(), 64 * 1024);  // KiB
  return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match.get(),
                     limits.get()) >= 0;
}

class Validator {
 public:
  explicit Validator(const SchemaJson& root) : root_(root) {}

  bool fits(const SchemaJson& schema, const SchemaJson& value, const std::string& where) {
    if (schema.is_boolean()) return schema.get<bool>() || fail(where, "false");
    if (++depth_ > kMaxDepth) return fail(where, "$ref");
    const bool all = std::all_of(schema.items().begin(), schema.items().end(), [&](const auto& entry) {
      return keyword(schema, entry.key(), entry.value(), value, where) || fail(where, entry.key());
    });
    --depth_;
    return all;
  }
  const std::string& problem() const { return problem_; }

 private:
  bool fail(const std::string& where, const std::string& keyword) {
    if (problem_.empty()) problem_ = cat("'", keyword, "' does not hold at ", where.empty() ? "the top" : where);
    return false;
  }
  // Without a trace of what did not hold.
  bool holds(const SchemaJson& schema, const SchemaJson& value) {
    return Validator(root_, depth_).fits(schema, value, "");
  }
  Validator(const SchemaJson& root, int depth) : root_(root), depth_(depth) {}

  bool keyword(const SchemaJson& schema, const std::string& name, const SchemaJson& expected, const SchemaJson& value,
               const std::string& where) {
    if (name == "type") return type(expected, value);
    if (name == "const") return same_value(expected, value);
    if (name == "enum") return any(expected, [&](const SchemaJson& one) { return same_value(one, value); });
    if (name == "$ref") return fits(resolve_ref(root_, expected.get<std::string>()), value, where);
    if (name == "allOf") return every(expected, [&](const SchemaJson& one) { return fits(one, value, where); });
    if (name == "anyOf") return any(expected, [&](const SchemaJson& one) { return holds(one, value); });
    if (name == "oneOf") {
      return std::count_if(expected.begin(), expected.end(),
                           [&](const SchemaJson& one) { return holds(one, value); }) == 1;
    }
    if (value.is_object()) return object(schema, name, expected, value, where);
    if (value.is_array()) return array(schema, name, expected, value, where);
    if (value.is_string()) return string(name, expected, value.get<std::string>());
    return !value.is_number() || number(name, expected, value.get<double>());
  }

  static bool every(const SchemaJson& list, const auto& test) { return std::all_of(list.begin(), list.end(), test); }
  static bool any(const SchemaJson& list, const auto& test) { return std::any_of(list.begin(), list.end(), test); }

  static bool type(const SchemaJson& expected, const SchemaJson& value) {
    if (expected.is_string()) return is_type(value, expected.get<std::string>());
    return any(expected, [&](const SchemaJson& one) { return is_type(value, one.get<std::string>()); });
  }

  bool object(const SchemaJson& schema, const std::string& name, const SchemaJson& expected, const SchemaJson& value,
              const std::string& where) {
    const auto size = static_cast<double>(value.size());
    if (name == "minProperties") return size >= expected.get<double>();
    if (name == "maxProperties") return size <= expected.get<double>();
    if (name == "required")
      return every(expected, [&](const SchemaJson& one) { return value.contains(one.get<std::string>()); });
    if (name != "properties" && name != "additionalProperties") return true;
    for (const auto& [key, member] : value.items()) {
      const bool known = schema.contains("properties") && schema["properties"].contains(key);
      const std::string at = where + "/" + key;
      if (name == "properties" && known && !fits(expected[key], member, at)) return false;
      if (name == "additionalProperties" && !known && !fits(expected, member, at)) return false;
    }
    return true;
  }

  bool array(const SchemaJson& schema, const std::string& name, const SchemaJson& expected, const SchemaJson& value,
             const std::string& where) {
    const auto size = static_cast<double>(value.size());
    if (name == "minItems") return size >= expected.get<double>();
    if (name == "maxItems") return size <= expected.get<double>();
    const size_t first = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    if (name != "items" && name != "prefixItems") return true;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string at = cat(where, "/", i);
      if (name == "prefixItems" && i < first && !fits(expected[i], value[i], at)) return false;
      if (name == "items" && i >= first && !fits(expected, value[i], at)) return false;
    }
    return true;
  }

  static bool string(const std::string& name, const SchemaJson& expected, const std::string& text) {
    if (name == "minLength") return static_cast<double>(length_of(text)) >= expected.get<double>();
    if (name == "maxLength") return static_cast<double>(length_of(text)) <= expected.get<double>();
    if (name == "pattern") return matches(expected.get<std::string>(), text);
    if (name != "format") return true;
    const auto pattern = format_pattern(expected.get<std::string>());
    return !pattern || matches(*pattern, text);
  }

  static bool number(const std::string& name, const SchemaJson& expected, double value) {
    if (name == "minimum") return value >= expected.get<double>();
    if (name == "maximum") return value <= expected.get<double>();
    if (name == "exclusiveMinimum") return value > expected.get<double>();
    if (name == "exclusiveMaximum") return value < expected.get<double>();
    return true;
  }

  const SchemaJson& root_;
  int depth_ = 0;
  std::string problem_;
};

}  // namespace

std::string schema_problem(const SchemaJson& root, const SchemaJson& schema, const SchemaJson& value) {
  Validator validator(root);
  return validator.fits(schema, value, "") ? "" : validator.problem();
}

std::string answer_problem(const SchemaJson& schema, const std::string& text) {
  try {
    const Json value = Json::parse(text, "the answer");
    return schema_problem(schema, schema, value.raw());
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace hotswap::grammar
