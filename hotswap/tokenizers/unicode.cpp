#include "hotswap/tokenizers/unicode.h"

#include <utf8proc.h>

#include <cstring>

#include "hotswap/tokenizers/code_point_set.h"

namespace hotswap::tokenizers {
namespace {

// What the bytes at `at` begin with: a character of `size` bytes, or `size` bytes that are not one.
struct Utf8Sequence {
  uint32_t size;
  bool valid;
};

Utf8Sequence sequence_at(std::string_view bytes, size_t at) {
  const auto in = [&](size_t i, uint8_t low, uint8_t high) {
    if (at + i >= bytes.size()) return false;
    const auto byte = static_cast<uint8_t>(bytes[at + i]);
    return byte >= low && byte <= high;
  };
  const auto first = static_cast<uint8_t>(bytes[at]);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  if (first < 0xE0) return in(1, 0x80, 0xBF) ? Utf8Sequence{2, true} : Utf8Sequence{1, false};
  if (first < 0xF0) {
    if (!in(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF)) return {1, false};
    return in(2, 0x80, 0xBF) ? Utf8Sequence{3, true} : Utf8Sequence{2, false};
  }
  if (!in(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF)) return {1, false};
  if (!in(2, 0x80, 0xBF)) return {2, false};
  return in(3, 0x80, 0xBF) ? Utf8Sequence{4, true} : Utf8Sequence{3, false};
}

// The end of the run of ASCII that starts at `at`, eight bytes at a time.
size_t skip_ascii(std::string_view bytes, size_t at) {
  uint64_t block = 0;
  while (at + 8 <= bytes.size()) {
    std::memcpy(&block, bytes.data() + at, 8);
    if ((block & 0x8080808080808080ull) != 0) break;
    at += 8;
  }
  while (at < bytes.size() && static_cast<uint8_t>(bytes[at]) < 0x80) ++at;
  return at;
}

bool late(char32_t c, std::string_view group) {
  if (c < 0x800) return false;
  for (const LateCategory& row : late_categories()) {
    if (std::string_view(row.category).starts_with(group) && c >= row.first && c <= row.last) return true;
  }
  return false;
}

int category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

}  // namespace

void append_utf8(std::string& out, char32_t value) {
  if (value < 0x80) {
    out += static_cast<char>(value);
  } else if (value < 0x800) {
    out += {static_cast<char>(0xC0 | value >> 6), static_cast<char>(0x80 | (value & 0x3F))};
  } else if (value < 0x10000) {
    out += {static_cast<char>(0xE0 | value >> 12), static_cast<char>(0x80 | (value >> 6 & 0x3F)),
            static_cast<char>(0x80 | (value & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | value >> 18), static_cast<char>(0x80 | (value >> 12 & 0x3F)),
            static_cast<char>(0x80 | (value >> 6 & 0x3F)), static_cast<char>(0x80 | (value & 0x3F))};
  }
}

size_t find_invalid_utf8(std::string_view bytes) {
  for (size_t at = skip_ascii(bytes, 0); at < bytes.size(); at = skip_ascii(bytes, at)) {
    const Utf8Sequence next = sequence_at(bytes, at);
    if (!next.valid) return at;
    at += next.size;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t ascii = skip_ascii(bytes, at);
    text.append(bytes, at, ascii - at);
    at = ascii;
    if (at == bytes.size()) break;
    const Utf8Sequence next = sequence_at(bytes, at);
    if (next.valid) {
      text.append(bytes, at, next.size);
    } else {
      text += "\xEF\xBF\xBD";
    }
    at += next.size;
  }
  return text;
}

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const int found = category(c);
  if (found == UTF8PROC_CATEGORY_ND || found == UTF8PROC_CATEGORY_NL || found == UTF8PROC_CATEGORY_NO) return true;
  // The last two came with Unicode 17, which Rust's tables follow and the regex engine's do not yet.
  return late(c, "N") || (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
  static const CodePointSet kPunctuation(punctuation_ranges());
  return kPunctuation.has(c);
}

char32_t to_lowercase(char32_t c) {
  const auto lower = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  if (lower != c || c < 0x80) return lower;
  for (const LowercaseRange& range : late_lowercase_ranges()) {
    if (c >= range.first && c <= range.last) return static_cast<char32_t>(static_cast<int64_t>(c) + range.offset);
  }
  return c;
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  const int found = category(c);
  if (found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_NL) return true;  // letters, marks, Nd, Nl
  if (found == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D) return true;
  // Circled and squared letters are alphabetic symbols.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149)) return true;
  if ((c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) return true;
  return late(c, "L") || late(c, "M") || late(c, "Nd");
}

LateCategories late_categories() {
  static constexpr LateCategory kRows[] = {
      {"Lu", 0x1c89, 0x1c89},   {"Lu", 0xa7cb, 0xa7cc},   {"Lu", 0xa7da, 0xa7da},   {"Lu", 0xa7dc, 0xa7dc},
      {"Lu", 0x10d50, 0x10d65}, {"Ll", 0x1c8a, 0x1c8a},   {"Ll", 0xa7cd, 0xa7cd},   {"Ll", 0xa7db, 0xa7db},
      {"Ll", 0x10d70, 0x10d85}, {"Ll", 0x1df25, 0x1df2a}, {"Lm", 0x10d4e, 0x10d4e}, {"Lm", 0x10d6f, 0x10d6f},
      {"Lm", 0x16d40, 0x16d42}, {"Lm", 0x16d6b, 0x16d6c}, {"Lm", 0x1e030, 0x1e06d}, {"Lm", 0x1e4eb, 0x1e4eb},
      {"Lo", 0x105c0, 0x105f3}, {"Lo", 0x10d4a, 0x10d4d}, {"Lo", 0x10d4f, 0x10d4f}, {"Lo", 0x10ec2, 0x10ec4},
      {"Lo", 0x1123f, 0x11240}, {"Lo", 0x11380, 0x11389}, {"Lo", 0x1138b, 0x1138b}, {"Lo", 0x1138e, 0x1138e},
      {"Lo", 0x11390, 0x113b5}, {"Lo", 0x113b7, 0x113b7}, {"Lo", 0x113d1, 0x113d1}, {"Lo", 0x113d3, 0x113d3},
      {"Lo", 0x11bc0, 0x11be0}, {"Lo", 0x11f02, 0x11f02}, {"Lo", 0x11f04, 0x11f10}, {"Lo", 0x11f12, 0x11f33},
      {"Lo", 0x1342f, 0x1342f}, {"Lo", 0x13441, 0x13446}, {"Lo", 0x13460, 0x143fa}, {"Lo", 0x16100, 0x1611d},
      {"Lo", 0x16d43, 0x16d6a}, {"Lo", 0x18cff, 0x18cff}, {"Lo", 0x1b132, 0x1b132}, {"Lo", 0x1b155, 0x1b155},
      {"Lo", 0x1e4d0, 0x1e4ea}, {"Lo", 0x1e5d0, 0x1e5ed}, {"Lo", 0x1e5f0, 0x1e5f0}, {"Lo", 0x2b739, 0x2b739},
      {"Lo", 0x2ebf0, 0x2ee5d}, {"Lo", 0x31350, 0x323af}, {"Mn", 0x897, 0x897},     {"Mn", 0xece, 0xece},
      {"Mn", 0x10d69, 0x10d6d}, {"Mn", 0x10efc, 0x10eff}, {"Mn", 0x11241, 0x11241}, {"Mn", 0x113bb, 0x113c0},
      {"Mn", 0x113ce, 0x113ce}, {"Mn", 0x113d0, 0x113d0}, {"Mn", 0x113d2, 0x113d2}, {"Mn", 0x113e1, 0x113e2},
      {"Mn", 0x11f00, 0x11f01}, {"Mn", 0x11f36, 0x11f3a}, {"Mn", 0x11f40, 0x11f40}, {"Mn", 0x11f42, 0x11f42},
      {"Mn", 0x11f5a, 0x11f5a}, {"Mn", 0x13440, 0x13440}, {"Mn", 0x13447, 0x13455}, {"Mn", 0x1611e, 0x16129},
      {"Mn", 0x1612d, 0x1612f}, {"Mn", 0x1e08f, 0x1e08f}, {"Mn", 0x1e4ec, 0x1e4ef}, {"Mn", 0x1e5ee, 0x1e5ef},
      {"Mc", 0xcf3, 0xcf3},     {"Mc", 0x113b8, 0x113ba}, {"Mc", 0x113c2, 0x113c2}, {"Mc", 0x113c5, 0x113c5},
      {"Mc", 0x113c7, 0x113ca}, {"Mc", 0x113cc, 0x113cd}, {"Mc", 0x113cf, 0x113cf}, {"Mc", 0x1171e, 0x1171e},
      {"Mc", 0x11f03, 0x11f03}, {"Mc", 0x11f34, 0x11f35}, {"Mc", 0x11f3e, 0x11f3f}, {"Mc", 0x11f41, 0x11f41},
      {"Mc", 0x1612a, 0x1612c}, {"Nd", 0x10d40, 0x10d49}, {"Nd", 0x116d0, 0x116e3}, {"Nd", 0x11bf0, 0x11bf9},
      {"Nd", 0x11f50, 0x11f59}, {"Nd", 0x16130, 0x16139}, {"Nd", 0x16d70, 0x16d79}, {"Nd", 0x1ccf0, 0x1ccf9},
      {"Nd", 0x1e4f0, 0x1e4f9}, {"Nd", 0x1e5f1, 0x1e5fa}, {"No", 0x1d2c0, 0x1d2d3}, {"Pd", 0x10d6e, 0x10d6e},
      {"Po", 0x1b4e, 0x1b4f},   {"Po", 0x1b7f, 0x1b7f},   {"Po", 0x113d4, 0x113d5}, {"Po", 0x113d7, 0x113d8},
      {"Po", 0x11b00, 0x11b09}, {"Po", 0x11be1, 0x11be1}, {"Po", 0x11f43, 0x11f4f}, {"Po", 0x16d6d, 0x16d6f},
      {"Po", 0x1e5ff, 0x1e5ff}, {"Sm", 0x10d8e, 0x10d8f}, {"So", 0x2427, 0x2429},   {"So", 0x2ffc, 0x2fff},
      {"So", 0x31e4, 0x31e5},   {"So", 0x31ef, 0x31ef},   {"So", 0x1cc00, 0x1ccef}, {"So", 0x1cd00, 0x1ceb3},
      {"So", 0x1f6dc, 0x1f6dc}, {"So", 0x1f774, 0x1f776}, {"So", 0x1f77b, 0x1f77f}, {"So", 0x1f7d9, 0x1f7d9},
      {"So", 0x1f8b2, 0x1f8bb}, {"So", 0x1f8c0, 0x1f8c1}, {"So", 0x1fa75, 0x1fa77}, {"So", 0x1fa87, 0x1fa89},
      {"So", 0x1fa8f, 0x1fa8f}, {"So", 0x1faad, 0x1faaf}, {"So", 0x1fabb, 0x1fabf}, {"So", 0x1fac6, 0x1fac6},
      {"So", 0x1face, 0x1facf}, {"So", 0x1fada, 0x1fadc}, {"So", 0x1fadf, 0x1fadf}, {"So", 0x1fae8, 0x1fae9},
      {"So", 0x1faf7, 0x1faf8}, {"So", 0x1fbcb, 0x1fbef},
  };
  return {std::begin(kRows), std::end(kRows)};
}

}  // namespace hotswap::tokenizers
