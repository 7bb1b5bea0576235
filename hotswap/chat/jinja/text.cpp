#include "hotswap/chat/jinja/text.h"

#include <utf8proc.h>

#include "hotswap/chat/jinja/limits.h"

namespace hotswap::jinja {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool in_set(char32_t c, const std::u32string* set) {
  return set == nullptr ? is_space(c) : set->find(c) != std::u32string::npos;
}

}  // namespace

std::u32string decode(std::string_view utf8) {
  std::u32string out;
  out.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    const auto [value, size] = tokenizers::code_point_at(utf8, at);
    out += value;
    at += size;
  }
  return out;
}

std::string encode(std::u32string_view characters) {
  std::string out;
  for (const char32_t c : characters) tokenizers::append_utf8(out, c);
  return out;
}

size_t count_characters(std::string_view utf8) {
  size_t count = 0;
  for (const char byte : utf8) count += !tokenizers::is_continuation(byte);
  return count;
}

bool is_space(char32_t c) { return tokenizers::is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_letter(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_identifier(std::string_view utf8) {
  const auto characters = decode(utf8);
  if (characters.empty()) return false;
  const auto starts = [](char32_t c) { return c == '_' || is_letter(c) || category(c) == UTF8PROC_CATEGORY_NL; };
  const auto goes_on = [&](char32_t c) {
    const auto kind = category(c);
    return starts(c) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
           kind == UTF8PROC_CATEGORY_PC || c == 0xB7;
  };
  if (!starts(characters[0])) return false;
  for (const char32_t c : characters) {
    if (!goes_on(c)) return false;
  }
  return true;
}

std::string_view strip_left(std::string_view utf8, const std::u32string* set) {
  size_t at = 0;
  while (at < utf8.size()) {
    const auto [value, size] = tokenizers::code_point_at(utf8, at);
    if (!in_set(value, set)) break;
    at += size;
  }
  return utf8.substr(at);
}

std::string_view strip_right(std::string_view utf8, const std::u32string* set) {
  while (!utf8.empty()) {
    size_t at = utf8.size() - 1;
    while (tokenizers::is_continuation(utf8[at])) --at;
    if (!in_set(tokenizers::code_point_at(utf8, at).value, set)) break;
    utf8 = utf8.substr(0, at);
  }
  return utf8;
}

std::vector<std::string> split_lines(std::string_view utf8, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < utf8.size();) {
    const auto [value, size] = tokenizers::code_point_at(utf8, at);
    if (!line_break(value)) {
      at += size;
      continue;
    }
    const size_t line_end = at;
    at += size;
    if (value == '\r' && at < utf8.size() && utf8[at] == '\n') ++at;
    lines.emplace_back(utf8.substr(begin, (keep_ends ? at : line_end) - begin));
    begin = at;
  }
  if (begin < utf8.size()) lines.emplace_back(utf8.substr(begin));
  return lines;
}

std::string replace_all(std::string_view text, std::string_view old, std::string_view with, int64_t count) {
  std::string out;
  const auto replaced = [&] {
    out += with;
    if (const Budget* budget = Budget::current()) budget->check_string(out.size());
    if (count > 0) --count;
  };
  size_t at = 0;
  if (old.empty()) {  // between all characters
    while (count != 0) {
      replaced();
      if (at >= text.size()) break;
      const size_t size = tokenizers::code_point_at(text, at).size;
      out += text.substr(at, size);
      at += size;
    }
    return out.append(text.substr(std::min(at, text.size())));
  }
  while (count != 0) {
    const size_t found = text.find(old, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    replaced();
    at = found + old.size();
  }
  return out.append(text.substr(at));
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace hotswap::jinja
