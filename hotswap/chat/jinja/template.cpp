#include "hotswap/chat/jinja/template.h"

#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/parser.h"
#include "hotswap/chat/jinja/scopes.h"
#include "hotswap/chat/jinja/token.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::jinja {

Template::Template(std::string_view source, const Limits& limits) : limits_(limits) {
  if (source.size() > limits.template_bytes) {
    fail(Fault::kLimit,
         cat("a template of ", source.size(), " bytes, at most ", limits.template_bytes, " are allowed"));
  }
  if (const size_t at = tokenizers::find_invalid_utf8(source); at != std::string_view::npos) {
    fail(Fault::kSyntax, cat("byte ", at, " of the template is not UTF-8"));
  }
  auto tree = std::make_shared<Tree>();
  tree->body = Parser(tokenize(source), limits_).parse();
  resolve_names(*tree);
  tree_ = std::move(tree);
}

Rendered Template::render(const nlohmann::ordered_json& context) const {
  Budget budget(limits_);
  const Value values = Value::from_json(context);
  return Interpreter(*tree_, values, limits_).run();
}

}  // namespace hotswap::jinja
