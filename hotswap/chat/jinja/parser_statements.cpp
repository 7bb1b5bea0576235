#include <algorithm>

#include "hotswap/chat/jinja/parser.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

std::unique_ptr<Statement> Parser::make(StatementKind kind) const {
  auto node = std::make_unique<Statement>();
  node->kind = kind;
  node->line = current().line;
  return node;
}

Body Parser::parse() { return parse_until({}); }

// Up to a tag that begins with one of `ends`, whose name is then current; with no `ends`, the whole template.
Body Parser::parse_until(Names ends) {
  const Deeper deeper(*this);
  Body body;
  std::unique_ptr<Statement> output;
  const auto add = [&](ExpressionPtr node) {
    if (!output) output = make(StatementKind::kOutput);
    output->expressions.push_back(std::move(node));
  };
  const auto flush = [&] {
    if (output) body.push_back(std::move(output));
  };
  while (current().kind != TokenKind::kEnd) {
    if (current().kind == TokenKind::kData) {
      auto text = make(ExpressionKind::kConstant);
      text->value = Value::string(next().text);
      add(std::move(text));
    } else if (current().kind == TokenKind::kVariableBegin) {
      next();
      add(parse_tuple({}));
      expect(TokenKind::kVariableEnd);
    } else {
      flush();
      next();
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) return body;
      if (auto made = statement()) body.push_back(std::move(made));
      expect(TokenKind::kBlockEnd);
    }
  }
  flush();
  if (ends.size() > 0) syntax(cat("Unexpected end of template. Jinja was looking for: ", join(ends, " or ")));
  return body;
}

Body Parser::parse_body(Names ends) {
  skip_op(":");
  expect(TokenKind::kBlockEnd);
  return parse_until(ends);
}

std::unique_ptr<Statement> Parser::statement() {
  if (current().kind != TokenKind::kName) syntax("tag name expected");
  const std::string& word = current().text;
  if (word == "for") return parse_for();
  if (word == "if") return parse_if();
  if (word == "set") return parse_set();
  if (word == "with") return parse_with();
  if (word == "macro") return parse_macro();
  if (word == "call") return parse_call_block();
  if (word == "filter") return parse_filter_block();
  if (word == "generation") return parse_generation();
  if (word == "block") return parse_block();
  if (word == "autoescape") return parse_autoescape();
  if (word == "print") return parse_print();
  if (word == "break" || word == "continue") return parse_jump();
  if (word == "include" || word == "import" || word == "from" || word == "extends") {
    throw TemplateError(Fault::kType, cat("{% ", word, " %}: a chat template has no other files to load"),
                        current().line);
  }
  syntax(cat("Encountered unknown tag '", word, "'."));
}

void Parser::check_target(const Expression& target) const {
  switch (target.kind) {
    case ExpressionKind::kName:
    case ExpressionKind::kNamespaceRef:
      return;
    case ExpressionKind::kTuple:
      for (const auto& child : target.children) check_target(*child);
      return;
    default:
      syntax("can't assign to this expression");
  }
}

ExpressionPtr Parser::parse_target(bool with_namespace, std::string_view end) {
  auto target = parse_tuple({.primaries = true, .with_namespace = with_namespace, .end = end});
  check_target(*target);
  return target;
}

std::unique_ptr<Statement> Parser::parse_for() {
  auto node = make(StatementKind::kFor);
  next();
  node->target = parse_target(false, "in");
  if (!skip_name("in")) unexpected("'in'");
  node->expression = parse_tuple({.with_conditional = false, .end = "recursive"});
  if (skip_name("if")) node->test = parse_expression();
  node->recursive = skip_name("recursive");
  ++loops_;
  node->body = parse_body({"endfor", "else"});
  --loops_;
  if (next().text == "else") {
    node->otherwise = parse_body({"endfor"});
    next();
  }
  return node;
}

std::unique_ptr<Statement> Parser::parse_if() {
  auto node = make(StatementKind::kIf);
  Statement* last = node.get();
  std::vector<std::unique_ptr<Deeper>> branches;  // an elif is an if inside of the last one's else
  for (;;) {
    next();  // if, elif
    last->expression = parse_tuple({.with_conditional = false});
    last->body = parse_body({"elif", "else", "endif"});
    if (is_name("elif")) {
      branches.push_back(std::make_unique<Deeper>(*this));
      last->otherwise.push_back(make(StatementKind::kIf));
      last = last->otherwise.back().get();
      continue;
    }
    if (next().text == "else") {
      last->otherwise = parse_body({"endif"});
      next();
    }
    return node;
  }
}

std::unique_ptr<Statement> Parser::parse_set() {
  auto node = make(StatementKind::kSet);
  next();
  node->target = parse_target(true);
  if (skip_op("=")) {
    node->expression = parse_tuple({});
    return node;
  }
  node->kind = StatementKind::kSetBlock;
  if (is_op("|")) node->expression = parse_filter(nullptr, false);
  node->body = parse_body({"endset"});
  next();
  return node;
}

std::unique_ptr<Statement> Parser::parse_with() {
  auto node = make(StatementKind::kWith);
  next();
  node->target = make(ExpressionKind::kTuple);
  while (current().kind != TokenKind::kBlockEnd) {
    if (!node->expressions.empty()) expect_op(",");
    add(*node->target, parse_target(false));
    expect_op("=");
    node->expressions.push_back(parse_expression());
  }
  node->body = parse_body({"endwith"});
  next();
  return node;
}

MacroParameters Parser::parse_signature() {
  MacroParameters out;
  expect_op("(");
  while (!is_op(")")) {
    if (!out.names.empty()) expect_op(",");
    out.names.push_back(expect_name());
    if (skip_op("=")) {
      out.defaults.push_back(parse_expression());
    } else if (!out.defaults.empty()) {
      syntax("non-default argument follows default argument");
    }
  }
  expect_op(")");
  return out;
}

Body Parser::parse_function_body(std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  Body body = parse_body({end});
  next();
  loops_ = loops;
  return body;
}

std::unique_ptr<Statement> Parser::parse_macro() {
  auto node = make(StatementKind::kMacro);
  next();
  node->name = expect_name();
  node->parameters = parse_signature();
  node->body = parse_function_body("endmacro");
  return node;
}

std::unique_ptr<Statement> Parser::parse_call_block() {
  auto node = make(StatementKind::kCallBlock);
  next();
  if (is_op("(")) node->parameters = parse_signature();
  node->expression = parse_expression();
  if (node->expression->kind != ExpressionKind::kCall) syntax("expected call");
  node->body = parse_function_body("endcall");
  return node;
}

std::unique_ptr<Statement> Parser::parse_generation() {
  auto node = make(StatementKind::kGeneration);
  next();
  node->body = parse_function_body("endgeneration");
  return node;
}

std::unique_ptr<Statement> Parser::parse_filter_block() {
  auto node = make(StatementKind::kFilterBlock);
  next();
  node->expression = parse_filter(nullptr, true);
  node->body = parse_body({"endfilter"});
  next();
  return node;
}

std::unique_ptr<Statement> Parser::parse_block() {
  auto node = make(StatementKind::kScope);
  next();
  node->name = expect_name();
  skip_name("scoped");
  if (skip_name("required")) syntax("a required block: a chat template has no child that could fill it");
  node->body = parse_function_body("endblock");
  skip_name(node->name);
  return node;
}

std::unique_ptr<Statement> Parser::parse_autoescape() {
  auto node = make(StatementKind::kAutoescape);
  next();
  node->expression = parse_expression();
  node->body = parse_body({"endautoescape"});
  next();
  return node;
}

std::unique_ptr<Statement> Parser::parse_print() {
  auto node = make(StatementKind::kOutput);
  next();
  while (current().kind != TokenKind::kBlockEnd) {
    if (!node->expressions.empty()) expect_op(",");
    node->expressions.push_back(parse_expression());
  }
  return node;
}

std::unique_ptr<Statement> Parser::parse_jump() {
  auto node = make(next().text == "break" ? StatementKind::kBreak : StatementKind::kContinue);
  if (loops_ == 0) syntax("break and continue stand inside a loop");
  return node;
}

}  // namespace hotswap::jinja
