// A grammar's matcher as what the engine holds a sequence to.
#pragma once

#include <memory>

#include "hotswap/engine/row_sampler.h"
#include "hotswap/grammar/grammar.h"
#include "hotswap/tokenizers/stream_decoder.h"

namespace hotswap::serve {

class GrammarConstraint : public TokenConstraint {
 public:
  // thinking: the text begins within <think>; the grammar begins after </think>. ends: not allowed before that.
  GrammarConstraint(std::unique_ptr<grammar::Matcher> matcher, const Tokenizer& tokenizer, std::vector<int64_t> ends,
                    bool thinking)
      : matcher_(std::move(matcher)),
        thoughts_(tokenizer, /*skip_special_tokens=*/false),
        ends_(std::move(ends)),
        thinking_(thinking) {}
  void allowed(std::span<int32_t> words) override;
  void accept(int64_t id) override;
  bool ended() const override { return matcher_->ended(); }

 private:
  std::unique_ptr<grammar::Matcher> matcher_;
  StreamDecoder thoughts_;
  std::vector<int64_t> ends_;
  bool thinking_;
  std::string recent_;  // the end of the thoughts' text
};

}  // namespace hotswap::serve
