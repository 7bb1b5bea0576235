// Small tests on text that came from outside, without regular expressions: those of the standard library recurse once a
// character and overflow the stack on long input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool all_digits(std::string_view s) { return !s.empty() && std::all_of(s.begin(), s.end(), is_digit); }
inline bool is_hex(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

// What C++, Python and torch's op namespaces all take for a name.
inline bool is_identifier(std::string_view s) {
  return !s.empty() && s.size() <= 128 && !is_digit(s[0]) &&
         std::all_of(s.begin(), s.end(), [](char c) { return is_digit(c) || is_alpha(c) || c == '_'; });
}

inline std::string_view trim(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

inline std::string lower(std::string_view s) {
  std::string result(s);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0;;) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end - start));
    if (end == text.npos) return parts;
    start = end + 1;
  }
}

// Whole and shortest sequences, no surrogates: what JSON can carry as it is.
inline bool is_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const auto first = static_cast<unsigned char>(s[i]);
    const size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : (first & 0xF0) == 0xE0 ? 3 : 4;
    if ((length == 4 && (first < 0xF0 || first > 0xF4)) || i + length > s.size()) return false;
    uint32_t code = length == 1 ? first : first & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(s[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3Fu);
    }
    if ((length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10FFFF))) return false;
    if (code >= 0xD800 && code < 0xE000) return false;
    i += length;
  }
  return true;
}

// For error messages: long and unprintable text from outside stays readable there.
inline std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 120)) result += (c >= 0 && c < ' ') || c == 127 ? '?' : c;
  return text.size() > 120 ? result + "..." : result;
}

}  // namespace hotswap
