// A text that is read from its beginning on, byte by byte: what the readers of patterns and of grammars stand on.
#pragma once

#include <string>

namespace hotswap::grammar {

class Cursor {
 protected:
  explicit Cursor(const std::string& text) : text_(text) {}
  bool more() const { return at_ < text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(char c) {
    if (!more() || peek() != c) return false;
    ++at_;
    return true;
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace hotswap::grammar
