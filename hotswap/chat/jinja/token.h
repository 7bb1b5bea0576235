// The words of a template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

enum class TokenKind {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kNumber,    // value holds an int or a float
  kOperator,  // text holds it
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of kString the decoded text
  Value value{};
  int line = 0;
};

// Throws TemplateError (kSyntax) for what is no template.
std::vector<Token> tokenize(std::string_view source);

}  // namespace hotswap::jinja
