// An answer's text as the parts of a message while it comes: thoughts, calls of tools, and the rest, its content.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/serve/call_scanner.h"
#include "hotswap/serve/channel_parser.h"

namespace hotswap::serve {

struct MessageRules {
  bool thinking = false;               // the text begins within <think>
  bool thoughts = false;               // it may begin with <think>
  const ToolFormat* format = nullptr;  // null: no calls are looked for
  std::set<std::string> tools = {};    // names that may be called
  TypedParameters typed = {};          // of those
  bool plain() const { return !thinking && !thoughts && format == nullptr; }
};

class MessageParser {
 public:
  explicit MessageParser(MessageRules rules);
  std::vector<MessagePart> push(std::string_view text);
  std::vector<MessagePart> finish();  // what was kept back
  bool in_thoughts() const { return channels_ ? channels_->in_thoughts() : at_ == At::kThoughts; }
  size_t calls() const { return channels_ ? channels_->calls() : calls_; }
  // Texts that began as a call and are none.
  int64_t unparsed() const { return channels_ ? channels_->unparsed() : unparsed_; }

 private:
  enum class At { kStart, kThoughts, kAfterThoughts, kContent, kCall, kAfterCall };
  using Parts = std::vector<MessagePart>;
  bool step(Parts& out, bool last);
  bool start(Parts& out, bool last);
  bool thoughts(Parts& out, bool last);
  bool content(Parts& out, bool last);
  bool call(Parts& out, bool last);
  bool after_call(Parts& out, bool last);
  void begin_call(size_t bytes);
  void give_up(Parts& out);
  void add(Parts& out, MessagePart::Kind kind, std::string text) const;
  const MessageRules rules_;
  std::optional<ChannelParser> channels_;  // reads all of it, where the format is of channels
  At at_;
  std::string held_;       // not yet read
  std::string call_text_;  // of the call that is being read, its opening included
  std::string blanks_;     // at the end of the content so far: dropped where a call follows
  std::optional<CallScanner> scanner_;
  size_t calls_ = 0, sent_ = 0;  // bytes of the arguments
  bool begun_ = false;           // the call was reported
  int64_t unparsed_ = 0;
};

}  // namespace hotswap::serve
