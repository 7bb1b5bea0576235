// The byte-level alphabet: one printable character for each byte, as GPT-2 has it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hotswap/tokenizers/pre_tokenized_string.h"

namespace hotswap::tokenizers {

// The character that stands for the byte, as UTF-8.
const std::array<std::string, 256>& byte_characters();

// The byte that the character stands for, -1 when it is none of the alphabet.
int byte_of_character(char32_t c);

// "Ġab" -> " ab"; nothing when a character is not of the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

// Each byte becomes its character.
void to_byte_characters(NormalizedString& text);

}  // namespace hotswap::tokenizers
