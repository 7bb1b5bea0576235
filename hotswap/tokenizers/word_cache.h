// The tokens of words that were encoded before: one word per slot, the last one stays.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/tokenizers/model.h"

namespace hotswap::tokenizers {

class WordCache {
 public:
  // Appends the word's symbols: those of the cache, or those that `encode` appends, which are then kept.
  template <class Encode>
  void encode(std::string_view word, std::vector<Symbol>& out, const Encode& encode) {
    if (word.size() > kLongest) return encode();
    if (slots_.empty()) slots_.resize(kSlots);
    Word& slot = slots_[std::hash<std::string_view>{}(word) % kSlots];
    if (slot.bytes == word) {
      out.insert(out.end(), slot.symbols.begin(), slot.symbols.end());
      return;
    }
    const auto begin = static_cast<std::ptrdiff_t>(out.size());
    encode();
    held_ -= slot.size();
    slot.bytes.assign(word);
    slot.symbols.assign(out.begin() + begin, out.end());
    held_ += slot.size();
    if (held_ > kMaxHeld) clear();
  }
  size_t held() const { return held_; }  // bytes of words and symbols

  // Words of a language take a tenth of this. Without a limit, made-up words of 255 bytes would fill all slots: 75 MB.
  static constexpr size_t kMaxHeld = 8 << 20;

 private:
  static constexpr size_t kSlots = 1 << 15;
  static constexpr size_t kLongest = 255;  // bytes

  struct Word {
    std::string bytes;
    std::vector<Symbol> symbols;
    size_t size() const { return bytes.capacity() + symbols.capacity() * sizeof(Symbol); }
  };
  void clear() {
    slots_.clear();
    held_ = 0;
  }
  std::vector<Word> slots_;
  size_t held_ = 0;
};

}  // namespace hotswap::tokenizers
