// UTF-8 and the character classes of Rust's `char`, which the tokenizers library uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hotswap::tokenizers {

struct CodePoint {
  char32_t value;
  uint32_t size;  // bytes in UTF-8
};

// The code point that starts at bytes[at]. The text must be valid UTF-8 and `at` a boundary.
inline CodePoint code_point_at(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu), 4};
}

inline bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

void append_utf8(std::string& out, char32_t value);

// Where the first byte that is not UTF-8 stands; npos when all is well.
size_t find_invalid_utf8(std::string_view bytes);

// Each ill-formed part (a maximal prefix of a character, or a stray byte) becomes one U+FFFD.
std::string utf8_lossy(std::string_view bytes);

bool is_whitespace(char32_t c);   // White_Space
bool is_numeric(char32_t c);      // Nd, Nl, No
bool is_punctuation(char32_t c);  // P* of Unicode 8.0, and ASCII's $+<=>^`|~
bool is_word(char32_t c);         // \w of Rust's regex: letters, marks, decimal and letter numbers, connectors, joiners

char32_t to_lowercase(char32_t c);  // of one character: not for U+0130, which becomes two

// Characters that gained their category after Unicode 14, the oldest version of the character tables that we build on.
struct LateCategory {
  char category[3];
  char32_t first, last;
};
struct LateCategories {
  const LateCategory* begin_;
  const LateCategory* end_;
  const LateCategory* begin() const { return begin_; }
  const LateCategory* end() const { return end_; }
};
LateCategories late_categories();

}  // namespace hotswap::tokenizers
