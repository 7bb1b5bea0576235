#include "hotswap/serve/message_parser.h"

#include <algorithm>

#include "hotswap/serve/grammar_constraint.h"

namespace hotswap::serve {
namespace {

using Kind = MessagePart::Kind;

constexpr std::string_view kBlanks = " \t\r\n";

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

// The longest end of the text that is the beginning of the marker.
size_t begun(std::string_view text, std::string_view marker) {
  for (size_t size = std::min(marker.size() - 1, text.size()); size > 0; --size) {
    if (text.substr(text.size() - size) == marker.substr(0, size)) return size;
  }
  return 0;
}

}  // namespace

CallScanner::State CallScanner::push(char c) {
  switch (step_) {
    case Step::kOpen:
      if (is_blank(c)) return state_;
      if (c != '{') return fail();
      step_ = Step::kKey;
      return state_;
    case Step::kKey:
      if (is_blank(c)) return state_;
      if (c != '"') return fail();
      key_.clear();
      step_ = Step::kInKey;
      return state_;
    case Step::kInKey:
      if (c == '"') {
        step_ = Step::kColon;
      } else {
        key_ += c;
      }
      return key_.size() > 64 ? fail() : state_;
    case Step::kColon:
      if (is_blank(c)) return state_;
      if (c != ':') return fail();
      step_ = Step::kValue;
      return state_;
    case Step::kValue:
      if (is_blank(c)) return state_;
      raw_.clear();
      depth_ = 0;
      in_text_ = escaped_ = false;
      step_ = Step::kInValue;
      [[fallthrough]];
    case Step::kInValue:
      value(c);
      return state_;
    case Step::kAfterValue:
      if (is_blank(c)) return state_;
      if (c == ',') {
        step_ = Step::kKey;
      } else if (c != '}') {
        fail();
      } else {
        state_ = has_name_ && (has_arguments_ || arguments_.empty()) ? State::kDone : State::kFailed;
        if (arguments_.empty()) arguments_ = "{}";
      }
      return state_;
  }
  return state_;
}

void CallScanner::value(char c) {
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  const bool ends_scalar = !in_text_ && depth_ == 0 && !raw_.empty() && (c == ',' || c == '}' || is_blank(c));
  if (ends_scalar) {
    end_value();
    if (state_ == State::kGoing) push(c);
    return;
  }
  raw_ += c;
  if (is_arguments && raw_.size() == 1) {
    if (has_arguments_) return void(fail());
    quoted_ = c == '"';
    if (c != '"' && c != '{') return void(fail());
  }
  if (is_arguments && !quoted_) arguments_ += c;
  if (in_text_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_text_ = false;
    }
  } else if (c == '"') {
    in_text_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  const bool compound = raw_[0] == '{' || raw_[0] == '[' || raw_[0] == '"';
  if (!compound || in_text_ || depth_ != 0) return;
  end_value();
  if (state_ == State::kFailed && is_arguments && !quoted_) arguments_.pop_back();  // not reported
}

void CallScanner::end_value() {
  step_ = Step::kAfterValue;
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  if (!is_arguments && key_ != "name") return;
  if (!json_problem(raw_).empty()) return void(fail());
  const auto parsed = nlohmann::ordered_json::parse(raw_, nullptr, /*allow_exceptions=*/false);
  if (key_ == "name") {
    if (!parsed.is_string() || has_name_) return void(fail());
    name_ = parsed.get<std::string>();
    has_name_ = true;
    return;
  }
  has_arguments_ = true;
  if (!quoted_) return;
  const auto inside = parsed.get<std::string>();
  if (!json_problem(inside).empty()) return void(fail());
  arguments_ = inside;
  quoted_ = false;
}

void MessageParser::add(Parts& out, Kind kind, std::string text) const {
  if (text.empty() && kind != Kind::kCall) return;
  const size_t call = kind == Kind::kCall || kind == Kind::kArguments ? calls_ - 1 : 0;
  if (!out.empty() && kind != Kind::kCall && out.back().kind == kind && out.back().call == call) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::move(text), call});
  }
}

std::vector<MessagePart> MessageParser::push(std::string_view text) {
  held_ += text;
  Parts out;
  while (step(out, /*last=*/false)) {
  }
  return out;
}

std::vector<MessagePart> MessageParser::finish() {
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
  if (rules_.thoughts || bare) {
    if (rest.empty() && !last) return false;
    if (rules_.thoughts && rest.starts_with(think)) {
      held_.erase(0, first + think.size());
      at_ = At::kThoughts;
      return true;
    }
    if (rules_.thoughts && !rest.empty() && think.starts_with(rest) && !last) return false;
    if (bare && rest.starts_with('{')) {
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
  scanner_ = {};
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
  } else if (!scanner_.whole_arguments_only()) {
    add(out, Kind::kArguments, scanner_.arguments().substr(sent_));
  }
  at_ = At::kContent;
}

bool MessageParser::call(Parts& out, bool last) {
  size_t read = 0;
  const bool opens_list = rules_.format->list;
  while (read < held_.size() && scanner_.state() == CallScanner::State::kGoing) {
    const char c = held_[read++];
    call_text_ += c;
    const bool of_list = opens_list && scanner_.name().empty() && call_text_.find('{') == std::string::npos && c == '[';
    if (!of_list) scanner_.push(c);
    if (scanner_.has_name() && !begun_) {
      if (!rules_.tools.contains(scanner_.name())) break;
      begun_ = true;
      blanks_.clear();
      ++calls_;
      add(out, Kind::kCall, scanner_.name());
    }
  }
  held_.erase(0, read);
  const bool unknown = scanner_.has_name() && !begun_;
  if (scanner_.state() == CallScanner::State::kFailed || unknown) {
    give_up(out);
    return true;
  }
  if (begun_ && !scanner_.whole_arguments_only()) {
    add(out, Kind::kArguments, scanner_.arguments().substr(sent_));
    sent_ = scanner_.arguments().size();
  }
  if (scanner_.state() == CallScanner::State::kDone) {
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

// Its closing, then the next call of a list, or content again.
bool MessageParser::after_call(Parts& out, bool last) {
  const size_t first = held_.find_first_not_of(kBlanks);
  if (first == std::string::npos) {
    if (last) held_.clear();
    return false;
  }
  const std::string_view rest = std::string_view(held_).substr(first), close = rules_.format->close;
  if (rules_.format->list) {
    if (rest[0] == ',') {
      held_.erase(0, first);
      begin_call(1);
      return true;
    }
    held_.erase(0, rest[0] == ']' ? first + 1 : 0);
  } else if (!close.empty()) {
    if (!last && rest.size() < close.size() && close.starts_with(rest)) return false;
    if (rest.starts_with(close)) held_.erase(0, first + close.size());
  }
  at_ = At::kContent;
  return content(out, last) || !held_.empty();
}

}  // namespace hotswap::serve
