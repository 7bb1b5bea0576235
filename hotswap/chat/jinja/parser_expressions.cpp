#include <algorithm>

#include "hotswap/chat/jinja/parser.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {

bool Parser::skip_name(std::string_view word) {
  if (!is_name(word)) return false;
  next();
  return true;
}

bool Parser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(cat("'", op, "'"));
}

void Parser::expect(TokenKind kind) {
  if (current().kind != kind) {
    unexpected(kind == TokenKind::kBlockEnd ? "end of statement block" : "end of print statement");
  }
  next();
}

std::string Parser::expect_name() {
  if (current().kind != TokenKind::kName) unexpected("a name");
  return next().text;
}

void Parser::syntax(const std::string& message) const { throw TemplateError(Fault::kSyntax, message, current().line); }

void Parser::unexpected(const std::string& wanted) const {
  const Token& token = current();
  const std::string got = token.kind == TokenKind::kEnd ? "the end of the template"
                          : token.text.empty()          ? "the end of a tag or a literal"
                                                        : cat("'", token.text, "'");
  syntax(cat("expected ", wanted, ", got ", got));
}

Parser::Deeper::Deeper(Parser& parser) : parser_(parser) {
  if (++parser.depth_ > parser.limits_.nesting) {
    throw TemplateError(Fault::kLimit, cat("nesting deeper than ", parser.limits_.nesting), parser.current().line);
  }
}

ExpressionPtr Parser::make(ExpressionKind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = current().line;
  return node;
}

// The tree may not be deeper than what walks it can bear: a long chain of filters is as deep as nested brackets.
void Parser::count_depth(Expression& parent, const ExpressionPtr& child) const {
  if (!child) return;
  parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > limits_.expression_depth) {
    throw TemplateError(Fault::kLimit, cat("an expression deeper than ", limits_.expression_depth), current().line);
  }
}

void Parser::add(Expression& parent, ExpressionPtr child) const {
  count_depth(parent, child);
  parent.children.push_back(std::move(child));
}

void Parser::set_arguments(Expression& parent) {
  parent.arguments = parse_arguments();
  for (const auto& argument : parent.arguments.positional) count_depth(parent, argument);
  for (const auto& [_, argument] : parent.arguments.named) count_depth(parent, argument);
  count_depth(parent, parent.arguments.rest);
  count_depth(parent, parent.arguments.named_rest);
}

ExpressionPtr Parser::binary(ExpressionKind kind, ExpressionPtr left, ExpressionPtr right) const {
  auto node = make(kind);
  add(*node, std::move(left));
  add(*node, std::move(right));
  return node;
}

ExpressionPtr Parser::parse_expression(bool with_conditional) {
  const Deeper deeper(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  auto then = parse_or();
  while (skip_name("if")) {
    auto node = make(ExpressionKind::kConditional);
    add(*node, parse_or());
    add(*node, std::move(then));
    add(*node, skip_name("else") ? parse_expression() : nullptr);
    then = std::move(node);
  }
  return then;
}

ExpressionPtr Parser::parse_or() {
  auto left = parse_and();
  while (skip_name("or")) left = binary(ExpressionKind::kOr, std::move(left), parse_and());
  return left;
}

ExpressionPtr Parser::parse_and() {
  auto left = parse_not();
  while (skip_name("and")) left = binary(ExpressionKind::kAnd, std::move(left), parse_not());
  return left;
}

ExpressionPtr Parser::parse_not() {
  if (!skip_name("not")) return parse_compare();
  const Deeper deeper(*this);
  auto node = make(ExpressionKind::kNot);
  add(*node, parse_not());
  return node;
}

ExpressionPtr Parser::parse_compare() {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual}, {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">", Comparison::kGreater},   {">=", Comparison::kGreaterEqual}};
  auto first = parse_sum();
  auto node = make(ExpressionKind::kCompare);
  for (;;) {
    const auto* found =
        std::find_if(std::begin(kOperators), std::end(kOperators), [&](const auto& row) { return is_op(row.first); });
    if (found != std::end(kOperators)) {
      next();
      node->comparisons.push_back(found->second);
    } else if (skip_name("in")) {
      node->comparisons.push_back(Comparison::kIn);
    } else if (is_name("not") && is_name(ahead(), "in")) {
      next();
      next();
      node->comparisons.push_back(Comparison::kNotIn);
    } else {
      break;
    }
    if (node->children.empty()) add(*node, std::move(first));
    add(*node, parse_sum());
  }
  return node->children.empty() ? std::move(first) : std::move(node);
}

ExpressionPtr Parser::parse_sum() {
  auto left = parse_concat();
  while (is_op("+") || is_op("-")) {
    const Operator op = next().text == "+" ? Operator::kAdd : Operator::kSubtract;
    left = binary(ExpressionKind::kBinary, std::move(left), parse_concat());
    left->op = op;
  }
  return left;
}

ExpressionPtr Parser::parse_concat() {
  auto first = parse_product();
  if (!is_op("~")) return first;
  auto node = make(ExpressionKind::kConcat);
  add(*node, std::move(first));
  while (skip_op("~")) add(*node, parse_product());
  return node;
}

ExpressionPtr Parser::parse_product() {
  auto left = parse_power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const std::string word = next().text;
    const Operator op = word == "*"    ? Operator::kMultiply
                        : word == "/"  ? Operator::kDivide
                        : word == "//" ? Operator::kFloorDivide
                                       : Operator::kModulo;
    left = binary(ExpressionKind::kBinary, std::move(left), parse_power());
    left->op = op;
  }
  return left;
}

ExpressionPtr Parser::parse_power() {
  auto left = parse_unary();
  while (skip_op("**")) {  // from left to right, unlike Python
    left = binary(ExpressionKind::kBinary, std::move(left), parse_unary());
    left->op = Operator::kPower;
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Deeper deeper(*this);
  ExpressionPtr node;
  if (is_op("-") || is_op("+")) {
    node = make(next().text == "-" ? ExpressionKind::kNegate : ExpressionKind::kPlus);
    add(*node, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_primary(bool with_namespace) {
  const Token token = current();
  auto node = make(ExpressionKind::kConstant);
  switch (token.kind) {
    case TokenKind::kName:
      next();
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        node->value = Value::boolean(token.text == "true" || token.text == "True");
      } else if (token.text == "none" || token.text == "None") {
        node->value = Value::none();
      } else {
        node->kind = ExpressionKind::kName;
        node->name = token.text;
        if (with_namespace && skip_op(".")) {
          node->kind = ExpressionKind::kNamespaceRef;
          node->attribute = expect_name();
        }
      }
      return node;
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;  // neighbours join
      node->value = Value::string(std::move(text));
      return node;
    }
    case TokenKind::kNumber:
      next();
      node->value = token.value;
      return node;
    default:
      break;
  }
  if (skip_op("(")) {
    auto inner = parse_tuple({.in_parentheses = true});
    expect_op(")");
    return inner;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  unexpected("an expression");
}

ExpressionPtr Parser::parse_tuple(const TupleOptions& options) {
  auto tuple = make(ExpressionKind::kTuple);
  bool is_tuple = false;
  for (;;) {
    if (!tuple->children.empty()) expect_op(",");
    const bool end = current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
                     is_op(")") || (!options.end.empty() && is_name(options.end));
    if (end) break;
    add(*tuple, options.primaries ? parse_primary(options.with_namespace) : parse_expression(options.with_conditional));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->children.empty()) return std::move(tuple->children[0]);
  if (!options.in_parentheses) unexpected("an expression");
  return tuple;
}

ExpressionPtr Parser::parse_list() {
  auto node = make(ExpressionKind::kList);
  expect_op("[");
  while (!is_op("]")) {
    if (!node->children.empty()) expect_op(",");
    if (is_op("]")) break;
    add(*node, parse_expression());
  }
  expect_op("]");
  return node;
}

ExpressionPtr Parser::parse_dict() {
  auto node = make(ExpressionKind::kDict);
  expect_op("{");
  while (!is_op("}")) {
    if (!node->children.empty()) expect_op(",");
    if (is_op("}")) break;
    add(*node, parse_expression());
    expect_op(":");
    add(*node, parse_expression());
  }
  expect_op("}");
  return node;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filters(ExpressionPtr node) {
  for (;;) {
    if (is_op("|")) {
      node = parse_filter(std::move(node), false);
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  if (skip_op(".")) {
    const Token token = next();
    if (token.kind == TokenKind::kName) {
      auto attribute = make(ExpressionKind::kAttribute);
      attribute->name = token.text;
      add(*attribute, std::move(node));
      return attribute;
    }
    if (token.kind != TokenKind::kNumber || !token.value.is_integer()) syntax("expected name or number");
    auto key = make(ExpressionKind::kConstant);
    key->value = token.value;
    return binary(ExpressionKind::kItem, std::move(node), std::move(key));
  }
  expect_op("[");
  auto item = parse_subscribed(std::move(node));
  if (is_op(",")) {  // x[a, b]: the key is a tuple
    if (item->kind == ExpressionKind::kSlice) syntax("a slice in a tuple of subscripts");
    auto tuple = make(ExpressionKind::kTuple);
    add(*tuple, std::move(item->children[1]));
    while (skip_op(",")) add(*tuple, parse_expression());
    item->children[1] = std::move(tuple);
  }
  expect_op("]");
  return item;
}

// One subscript, plain or a slice, of `node`.
ExpressionPtr Parser::parse_subscribed(ExpressionPtr node) {
  if (is_op("]")) {  // x[]: the empty tuple
    return binary(ExpressionKind::kItem, std::move(node), make(ExpressionKind::kTuple));
  }
  ExpressionPtr bounds[3];
  if (!is_op(":")) {
    bounds[0] = parse_expression();
    if (!is_op(":")) return binary(ExpressionKind::kItem, std::move(node), std::move(bounds[0]));
  }
  for (int i = 1; i < 3 && skip_op(":"); ++i) {
    if (!is_op(":") && !is_op("]") && !is_op(",")) bounds[i] = parse_expression();
  }
  auto slice = make(ExpressionKind::kSlice);
  add(*slice, std::move(node));
  for (auto& bound : bounds) add(*slice, std::move(bound));
  return slice;
}

CallArguments Parser::parse_arguments() {
  CallArguments out;
  const auto ensure = [&](bool right) {
    if (!right) syntax("invalid syntax for function call expression");
  };
  expect_op("(");
  bool comma = false;
  while (!is_op(")")) {
    if (comma) {
      expect_op(",");
      if (is_op(")")) break;
    }
    comma = true;
    if (skip_op("*")) {
      ensure(!out.rest && !out.named_rest);
      out.rest = parse_expression();
    } else if (skip_op("**")) {
      ensure(!out.named_rest);
      out.named_rest = parse_expression();
    } else if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
      ensure(!out.named_rest);
      std::string name = next().text;
      next();
      out.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!out.rest && !out.named_rest && out.named.empty());
      out.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return out;
}

ExpressionPtr Parser::parse_call(ExpressionPtr node) {
  auto call = make(ExpressionKind::kCall);
  add(*call, std::move(node));
  set_arguments(*call);
  return call;
}

std::string Parser::dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) name += "." + expect_name();
  return name;
}

// `first_is_here`: the first filter stands without a bar in front of it, as in {% filter upper | trim %}.
ExpressionPtr Parser::parse_filter(ExpressionPtr node, bool first_is_here) {
  while (first_is_here || skip_op("|")) {
    first_is_here = false;
    auto filter = make(ExpressionKind::kFilter);
    filter->name = dotted_name();
    add(*filter, std::move(node));
    if (is_op("(")) set_arguments(*filter);
    node = std::move(filter);
  }
  return node;
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  auto test = make(ExpressionKind::kTest);
  next();
  const bool negated = skip_name("not");
  test->name = dotted_name();
  add(*test, std::move(node));
  const TokenKind kind = current().kind;
  const bool value =
      kind == TokenKind::kName || kind == TokenKind::kString || kind == TokenKind::kNumber || is_op("[") || is_op("{");
  if (is_op("(")) {
    set_arguments(*test);
  } else if (value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) syntax("You cannot chain multiple tests with is");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
    count_depth(*test, test->arguments.positional.back());
  }
  if (!negated) return test;
  auto inverted = make(ExpressionKind::kNot);
  add(*inverted, std::move(test));
  return inverted;
}

}  // namespace hotswap::jinja
