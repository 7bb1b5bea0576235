// Grammars of requests, compiled on two threads of their own: what takes too long holds up no one but its own request.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "hotswap/grammar/token_bytes.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap::serve {

struct GrammarLimits {
  std::chrono::milliseconds deadline{5000};  // of a compilation; the request is refused then
  std::chrono::milliseconds load{60000};     // of the library and the vocabulary, before the first one
  size_t cache_bytes = 64 << 20;             // of compiled grammars that are kept
};

class GrammarCompiler {
 public:
  // ends: tokens that end a text; shown: special tokens that a grammar may allow
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, std::vector<int64_t> ends, std::set<int64_t> shown = {},
                  const GrammarLimits& limits = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  std::string missing() const;  // why there is no structured output; "": there is
  // ApiError 400 where the library refuses the grammar or the deadline passes, 501 where the library is missing, 503
  // where the compilation could not begin.
  std::shared_ptr<const grammar::CompiledGrammar> compile(const std::string& ebnf);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the threads' too: one that never ends does not keep the server from ending
};

}  // namespace hotswap::serve
