// An answer in channels, as gpt-oss writes it, while it comes:
//
//   <|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary to=functions.f
//   <|constrain|>json<|message|>{"a": 1}<|call|>
//
// The channel analysis is thought; a message to a tool is a call; all other is content.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/serve/message_part.h"

namespace hotswap::serve {

class ChannelParser {
 public:
  explicit ChannelParser(std::set<std::string> tools) : tools_(std::move(tools)) {}
  std::vector<MessagePart> push(std::string_view text) { return read(text, /*last=*/false); }
  std::vector<MessagePart> finish() { return read({}, /*last=*/true); }
  bool in_thoughts() const { return at_ == At::kBody && kind_ == MessagePart::Kind::kReasoning; }
  size_t calls() const { return calls_; }
  int64_t unparsed() const { return unparsed_; }

 private:
  enum class At { kStart, kHeader, kBody };
  using Parts = std::vector<MessagePart>;
  Parts read(std::string_view text, bool last);
  bool step(Parts& out, bool last);
  bool start(bool last);
  bool header(Parts& out, bool last);
  bool body(Parts& out, bool last);
  void begin_body(Parts& out, std::string_view header);
  void say(Parts& out, std::string text);
  void end_body(Parts& out);
  const std::set<std::string> tools_;
  At at_ = At::kStart;
  MessagePart::Kind kind_ = MessagePart::Kind::kContent;
  std::string held_;       // not yet read
  std::string arguments_;  // of the call that is being read
  size_t calls_ = 0;
  int64_t unparsed_ = 0;
};

}  // namespace hotswap::serve
