#include "hotswap/serve/channel_parser.h"

#include <algorithm>

#include "hotswap/serve/request_body.h"

namespace hotswap::serve {
namespace {

using Kind = MessagePart::Kind;

constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kStart = "<|start|>", kTo = "to=";
constexpr std::string_view kEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};  // of a message's text
constexpr size_t kLongestHeader = 512;

// What comes after the marker, up to a blank or the next marker.
std::string_view word_after(std::string_view text, std::string_view marker) {
  const size_t at = text.find(marker);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + marker.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

ChannelParser::Parts ChannelParser::read(std::string_view text, bool last) {
  held_ += text;
  Parts out;
  while (step(out, last)) {
  }
  if (last && at_ == At::kBody) end_body(out);
  return out;
}

bool ChannelParser::step(Parts& out, bool last) {
  if (at_ == At::kStart) return start(last);
  return at_ == At::kHeader ? header(out, last) : body(out, last);
}

// A header, or content where the answer has none: a prompt may end with one.
bool ChannelParser::start(bool last) {
  const size_t first = held_.find_first_not_of(kBlanks);
  const std::string_view rest = first == std::string::npos ? std::string_view() : std::string_view(held_).substr(first);
  if (rest.empty() && !last) return false;
  for (const std::string_view marker : {kChannel, kStart, kTo}) {
    if (rest.starts_with(marker)) {
      at_ = At::kHeader;
      return true;
    }
    if (!last && marker.starts_with(rest)) return false;
  }
  at_ = At::kBody;
  kind_ = Kind::kContent;
  return !held_.empty();
}

bool ChannelParser::header(Parts& out, bool last) {
  const size_t at = held_.find(kMessage);
  if (at != std::string::npos) {
    const std::string header = held_.substr(0, at);
    held_.erase(0, at + kMessage.size());
    at_ = At::kBody;
    begin_body(out, header);
    return true;
  }
  if (!last && held_.size() <= kLongestHeader) return false;
  at_ = At::kBody;  // none: it is content
  kind_ = Kind::kContent;
  add_part(out, {kind_, std::exchange(held_, {})});
  return false;
}

void ChannelParser::begin_body(Parts& out, std::string_view header) {
  constexpr std::string_view kFunctions = "functions.";
  std::string_view to = word_after(header, kTo);
  kind_ = word_after(header, kChannel) == "analysis" ? Kind::kReasoning : Kind::kContent;
  if (to.empty()) return;
  if (to.starts_with(kFunctions)) to.remove_prefix(kFunctions.size());
  if (!tools_.contains(std::string(to))) {
    ++unparsed_;
    kind_ = Kind::kContent;
    return;
  }
  kind_ = Kind::kArguments;
  arguments_.clear();
  add_part(out, {Kind::kCall, std::string(to), calls_++});
}

void ChannelParser::say(Parts& out, std::string text) {
  if (kind_ == Kind::kArguments) arguments_ += text;
  add_part(out, {kind_, std::move(text), kind_ == Kind::kArguments ? calls_ - 1 : 0});
}

void ChannelParser::end_body(Parts& out) {
  if (kind_ == Kind::kArguments) {
    if (arguments_.find_first_not_of(kBlanks) == std::string::npos) say(out, "{}");
    if (!json_problem(arguments_).empty()) ++unparsed_;
  }
  kind_ = Kind::kContent;
  at_ = At::kStart;
}

bool ChannelParser::body(Parts& out, bool last) {
  size_t end = std::string::npos, size = 0, begins = 0;
  for (const std::string_view marker : kEnds) {
    const size_t at = held_.find(marker);
    if (at < end) {
      end = at;
      size = marker == kStart || marker == kChannel ? 0 : marker.size();  // these begin the next header
    }
    begins = std::max(begins, begun(held_, marker));
  }
  if (end == std::string::npos) {
    const size_t certain = last ? held_.size() : held_.size() - begins;
    say(out, held_.substr(0, certain));
    held_.erase(0, certain);
    return false;
  }
  say(out, held_.substr(0, end));
  held_.erase(0, end + size);
  end_body(out);
  return true;
}

}  // namespace hotswap::serve
