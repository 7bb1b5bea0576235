// What constrains an answer: a grammar compiled for one vocabulary, and a matcher that walks it token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hotswap::grammar {

// The bytes that each token of a model adds to a text; empty: a token that no grammar ever allows.
struct TokenBytes {
  std::vector<std::string> bytes;
  std::vector<int64_t> ends;  // tokens that end a text: allowed where the grammar may end, and only there
};

// Of one answer. Not for several threads at once.
class Matcher {
 public:
  virtual ~Matcher() = default;
  // Bit id % 32 of word id / 32: whether the token may come next. words: [ceil(vocab / 32)]
  virtual void allowed(std::span<int32_t> words) = 0;
  virtual bool accept(int64_t id) = 0;  // false where the grammar does not allow it; nothing changes then
  virtual bool ended() const = 0;       // after a token that ends a text
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual std::unique_ptr<Matcher> matcher() const = 0;
  virtual size_t bytes() const = 0;  // of memory
};

// Compiles for one vocabulary, on any thread.
class GrammarEngine {
 public:
  virtual ~GrammarEngine() = default;
  // ebnf: rules as llama.cpp's GBNF, of which `root` is the first. Error where the text is no such grammar.
  virtual std::shared_ptr<const CompiledGrammar> compile(const std::string& ebnf) const = 0;
};

}  // namespace hotswap::grammar
