#include "hotswap/serve/answer_text.h"

#include <algorithm>

namespace hotswap::serve {

// The longest end of the text that is the beginning of a stop text.
size_t StopScanner::kept_back() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.compare(held_.size() - size, size, stop, 0, size) == 0) longest = size;
    }
  }
  return longest;
}

std::string StopScanner::push(const std::string& piece) {
  if (stopped_) return "";
  if (stops_.empty()) return piece;
  held_ += piece;
  size_t first = std::string::npos, length = 0;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) first = at, length = stop.size();
  }
  if (first != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, first + (include_stop_ ? length : 0));
  }
  const size_t certain = held_.size() - kept_back();
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  return out;
}

std::string StopScanner::finish() { return stopped_ ? "" : std::exchange(held_, ""); }

TextPiece AnswerText::push(const TokenEvent& event) {
  TextPiece piece;
  if (ended_) return piece;
  ++tokens_;
  const bool is_end = event.finish == Finish::kEos;
  if (event.logprobs && !is_end) shown_.push_back({event.id, *event.logprobs, characters_});
  if (!is_end || rules_.include_stop) {
    const std::string more = stream_.push(event.id);
    characters_ += characters(more);
    piece.text = scanner_.push(more);
  }
  if (event.finish != Finish::kNot && !scanner_.stopped()) piece.text += scanner_.push(stream_.finish());
  ended_ = event.finish != Finish::kNot || scanner_.stopped();
  if (ended_) {
    piece.text += scanner_.finish();
    piece.finish_reason = event.finish == Finish::kLength && !scanner_.stopped() ? "length" : "stop";
  }
  if (ended_ || !piece.text.empty()) piece.tokens = std::exchange(shown_, {});
  return piece;
}

int64_t characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::vector<int64_t> text_offsets(const Tokenizer& tokenizer, std::span<const int64_t> ids, bool skip_special_tokens) {
  StreamDecoder stream(tokenizer, skip_special_tokens);
  std::vector<int64_t> offsets;
  int64_t before = 0;
  for (const int64_t id : ids) {
    offsets.push_back(before);
    before += characters(stream.push(id));
  }
  return offsets;
}

}  // namespace hotswap::serve
