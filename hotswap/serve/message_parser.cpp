#include "hotswap/serve/message_parser.h"

#include <algorithm>

#include "hotswap/serve/message_part.h"

namespace hotswap::serve {
namespace {

using Kind = MessagePart::Kind;

}  // namespace

MessageParser::MessageParser(MessageRules rules)
    : rules_(std::move(rules)), at_(rules_.thinking ? At::kThoughts : At::kStart) {
  if (rules_.format != nullptr && rules_.format->style == ToolFormat::Style::kChannels) channels_.emplace(rules_.tools);
}

void MessageParser::add(Parts& out, Kind kind, std::string text) const {
  add_part(out, {kind, std::move(text), kind == Kind::kCall || kind == Kind::kArguments ? calls_ - 1 : 0});
}

std::vector<MessagePart> MessageParser::push(std::string_view text) {
  if (channels_) return channels_->push(text);
  held_ += text;
  Parts out;
  while (step(out, /*last=*/false)) {
  }
  return out;
}

std::vector<MessagePart> MessageParser::finish() {
  if (channels_) return channels_->finish();
  Parts out;
  while (step(out, /*last=*/true)) {
  }
  if (calls_ == 0) add(out, Kind::kContent, std::exchange(blanks_, {}));
  return out;
}

// -> whether something was read, so that another step may read more
bool MessageParser::step(Parts& out, bool last) {
  switch (at_) {
    case At::kStart:
      return start(out, last);
    case At::kThoughts:
      return thoughts(out, last);
    case At::kAfterThoughts: {
      const size_t first = held_.find_first_not_of(kBlanks);
      held_.erase(0, std::min(first, held_.size()));
      if (held_.empty()) return false;
      at_ = At::kStart;
      return true;
    }
    case At::kContent:
      return content(out, last);
    case At::kCall:
      return call(out, last);
    case At::kAfterCall:
      return after_call(out, last);
  }
  return false;
}

// Before the first character that is not blank: <think>, a message that is one call, or content.
bool MessageParser::start(Parts& out, bool last) {
  const size_t first = held_.find_first_not_of(kBlanks);
  const std::string_view rest = first == std::string::npos ? std::string_view() : std::string_view(held_).substr(first);
  const std::string_view think = kThinkOpen;
  const bool bare = rules_.format != nullptr && *rules_.format->open == '\0';
  const std::string_view tag = bare ? rules_.format->tag : "";
  if (rules_.thoughts || bare) {
    if (rest.empty() && !last) return false;
    if (rules_.thoughts && rest.starts_with(think)) {
      held_.erase(0, first + think.size());
      at_ = At::kThoughts;
      return true;
    }
    if (rules_.thoughts && !rest.empty() && think.starts_with(rest) && !last) return false;
    if (!tag.empty() && rest.starts_with(tag)) {
      begin_call(first + tag.size());
      return true;
    }
    if (!tag.empty() && !rest.empty() && tag.starts_with(rest) && !last) return false;
    if (bare && (rest.starts_with('{') || (rules_.format->python && rest.starts_with('[')))) {
      begin_call(first);
      return true;
    }
  }
  at_ = At::kContent;
  return content(out, last) || !held_.empty();
}

bool MessageParser::thoughts(Parts& out, bool last) {
  const std::string_view close = kThinkClose;
  const size_t at = held_.find(close);
  if (at != std::string::npos) {
    add(out, Kind::kReasoning, held_.substr(0, at));
    held_.erase(0, at + close.size());
    at_ = At::kAfterThoughts;
    return true;
  }
  const size_t certain = last ? held_.size() : held_.size() - begun(held_, close);
  add(out, Kind::kReasoning, held_.substr(0, certain));
  held_.erase(0, certain);
  return false;
}

bool MessageParser::content(Parts& out, bool last) {
  const std::string_view open = rules_.format == nullptr ? "" : rules_.format->open;
  if (open.empty()) {
    add(out, Kind::kContent, std::exchange(held_, {}));
    return false;
  }
  const size_t at = held_.find(open);
  const size_t certain = at != std::string::npos ? at : last ? held_.size() : held_.size() - begun(held_, open);
  std::string text = std::exchange(blanks_, {}) + held_.substr(0, certain);
  held_.erase(0, certain);
  const size_t end = text.find_last_not_of(kBlanks);
  blanks_ = text.substr(end == std::string::npos ? 0 : end + 1);
  text.resize(text.size() - blanks_.size());
  add(out, Kind::kContent, std::move(text));
  if (at == std::string::npos) return false;
  begin_call(open.size());
  return true;
}

// The first `bytes` of what is held are its opening.
void MessageParser::begin_call(size_t bytes) {
  call_text_ = held_.substr(0, bytes);
  held_.erase(0, bytes);
  scanner_.emplace(*rules_.format, rules_.typed);
  begun_ = false;
  sent_ = 0;
  at_ = At::kCall;
}

// It was none: its text is content. What was reported of it already stays.
void MessageParser::give_up(Parts& out) {
  ++unparsed_;
  if (!begun_) {
    add(out, Kind::kContent, std::exchange(blanks_, {}) + call_text_);
    call_text_.clear();
  } else if (!scanner_->whole_arguments_only()) {
    add(out, Kind::kArguments, scanner_->arguments().substr(sent_));
  }
  at_ = At::kContent;
}

bool MessageParser::call(Parts& out, bool last) {
  size_t read = 0;
  while (read < held_.size() && scanner_->state() == CallScanner::State::kGoing) {
    const char c = held_[read++];
    call_text_ += c;
    scanner_->push(c);
    if (scanner_->has_name() && !begun_) {
      if (!rules_.tools.contains(scanner_->name())) break;
      begun_ = true;
      blanks_.clear();
      ++calls_;
      add(out, Kind::kCall, scanner_->name());
    }
  }
  held_.erase(0, read);
  const bool unknown = scanner_->has_name() && !begun_;
  if (scanner_->state() == CallScanner::State::kFailed || unknown) {
    give_up(out);
    return true;
  }
  if (begun_ && !scanner_->whole_arguments_only()) {
    add(out, Kind::kArguments, scanner_->arguments().substr(sent_));
    sent_ = scanner_->arguments().size();
  }
  if (scanner_->state() == CallScanner::State::kDone) {
    call_text_.clear();
    at_ = At::kAfterCall;
    return true;
  }
  if (last && !begun_) {
    give_up(out);
    return true;
  }
  return false;
}

// What closes it, then the next call, or content again.
bool MessageParser::after_call(Parts& out, bool last) {
  const size_t first = held_.find_first_not_of(kBlanks);
  if (first == std::string::npos) {
    if (last) held_.clear();
    return false;
  }
  const ToolFormat& format = *rules_.format;
  const bool python = scanner_->is_python();
  const std::string_view rest = std::string_view(held_).substr(first), next = python ? "," : format.next;
  bool may_come = false;
  for (std::string_view literal : {format.after, python ? "]" : format.end}) {
    literal.remove_prefix(std::min(literal.find_first_not_of(kBlanks), literal.size()));
    if (!literal.empty() && rest.starts_with(literal)) {
      held_.erase(0, first + literal.size());
      return true;
    }
    may_come = may_come || literal.starts_with(rest);
  }
  if (!next.empty() && rest.starts_with(next)) {
    held_.erase(0, first);
    begin_call(next.size() == 1 ? 1 : 0);  // a longer one belongs to the call
    return true;
  }
  if (!last && (may_come || next.starts_with(rest))) return false;
  if (may_come) {  // the answer was cut within what closes its call, which is no content
    held_.clear();
    return false;
  }
  at_ = At::kContent;
  return content(out, last) || !held_.empty();
}

}  // namespace hotswap::serve
