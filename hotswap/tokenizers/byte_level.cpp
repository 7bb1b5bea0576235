#include "hotswap/tokenizers/byte_level.h"

#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, 512> bytes;

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t character = itself ? static_cast<char32_t>(byte) : next++;
      append_utf8(characters[static_cast<size_t>(byte)], character);
      bytes[character] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() { return alphabet().characters; }

int byte_of_character(char32_t c) { return c < 512 ? alphabet().bytes[c] : -1; }

void to_byte_characters(NormalizedString& text) {
  std::string bytes;
  std::vector<Span> origin;
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    // All bytes of a character belong to the whole of it.
    bytes += byte_characters()[static_cast<uint8_t>(text.bytes[i])];
    origin.resize(bytes.size(), text.origin[i]);
  }
  text.bytes = std::move(bytes);
  text.origin = std::move(origin);
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token, at);
    const int byte = byte_of_character(point.value);
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += point.size;
  }
  return bytes;
}

}  // namespace hotswap::tokenizers
