// One answer's text while its tokens come: what is certain so far, where a stop text ends it, and its logprobs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/serve/generation_request.h"
#include "hotswap/serve/token_channel.h"
#include "hotswap/tokenizers/stream_decoder.h"

namespace hotswap::serve {

// Looks for stop texts in a text that comes in pieces, and keeps back what may be the beginning of one.
class StopScanner {
 public:
  StopScanner(std::vector<std::string> stops, bool include_stop)
      : stops_(std::move(stops)), include_stop_(include_stop) {}
  std::string push(const std::string& piece);  // the text that is certain; once stopped() nothing follows
  std::string finish();                        // what was kept back
  bool stopped() const { return stopped_; }

 private:
  size_t kept_back() const;
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
  bool stopped_ = false;
};

struct ShownToken {  // for the lists of logprobs
  int64_t id = 0;
  TokenLogprobs logprobs;
  int64_t offset = 0;  // where it begins: characters of the answer before it
};

struct TextPiece {
  std::string text;                     // of a message: its content only
  std::vector<ShownToken> tokens = {};  // since the piece before
  std::vector<MessagePart> parts = {};  // of a message that has more than content
  const char* finish_reason = nullptr;
  std::string invalid = {};  // why the finished answer is none that its schema allows
};

class AnswerText {
 public:
  // `before`: the text that the answer continues, none where it begins one
  AnswerText(const Tokenizer& tokenizer, const TextRules& rules, std::span<const int64_t> before = {})
      : stream_(tokenizer, rules.skip_special_tokens, before),
        scanner_(rules.stop, rules.include_stop),
        rules_(rules) {}
  TextPiece push(const TokenEvent& event);
  bool ended() const { return ended_; }
  int64_t tokens() const { return tokens_; }  // those that were made for it, its end included

 private:
  StreamDecoder stream_;
  StopScanner scanner_;
  const TextRules rules_;
  std::vector<ShownToken> shown_;  // of text that was kept back
  int64_t tokens_ = 0, characters_ = 0;
  bool ended_ = false;
};

int64_t characters(std::string_view utf8);  // code points, in which clients count
// Where each token of a text begins, in characters; within one, where that one begins.
std::vector<int64_t> text_offsets(const Tokenizer& tokenizer, std::span<const int64_t> ids, bool skip_special_tokens);

}  // namespace hotswap::serve
