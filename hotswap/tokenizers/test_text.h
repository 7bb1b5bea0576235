// Random strings that are hard on tokenizers, for tests.
#pragma once

#include <array>
#include <random>
#include <string>

#include "hotswap/tokenizers/unicode.h"

namespace hotswap {

inline std::string utf8_of(char32_t c) {
  std::string out;
  tokenizers::append_utf8(out, c);
  return out;
}

inline std::string random_text(std::mt19937_64& random) {
  static const std::array kBits = {"the",
                                   " hello",
                                   "HELLO",
                                   " ",
                                   "  ",
                                   "\n",
                                   "\t",
                                   "\r\n",
                                   " \n ",
                                   "'s",
                                   "'LL",
                                   "don't",
                                   "12",
                                   "3456",
                                   "\u00bd",
                                   "\u2163",
                                   "\u0660",
                                   ".",
                                   "...",
                                   "!?",
                                   "<s>",
                                   "</s>",
                                   "<mask>",
                                   " <mask> ",
                                   "<m",
                                   "WORD",
                                   "aWORDb",
                                   "Norm Al",
                                   "norm al",
                                   "lll",
                                   " lll",
                                   "\u00e9",
                                   "e\u0301",
                                   "\u017f",
                                   "'\u017f",
                                   "\u212a",
                                   "\u1e9b\u0323",
                                   "\u0130",
                                   "\ufb01",
                                   "\u2581",
                                   "\u2581\u2581",
                                   "\u3000",
                                   "\u00a0",
                                   "\u180e",
                                   "\u200b",
                                   "\u200d",
                                   "\u1112\u1161\u11ab",
                                   "\ud55c",
                                   "\u65e5\u672c",
                                   "\u0e33",
                                   "\U0001F44B\U0001F3FD",
                                   "\u0344",
                                   "a\u0300\u0323\u0301",
                                   "\u0958",
                                   "\u2126",
                                   "\ufeff",
                                   "\ufffd",
                                   "\u0085",
                                   "\u2028",
                                   "\u01c5",
                                   "\u03a3",
                                   "x_y",
                                   "ab",
                                   "hell"};
  std::string text;
  const size_t count = random() % 12;
  for (size_t i = 0; i < count; ++i) {
    if (random() % 6 != 0) {
      text += kBits[random() % kBits.size()];
      continue;
    }
    const uint64_t limit = std::array<uint64_t, 4>{0x80, 0x800, 0x10000, 0x110000}[random() % 4];
    const auto c = static_cast<char32_t>(random() % limit);
    if (c < 0xD800 || c > 0xDFFF) text += utf8_of(c);
  }
  return text;
}

}  // namespace hotswap
