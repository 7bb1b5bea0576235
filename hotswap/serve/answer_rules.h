// What a request demands of the form of its answers: response_format, structured_outputs, and the names that other
// servers have for the same.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "hotswap/grammar/schema.h"
#include "hotswap/serve/request_body.h"

namespace hotswap::serve {

struct AnswerRules {
  std::string ebnf;   // for GrammarEngine::compile
  std::string field;  // of the request, for errors
  // Finished answers are held against it; none where the rules are no schema's.
  std::shared_ptr<const grammar::SchemaJson> schema = nullptr;
};

// None where any text will do. ApiError 400 naming field and keyword.
std::optional<AnswerRules> read_answer_rules(RequestBody& body);

}  // namespace hotswap::serve
