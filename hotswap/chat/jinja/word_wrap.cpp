#include "hotswap/chat/jinja/word_wrap.h"

#include <algorithm>

#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

using WideText = std::u32string_view;

bool is_blank(char32_t c) { return WideText(U"\t\n\v\f\r ").find(c) != WideText::npos; }
bool is_letter_of_word(char32_t c) { return c == U'_' || is_letter(c) || is_numeric(c); }
bool is_letter_or_mark(char32_t c) { return is_letter_of_word(c) && !is_decimal(c); }
bool is_word_or_punctuation(char32_t c) {
  return is_letter_of_word(c) || WideText(U"!\"'&.,?").find(c) != WideText::npos;
}
bool is_white(WideText text) { return std::all_of(text.begin(), text.end(), is_space); }

// Where a line may be broken: between two chunks.
class Chunks {
 public:
  explicit Chunks(WideText text) : text_(text) {}

  std::vector<WideText> all(bool on_hyphens) const {
    std::vector<WideText> out;
    for (size_t at = 0, end; at < text_.size(); at = end) {
      end = is_blank(text_[at]) ? run(at, [](char32_t c) { return is_blank(c); })
            : on_hyphens        ? end_of_word(at)
                                : run(at, [](char32_t c) { return !is_blank(c); });
      out.push_back(text_.substr(at, end - at));
    }
    return out;
  }

 private:
  template <class Is>
  size_t run(size_t at, const Is& is) const {
    while (at < text_.size() && is(text_[at])) ++at;
    return at;
  }
  bool has(size_t at, bool (*is)(char32_t)) const { return at < text_.size() && is(text_[at]); }
  bool has(size_t at, char32_t c) const { return at < text_.size() && text_[at] == c; }

  // The end of two dashes or more between words, which begin at `at`; `at` where there are none.
  size_t end_of_dash(size_t at) const {
    if (at == 0 || !has(at, U'-') || !is_word_or_punctuation(text_[at - 1])) return at;
    const size_t end = run(at, [](char32_t c) { return c == U'-'; });
    return end - at >= 2 && has(end, is_letter_of_word) ? end : at;
  }

  // A hyphen within a word, which may end a line: after two letters, or a letter, a hyphen and one more.
  bool breaks_at(size_t at) const {
    if (!has(at, U'-')) return false;
    const bool after =
        (at >= 2 && is_letter_or_mark(text_[at - 2]) && is_letter_or_mark(text_[at - 1])) ||
        (at >= 3 && is_letter_or_mark(text_[at - 3]) && text_[at - 2] == U'-' && is_word_or_punctuation(text_[at - 1]));
    return after && has(at + 1, is_letter_or_mark) && has(at + 2 + (has(at + 2, U'-') ? 1 : 0), is_letter_or_mark);
  }

  size_t end_of_word(size_t begin) const {
    if (const size_t end = end_of_dash(begin); end > begin) return end;
    for (size_t at = begin + 1; at < text_.size(); ++at) {
      if (breaks_at(at)) return at + 1;
      if (is_blank(text_[at]) || end_of_dash(at) > at) return at;
    }
    return text_.size();
  }

  WideText text_;
};

// How much of a chunk that is longer than a line goes into what is left of this one.
size_t part_of(WideText chunk, size_t left, bool on_hyphens) {
  if (!on_hyphens || chunk.size() <= left || left == 0) return left;
  const size_t hyphen = chunk.rfind(U'-', left - 1);
  if (hyphen == WideText::npos || hyphen == 0) return left;
  return chunk.substr(0, hyphen).find_first_not_of(U'-') != WideText::npos ? hyphen + 1 : left;
}

}  // namespace

std::vector<std::u32string> wrapped(WideText line, const WrapStyle& style) {
  std::vector<WideText> chunks = Chunks(line).all(style.break_on_hyphens);
  std::reverse(chunks.begin(), chunks.end());
  std::vector<std::u32string> lines;
  while (!chunks.empty()) {
    std::vector<WideText> current;
    size_t size = 0;
    if (is_white(chunks.back()) && !lines.empty()) chunks.pop_back();
    while (!chunks.empty() && size + chunks.back().size() <= style.width) {
      size += chunks.back().size();
      current.push_back(chunks.back());
      chunks.pop_back();
    }
    if (!chunks.empty() && chunks.back().size() > style.width) {
      if (style.break_long_words) {
        const size_t part = part_of(chunks.back(), style.width - size, style.break_on_hyphens);
        current.push_back(chunks.back().substr(0, part));
        chunks.back().remove_prefix(part);
      } else if (current.empty()) {
        current.push_back(chunks.back());
        chunks.pop_back();
      }
    }
    if (!current.empty() && is_white(current.back())) current.pop_back();
    if (current.empty()) continue;
    std::u32string& made = lines.emplace_back();
    for (const WideText chunk : current) made += chunk;
  }
  return lines;
}

}  // namespace hotswap::jinja
