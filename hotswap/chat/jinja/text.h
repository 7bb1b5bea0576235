// What Python's str knows of characters. All texts are valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hotswap/tokenizers/unicode.h"

namespace hotswap::jinja {

std::u32string decode(std::string_view utf8);
std::string encode(std::u32string_view characters);
size_t count_characters(std::string_view utf8);

bool is_space(char32_t c);      // str.isspace(): White_Space, and the separators U+001C to U+001F
bool is_printable(char32_t c);  // str.isprintable()
bool is_letter(char32_t c);     // L*
bool is_decimal(char32_t c);    // Nd
bool is_digit(char32_t c);      // Numeric_Type Decimal or Digit
bool is_numeric(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_identifier(std::string_view utf8);

// Full case mappings: one character may become several.
std::u32string upper(std::u32string_view text);
std::u32string lower(std::u32string_view text);  // with the final sigma
std::u32string title(std::u32string_view text);
std::u32string capitalize(std::u32string_view text);
std::u32string swap_case(std::u32string_view text);
std::u32string case_fold(std::u32string_view text);
std::string upper(std::string_view utf8);
std::string lower(std::string_view utf8);

// Without white space, or the characters of `set`, on either side.
std::string_view strip_left(std::string_view utf8, const std::u32string* set = nullptr);
std::string_view strip_right(std::string_view utf8, const std::u32string* set = nullptr);

std::vector<std::string> split_lines(std::string_view utf8, bool keep_ends = false);
std::string replace_all(std::string_view text, std::string_view old, std::string_view with, int64_t count = -1);
std::string escape_html(std::string_view text);

}  // namespace hotswap::jinja
