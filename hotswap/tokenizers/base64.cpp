#include "hotswap/tokenizers/base64.h"

#include <cstdint>

#include "hotswap/base/error.h"

namespace hotswap::tokenizers {
namespace {

int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::string decode_base64(std::string_view text, const std::string& where) {
  const auto fail = [&](const std::string& got) {
    throw Error(
        {.kind = ErrorKind::kCorrupt, .wanted = cat("base64 at ", where), .got = got, .next = "fetch the file again"});
  };
  if (text.size() % 4 != 0) fail(cat(text.size(), " characters, which is no multiple of 4"));
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const int digit = padded ? 0 : digit_of(text[i]);
    if (digit < 0) fail(cat("byte ", static_cast<int>(static_cast<uint8_t>(text[i])), " at ", i));
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> shift & 0xFF);
    bits = 0;
  }
  for (size_t i = 0; i < padding; ++i) {
    if (bytes.back() != '\0') fail("bits after the last byte");
    bytes.pop_back();
  }
  return bytes;
}

}  // namespace hotswap::tokenizers
