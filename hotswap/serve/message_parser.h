// An answer's text as the parts of a message while it comes: thoughts, calls of tools, and the rest, its content.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/serve/tools.h"

namespace hotswap::serve {

struct MessagePart {
  enum class Kind { kContent, kReasoning, kCall, kArguments };
  Kind kind;
  std::string text = {};  // of a call: its tool's name
  size_t call = 0;        // which one, counted in the message
};

struct MessageRules {
  bool thinking = false;               // the text begins within <think>
  bool thoughts = false;               // it may begin with <think>
  const ToolFormat* format = nullptr;  // null: no calls are looked for
  std::set<std::string> tools = {};    // names that may be called
  bool plain() const { return !thinking && !thoughts && format == nullptr; }
};

// One call's JSON, {"name": ..., "arguments": {...}}, byte by byte. Its arguments come as soon as the name is known.
class CallScanner {
 public:
  enum class State { kGoing, kDone, kFailed };
  State push(char c);
  State state() const { return state_; }
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  const std::string& arguments() const { return arguments_; }  // so far; complete once done
  bool whole_arguments_only() const { return quoted_; }        // JSON within a text: known at its end

 private:
  enum class Step { kOpen, kKey, kInKey, kColon, kValue, kInValue, kAfterValue };
  void value(char c);
  void end_value();
  State fail() { return state_ = State::kFailed; }
  State state_ = State::kGoing;
  Step step_ = Step::kOpen;
  std::string key_, raw_, name_, arguments_;
  bool has_name_ = false, has_arguments_ = false, quoted_ = false;
  bool in_text_ = false, escaped_ = false;
  int depth_ = 0;  // within the value
};

class MessageParser {
 public:
  explicit MessageParser(MessageRules rules)
      : rules_(std::move(rules)), at_(rules_.thinking ? At::kThoughts : At::kStart) {}
  std::vector<MessagePart> push(std::string_view text);
  std::vector<MessagePart> finish();  // what was kept back
  bool in_thoughts() const { return at_ == At::kThoughts; }
  size_t calls() const { return calls_; }
  int64_t unparsed() const { return unparsed_; }  // texts that began as a call and are none

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
  At at_;
  std::string held_;       // not yet read
  std::string call_text_;  // of the call that is being read, its opening included
  std::string blanks_;     // at the end of the content so far: dropped where a call follows
  CallScanner scanner_;
  size_t calls_ = 0, sent_ = 0;  // bytes of the arguments
  bool begun_ = false;           // the call was reported
  int64_t unparsed_ = 0;
};

}  // namespace hotswap::serve
