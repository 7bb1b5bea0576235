// The bytes that each token of a tokenizer adds to a text.
#pragma once

#include <set>

#include "hotswap/grammar/grammar.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap::grammar {

// What a token is in a text: half a character is U+FFFD in `text`, and its bytes in `bytes`.
struct TokenText {
  std::string text, bytes;
};

class TokenTexts {
 public:
  explicit TokenTexts(const Tokenizer& tokenizer);
  TokenText of(int64_t id) const;  // after another token, because a decoder may treat a text's first one in its own way

 private:
  const Tokenizer& tokenizer_;
  std::vector<int64_t> before_;
  std::string run_up_;
};

// vocab: the rows of the model's logits, which may be more than the tokenizer has tokens. Special tokens have no bytes,
// so that no grammar allows them, except `shown`: those that are a part of answers, such as [TOOL_CALLS].
TokenBytes token_bytes(const Tokenizer& tokenizer, int64_t vocab, std::vector<int64_t> ends,
                       const std::set<int64_t>& shown = {});

}  // namespace hotswap::grammar
