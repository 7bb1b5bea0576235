// A text from outside for what(), which is a C string: a NUL in it would hide what follows.
#pragma once

#include <algorithm>
#include <string>

namespace hotswap {

inline std::string without_nul(std::string text) {
  std::replace(text.begin(), text.end(), '\0', '?');
  return text;
}

}  // namespace hotswap
