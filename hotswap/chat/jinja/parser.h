// Jinja's grammar: tokens to a syntax tree. Names are not resolved yet.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/chat/jinja/ast.h"
#include "hotswap/chat/jinja/limits.h"
#include "hotswap/chat/jinja/token.h"

namespace hotswap::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits) : tokens_(std::move(tokens)), limits_(limits) {}
  Body parse();

 private:
  using Names = std::initializer_list<std::string_view>;

  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead(size_t n = 1) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_name(std::string_view word) const { return is_name(current(), word); }
  static bool is_name(const Token& token, std::string_view word) {
    return token.kind == TokenKind::kName && token.text == word;
  }
  bool is_op(std::string_view op) const { return current().kind == TokenKind::kOperator && current().text == op; }
  bool skip_name(std::string_view word);
  bool skip_op(std::string_view op);
  void expect_op(std::string_view op);
  void expect(TokenKind kind);
  std::string expect_name();
  [[noreturn]] void syntax(const std::string& message) const;
  [[noreturn]] void unexpected(const std::string& wanted) const;

  // Nesting is counted, so that no template can overflow the stack.
  class Deeper {
   public:
    explicit Deeper(Parser& parser);
    ~Deeper() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  // Statements (parser_statements.cpp).
  Body parse_until(Names ends);
  Body parse_body(Names ends);  // from behind a tag's words on
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> make(StatementKind kind) const;
  std::unique_ptr<Statement> parse_for();
  std::unique_ptr<Statement> parse_if();
  std::unique_ptr<Statement> parse_set();
  std::unique_ptr<Statement> parse_with();
  std::unique_ptr<Statement> parse_macro();
  std::unique_ptr<Statement> parse_call_block();
  std::unique_ptr<Statement> parse_filter_block();
  std::unique_ptr<Statement> parse_generation();
  std::unique_ptr<Statement> parse_block();
  std::unique_ptr<Statement> parse_autoescape();
  std::unique_ptr<Statement> parse_print();
  std::unique_ptr<Statement> parse_jump();
  MacroParameters parse_signature();
  ExpressionPtr parse_target(bool with_namespace, std::string_view end = {});
  void check_target(const Expression& target) const;
  Body parse_function_body(std::string_view end);  // a break in it has no loop

  // Expressions (parser_expressions.cpp).
  ExpressionPtr make(ExpressionKind kind) const;
  void count_depth(Expression& parent, const ExpressionPtr& child) const;
  void add(Expression& parent, ExpressionPtr child) const;
  void set_arguments(Expression& parent);
  ExpressionPtr binary(ExpressionKind kind, ExpressionPtr left, ExpressionPtr right) const;
  ExpressionPtr parse_expression(bool with_conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter = true);
  ExpressionPtr parse_primary(bool with_namespace = false);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_subscribed(ExpressionPtr node);
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr parse_filter(ExpressionPtr node, bool first_is_here);
  ExpressionPtr parse_test(ExpressionPtr node);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  CallArguments parse_arguments();
  std::string dotted_name();

  struct TupleOptions {
    bool primaries = false, with_conditional = true, in_parentheses = false, with_namespace = false;
    std::string_view end = {};
  };
  ExpressionPtr parse_tuple(const TupleOptions& options);

  std::vector<Token> tokens_;
  const Limits& limits_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // around the current place, in the same function
};

}  // namespace hotswap::jinja
