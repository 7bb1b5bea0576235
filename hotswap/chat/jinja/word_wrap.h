// Lines of words as Python's textwrap.wrap makes them, with white space neither expanded nor replaced.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hotswap::jinja {

struct WrapStyle {
  size_t width = 79;  // characters of a line, 1 or more
  bool break_long_words = true, break_on_hyphens = true;
};

std::vector<std::u32string> wrapped(std::u32string_view line, const WrapStyle& style);

}  // namespace hotswap::jinja
