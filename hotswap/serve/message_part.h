// A piece of a message while it comes.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap::serve {

inline constexpr const char* kThinkOpen = "<think>";
inline constexpr const char* kThinkClose = "</think>";
inline constexpr std::string_view kBlanks = " \t\r\n";

inline bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

inline std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

struct MessagePart {
  enum class Kind { kContent, kReasoning, kCall, kArguments };
  Kind kind;
  std::string text = {};  // of a call: its tool's name
  size_t call = 0;        // which one, counted in the message
};

// At the end of the parts, or of the last one where that is of the same kind and call.
inline void add_part(std::vector<MessagePart>& parts, MessagePart part) {
  using Kind = MessagePart::Kind;
  if (part.text.empty() && part.kind != Kind::kCall) return;
  const bool goes_on =
      !parts.empty() && part.kind != Kind::kCall && parts.back().kind == part.kind && parts.back().call == part.call;
  if (goes_on) {
    parts.back().text += part.text;
  } else {
    parts.push_back(std::move(part));
  }
}

// The longest end of the text that is the beginning of the marker.
inline size_t begun(std::string_view text, std::string_view marker) {
  for (size_t size = std::min(marker.size() - 1, text.size()); size > 0; --size) {
    if (text.substr(text.size() - size) == marker.substr(0, size)) return size;
  }
  return 0;
}

}  // namespace hotswap::serve
