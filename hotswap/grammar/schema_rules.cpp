#include "hotswap/grammar/schema_rules.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/grammar/number_rules.h"
#include "hotswap/grammar/regex_rules.h"
#include "hotswap/grammar/schema_validator.h"

namespace hotswap::grammar {
namespace {

constexpr size_t kMaxRules = 4000;

int64_t count_of(const SchemaJson& flat, const char* name, int64_t otherwise) {
  const auto found = flat.find(name);
  return found == flat.end() ? otherwise : static_cast<int64_t>(found->get<double>());
}

NumberBounds bounds_of(const SchemaJson& flat) {
  NumberBounds bounds;
  const auto add = [&](std::vector<Bound>& to, const char* name, bool exclusive) {
    if (flat.contains(name)) to.push_back({flat[name].get<double>(), exclusive});
  };
  add(bounds.min, "minimum", false);
  add(bounds.min, "exclusiveMinimum", true);
  add(bounds.max, "maximum", false);
  add(bounds.max, "exclusiveMaximum", true);
  return bounds;
}

// How many characters a text of the expression has: at least, and at most (kNoMax: without an end).
std::pair<int64_t, int64_t> lengths(const ExprPtr& e) {
  using Kind = Expr::Kind;
  if (e->kind == Kind::kClass) return {1, 1};
  if (e->kind == Kind::kRepeat) {
    const auto [min, max] = lengths(e->parts[0]);
    const bool ends = e->max != kNoMax && max != kNoMax;
    return {min * e->min, max == 0 ? 0 : ends ? max * e->max : kNoMax};
  }
  std::pair<int64_t, int64_t> out = {0, 0};
  bool first = true;
  for (const ExprPtr& part : e->parts) {
    const auto one = lengths(part);
    const bool is_choice = e->kind == Kind::kChoice;
    const auto larger = [&] {
      const bool ends = out.second != kNoMax && one.second != kNoMax;
      return !ends ? kNoMax : is_choice ? std::max(out.second, one.second) : out.second + one.second;
    };
    const int64_t smaller = first ? one.first : std::min(out.first, one.first);
    out = {is_choice ? smaller : out.first + one.first, first ? one.second : larger()};
    first = false;
  }
  return out;
}

struct TypeKeywords {
  const char* type;
  std::vector<const char*> keywords;
};

const std::vector<TypeKeywords>& keywords_of_types() {
  static const std::vector<TypeKeywords> table = {
      {"object", {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {"boolean", {}},
      {"null", {}}};
  return table;
}

// Those of "type"; where there is none, those that the other keywords are about.
std::vector<std::string> types_to_write(const SchemaJson& flat) {
  std::vector<std::string> types;
  if (flat.contains("type")) {
    const SchemaJson& type = flat["type"];
    for (const SchemaJson& one : type.is_array() ? type : SchemaJson::array({type}))
      types.push_back(one.get<std::string>());
    const bool number = std::find(types.begin(), types.end(), "number") != types.end();
    if (number) std::erase(types, "integer");
    return types;
  }
  for (const auto& [type, keywords] : keywords_of_types()) {
    if (std::any_of(keywords.begin(), keywords.end(), [&](const char* name) { return flat.contains(name); })) {
      types.push_back(type);
    }
  }
  return types;
}

}  // namespace

ExprPtr SchemaRules::whole() {
  const ExprPtr root = value(root_);
  while (!unfinished_.empty()) {
    const auto [index, schema] = std::move(unfinished_.front());
    unfinished_.pop_front();
    json_.rules().set(index, expr_of(schema));
  }
  return root;
}

// A rule of its own, made later: schemas may refer to themselves.
ExprPtr SchemaRules::value(const SchemaJson& schema) {
  const SchemaJson& followed = merger_.followed(schema);
  const auto [found, is_new] = known_.emplace(followed.dump(), 0);
  if (is_new) {
    if (known_.size() > kMaxRules) refuse_schema("schema", "too large once its parts are merged");
    found->second = json_.rules().add("value");
    unfinished_.emplace_back(found->second, followed);
  }
  return rule(found->second);
}

ExprPtr SchemaRules::expr_of(const SchemaJson& schema) {
  std::vector<ExprPtr> parts;
  for (const SchemaJson& flat : merger_.alternatives(schema)) parts.push_back(of_flat(flat));
  return choice(std::move(parts));
}

ExprPtr SchemaRules::of_flat(const SchemaJson& flat) {
  if (flat.contains("enum") || flat.contains("const")) return constants(flat);
  if (flat.empty()) return json_.any();
  const auto types = types_to_write(flat);
  std::vector<ExprPtr> parts;
  for (const std::string& type : types) parts.push_back(of_type(flat, type));
  return choice(std::move(parts));
}

ExprPtr SchemaRules::of_type(const SchemaJson& flat, const std::string& type) {
  if (type == "object") return object(flat);
  if (type == "array") return array(flat);
  if (type == "string") return string(flat);
  if (type == "number") return number_expr(bounds_of(flat));
  if (type == "integer") return integer_expr(bounds_of(flat));
  if (type == "boolean") return choice({literal("true"), literal("false")});
  return literal("null");
}

// Those that also fit what is beside them.
ExprPtr SchemaRules::constants(const SchemaJson& flat) {
  const SchemaJson values = flat.contains("enum") ? flat["enum"] : SchemaJson::array({flat["const"]});
  std::vector<ExprPtr> parts;
  for (const SchemaJson& one : values) {
    if (schema_problem(root_, flat, one).empty()) parts.push_back(literal(one.dump()));
  }
  return choice(std::move(parts));
}

ExprPtr SchemaRules::string(const SchemaJson& flat) {
  const int64_t min = count_of(flat, "minLength", 0), max = count_of(flat, "maxLength", kNoMax);
  const auto format = flat.contains("format") ? format_pattern(flat["format"].get<std::string>()) : std::nullopt;
  if (!flat.contains("pattern") && !format) return json_.string(min, max);
  const char* keyword = format ? "format" : "pattern";
  if (format && flat.contains("pattern")) refuse_schema("pattern", "beside a format");
  const std::string pattern = format ? *format : flat["pattern"].get<std::string>();
  const auto [shortest, longest] = lengths(regex_expr(pattern, {.around = repeat(one_of({{'a', 'a'}}), 0, kNoMax)}));
  if (shortest < min || (max != kNoMax && (longest == kNoMax || longest > max))) {
    refuse_schema(keyword, cat("beside minLength or maxLength, which it does not hold by itself: it has ", shortest,
                               longest == kNoMax ? " or more" : cat(" to ", longest), " characters"));
  }
  const ExprPtr around = repeat(json_.any_character(), 0, kNoMax);
  const ExprPtr text = regex_expr(pattern, {.character = JsonRules::character, .around = around});
  return sequence({literal("\""), text, literal("\"")});
}

ExprPtr SchemaRules::object(const SchemaJson& flat) {
  ObjectShape shape{.min = count_of(flat, "minProperties", 0), .max = count_of(flat, "maxProperties", kNoMax)};
  const auto others = flat.find("additionalProperties");
  const bool others_are_open = others != flat.end() && *others != false;
  const SchemaJson required = flat.value("required", SchemaJson::array()), all = true;
  const auto is_required = [&](const std::string& name) {
    return std::find(required.begin(), required.end(), SchemaJson(name)) != required.end();
  };
  std::vector<std::string> names;
  if (flat.contains("properties")) {
    for (const auto& [name, schema] : flat["properties"].items()) {
      names.push_back(name);
      shape.members.push_back({name, value(schema), is_required(name)});
    }
  }
  for (const SchemaJson& one : required) {
    const auto name = one.get<std::string>();
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    shape.members.push_back({name, value(others == flat.end() ? all : *others), true});
  }
  const bool is_open = others == flat.end() && !flat.contains("properties");
  if (others_are_open) {
    shape.others = value(*others);
  } else if (is_open) {
    shape.others = json_.any();
  }
  return json_.object(shape);
}

ExprPtr SchemaRules::array(const SchemaJson& flat) {
  ArrayShape shape{.min = count_of(flat, "minItems", 0), .max = count_of(flat, "maxItems", kNoMax)};
  if (flat.contains("prefixItems")) {
    for (const SchemaJson& one : flat["prefixItems"]) shape.first.push_back(value(one));
  }
  const auto items = flat.find("items");
  shape.others = items == flat.end() ? json_.any() : value(*items);
  return json_.array(shape);
}

std::string schema_grammar(const SchemaJson& schema) {
  check_schema(schema);
  JsonRules json;
  SchemaRules rules(schema, json);
  const std::string text = json.rules().print(rules.whole());
  if (text.empty()) refuse_schema("schema", "no value fits it");
  return text;
}

}  // namespace hotswap::grammar
