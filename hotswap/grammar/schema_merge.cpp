#include "hotswap/grammar/schema_merge.h"

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"

namespace hotswap::grammar {
namespace {

constexpr int kMaxReferences = 64;     // of references in references
constexpr int64_t kMaxMerges = 20000;  // of one schema, all of its parts
constexpr size_t kMaxAlternatives = 256;

constexpr const char* kOfMerging[] = {"$ref", "allOf", "anyOf", "oneOf"};
constexpr const char* kWithoutMeaning[] = {"title",         "description", "default",    "examples", "example",
                                           "$schema",       "$comment",    "deprecated", "readOnly", "writeOnly",
                                           "discriminator", "$defs",       "definitions"};

bool holds(const auto& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool allows_all(const SchemaJson& schema) { return schema == true || (schema.is_object() && schema.empty()); }

// Both must hold; merged once something needs it.
SchemaJson both(const SchemaJson& a, const SchemaJson& b) {
  if (allows_all(a) || a == b) return b;
  if (allows_all(b)) return a;
  if (a == false || b == false) return false;
  return {{"allOf", {a, b}}};
}

std::set<std::string> types_of(const SchemaJson& schema) {
  if (!schema.contains("type")) return {"object", "array", "string", "number", "integer", "boolean", "null"};
  const SchemaJson& type = schema["type"];
  std::set<std::string> types;
  for (const SchemaJson& one : type.is_array() ? type : SchemaJson::array({type})) types.insert(one.get<std::string>());
  if (types.contains("number")) types.insert("integer");
  return types;
}

std::set<std::string> common(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(out, out.end()));
  return out;
}

std::vector<SchemaJson> values_of(const SchemaJson& schema) {
  std::vector<SchemaJson> values;
  if (schema.contains("enum")) values = schema["enum"].get<std::vector<SchemaJson>>();
  if (!schema.contains("const")) return values;
  const SchemaJson& constant = schema["const"];
  const bool listed =
      std::any_of(values.begin(), values.end(), [&](const SchemaJson& v) { return same_value(v, constant); });
  if (!values.empty() && !listed) refuse_schema("const", "it is not one of the enum beside it");
  return {constant};
}

bool is_required(const SchemaJson& schema, const std::string& name) {
  const auto found = schema.find("required");
  return found != schema.end() && std::find(found->begin(), found->end(), SchemaJson(name)) != found->end();
}

// Whether no value is of both, as far as that can be seen: other types, other constants, or a member that both
// require and whose constants differ.
bool disjoint(const SchemaJson& a, const SchemaJson& b, bool members = true) {
  if (common(types_of(a), types_of(b)).empty()) return true;
  const auto of_a = values_of(a), of_b = values_of(b);
  if (!of_a.empty() && !of_b.empty()) {
    return std::none_of(of_a.begin(), of_a.end(), [&](const SchemaJson& value) {
      return std::any_of(of_b.begin(), of_b.end(), [&](const SchemaJson& other) { return same_value(value, other); });
    });
  }
  const bool objects = common(types_of(a), types_of(b)) == std::set<std::string>{"object"};
  if (!members || !objects || !a.contains("properties") || !b.contains("properties")) return false;
  return std::any_of(a["properties"].items().begin(), a["properties"].items().end(), [&](const auto& entry) {
    const std::string& name = entry.key();
    if (!is_required(a, name) || !is_required(b, name) || !b["properties"].contains(name)) return false;
    const SchemaJson &one = entry.value(), &other = b["properties"][name];
    return one.is_object() && other.is_object() && disjoint(one, other, /*members=*/false);
  });
}

const SchemaJson kAll = true;

const SchemaJson& part(const SchemaJson& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? kAll : *found;
}

SchemaJson merged_properties(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson out = SchemaJson::object();
  const auto add = [&](const SchemaJson& from, const SchemaJson& other) {
    if (!from.contains("properties")) return;
    for (const auto& [name, schema] : from["properties"].items()) {
      if (out.contains(name)) continue;
      const bool named = other.contains("properties") && other["properties"].contains(name);
      out[name] = both(schema, named ? other["properties"][name] : part(other, "additionalProperties"));
    }
  };
  add(a, b);
  add(b, a);
  return out;
}

SchemaJson merged_prefix(const SchemaJson& a, const SchemaJson& b) {
  const auto element = [](const SchemaJson& schema, size_t i) -> const SchemaJson& {
    const auto found = schema.find("prefixItems");
    return found != schema.end() && i < found->size() ? (*found)[i] : part(schema, "items");
  };
  const auto length = [](const SchemaJson& schema) {
    return schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
  };
  SchemaJson out = SchemaJson::array();
  for (size_t i = 0; i < std::max(length(a), length(b)); ++i) out.push_back(both(element(a, i), element(b, i)));
  return out;
}

}  // namespace

const SchemaJson& SchemaMerger::followed(const SchemaJson& schema) const {
  const SchemaJson* node = &schema;
  for (int i = 0; i < kMaxReferences; ++i) {
    const bool only_ref = node->is_object() && node->contains("$ref") &&
                          std::all_of(node->items().begin(), node->items().end(), [](const auto& entry) {
                            return entry.key() == "$ref" || holds(kWithoutMeaning, entry.key());
                          });
    if (!only_ref) return *node;
    node = &resolve_ref(root_, (*node)["$ref"].get<std::string>());
  }
  refuse_schema("$ref", "it leads back to itself");
}

SchemaMerger::List SchemaMerger::flattened(const SchemaJson& schema, int depth) {
  if (depth > kMaxReferences) refuse_schema("$ref", "it leads back to itself, or too deep");
  if (schema.is_boolean()) return schema.get<bool>() ? List{SchemaJson::object()} : List{};
  SchemaJson own = SchemaJson::object();
  for (const auto& [name, value] : schema.items()) {
    if (!holds(kOfMerging, name) && !holds(kWithoutMeaning, name)) own[name] = value;
  }
  List out = {std::move(own)};
  if (schema.contains("$ref")) {
    out = product(out, flattened(resolve_ref(root_, schema["$ref"].get<std::string>()), depth + 1));
  }
  if (schema.contains("allOf")) {
    for (const SchemaJson& one : schema["allOf"]) out = product(out, flattened(one, depth + 1));
  }
  if (schema.contains("anyOf")) {
    List options;
    for (const SchemaJson& one : schema["anyOf"]) {
      for (SchemaJson& option : flattened(one, depth + 1)) options.push_back(std::move(option));
    }
    out = product(out, options);
  }
  return schema.contains("oneOf") ? one_of(schema["oneOf"], out, depth) : out;
}

SchemaMerger::List SchemaMerger::one_of(const SchemaJson& branches, const List& base, int depth) {
  std::vector<List> of_branches;
  for (const SchemaJson& branch : branches) of_branches.push_back(product(base, flattened(branch, depth + 1)));
  List out;
  for (const List& branch : of_branches) {
    for (const SchemaJson& option : branch) {
      for (const List& other : of_branches) {
        if (&other == &branch) continue;
        for (const SchemaJson& rival : other) {
          if (++merges_ > kMaxMerges) refuse_schema("oneOf", "too many branches");
          if (!disjoint(option, rival)) refuse_schema("oneOf", "its branches may hold at the same time; use anyOf");
        }
      }
      out.push_back(option);
    }
  }
  return out;
}

SchemaMerger::List SchemaMerger::product(const List& a, const List& b) {
  List out;
  for (const SchemaJson& one : a) {
    for (const SchemaJson& other : b) {
      if (auto both_hold = merged(one, other)) out.push_back(std::move(*both_hold));
    }
  }
  if (out.size() > kMaxAlternatives) refuse_schema("anyOf", cat("more than ", kMaxAlternatives, " combinations"));
  return out;
}

// Constants of both. -> whether there are some, or none are needed
bool SchemaMerger::merge_values(const SchemaJson& a, const SchemaJson& b, SchemaJson& to) {
  const auto of_a = values_of(a), of_b = values_of(b);
  to.erase("const");
  if (of_a.empty() && of_b.empty()) return true;
  SchemaJson kept = SchemaJson::array();
  for (const SchemaJson& value : of_a.empty() ? of_b : of_a) {
    const auto is_same = [&](const SchemaJson& other) { return same_value(value, other); };
    if (of_a.empty() || of_b.empty() || std::any_of(of_b.begin(), of_b.end(), is_same)) kept.push_back(value);
  }
  to["enum"] = kept;
  return !kept.empty();
}

std::optional<SchemaJson> SchemaMerger::merged(const SchemaJson& a, const SchemaJson& b) {
  if (++merges_ > kMaxMerges) refuse_schema("allOf", "too many parts to merge");
  if (a.empty()) return b;
  if (b.empty()) return a;
  SchemaJson out = a;
  for (const auto& [name, value] : b.items()) {
    if (!out.contains(name)) {
      out[name] = value;
      continue;
    }
    SchemaJson& mine = out[name];
    if (name == "required") {
      for (const SchemaJson& one : value) {
        if (std::find(mine.begin(), mine.end(), one) == mine.end()) mine.push_back(one);
      }
    } else if (name.starts_with("min") || name == "exclusiveMinimum") {
      if (value > mine) mine = value;
    } else if (name.starts_with("max") || name == "exclusiveMaximum") {
      if (value < mine) mine = value;
    } else if ((name == "pattern" || name == "format") && mine != value) {
      refuse_schema(name, "two of them for one value");
    } else if (name == "additionalProperties" || name == "items") {
      mine = both(mine, value);
    }
  }
  if (a.contains("type") || b.contains("type")) {
    const auto types = common(types_of(a), types_of(b));
    if (types.empty()) return std::nullopt;
    out["type"] = std::vector<std::string>(types.begin(), types.end());
  }
  if (a.contains("properties") || b.contains("properties")) out["properties"] = merged_properties(a, b);
  if (a.contains("prefixItems") || b.contains("prefixItems")) out["prefixItems"] = merged_prefix(a, b);
  if (!merge_values(a, b, out)) return std::nullopt;
  return out;
}

}  // namespace hotswap::grammar
