// Whether JSON fits a schema, by a walk over the value that knows nothing of grammars: finished answers are held
// against it.
#pragma once

#include <string>

#include "hotswap/grammar/schema.h"

namespace hotswap::grammar {

// What is wrong with the value, and where; "": nothing. `root` is what references within `schema` mean.
std::string schema_problem(const SchemaJson& root, const SchemaJson& schema, const SchemaJson& value);

// The same of a text, which must be JSON.
std::string answer_problem(const SchemaJson& schema, const std::string& text);

}  // namespace hotswap::grammar
