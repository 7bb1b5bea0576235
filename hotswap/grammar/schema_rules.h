// A JSON Schema as a grammar: every text of the grammar is JSON that the schema allows. Not every such JSON is a text
// of it: members come in the order of `properties`; names beyond them only where additionalProperties is there; at most
// two blanks at a time; at most 15 digits; a value that the schema leaves open has at most 5 levels.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "hotswap/grammar/json_rules.h"
#include "hotswap/grammar/schema_merge.h"

namespace hotswap::grammar {

// Error (kInvalidArgument) naming the keyword where the schema is not served, or where no value fits it.
std::string schema_grammar(const SchemaJson& schema);

// The rules of one schema, within a larger grammar.
class SchemaRules {
 public:
  SchemaRules(const SchemaJson& root, JsonRules& json) : root_(root), merger_(root), json_(json) {}
  ExprPtr whole();  // after check_schema()

 private:
  ExprPtr value(const SchemaJson& schema);
  ExprPtr expr_of(const SchemaJson& schema);
  ExprPtr of_flat(const SchemaJson& flat);
  ExprPtr of_type(const SchemaJson& flat, const std::string& type);
  ExprPtr constants(const SchemaJson& flat);
  ExprPtr string(const SchemaJson& flat);
  ExprPtr object(const SchemaJson& flat);
  ExprPtr array(const SchemaJson& flat);
  const SchemaJson& root_;
  SchemaMerger merger_;
  JsonRules& json_;
  std::map<std::string, size_t> known_;                   // the rule of each schema, by its text
  std::deque<std::pair<size_t, SchemaJson>> unfinished_;  // rules whose expression is to be made
};

}  // namespace hotswap::grammar
