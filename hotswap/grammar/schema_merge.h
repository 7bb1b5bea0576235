// A schema without $ref, allOf, anyOf and oneOf at its top: a list of alternatives, each merged with what it is beside.
#pragma once

#include <vector>

#include "hotswap/grammar/schema.h"

namespace hotswap::grammar {

class SchemaMerger {
 public:
  explicit SchemaMerger(const SchemaJson& root) : root_(root) {}
  // Each value that one of them allows, the schema allows; none: it allows nothing. Subschemas below the top may hold
  // any of the four keywords. Error where two of them cannot be merged.
  std::vector<SchemaJson> alternatives(const SchemaJson& schema) { return flattened(schema, 0); }
  // A schema of nothing but $ref: what that leads to.
  const SchemaJson& followed(const SchemaJson& schema) const;

 private:
  using List = std::vector<SchemaJson>;
  List flattened(const SchemaJson& schema, int depth);
  List one_of(const SchemaJson& branches, const List& base, int depth);
  List product(const List& a, const List& b);
  std::optional<SchemaJson> merged(const SchemaJson& a, const SchemaJson& b);
  static bool merge_values(const SchemaJson& a, const SchemaJson& b, SchemaJson& to);
  const SchemaJson& root_;
  int64_t merges_ = 0;
};

}  // namespace hotswap::grammar
