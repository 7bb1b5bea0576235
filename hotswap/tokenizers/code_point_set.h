// A set of code points: a bit each for those below 0x10000, a binary search for the rest.
#pragma once

#include <algorithm>
#include <bitset>

#include "hotswap/tokenizers/unicode_tables.h"

namespace hotswap::tokenizers {

class CodePointSet {
 public:
  explicit CodePointSet(CodePointRanges ranges) : ranges_(ranges) {
    for (const CodePointRange& range : ranges) {
      for (char32_t c = range.first; c <= range.last && c < kBits; ++c) bits_.set(c);
    }
  }

  bool has(char32_t c) const {
    if (c < kBits) return bits_[c];
    const auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), c,
                         [](char32_t value, const CodePointRange& range) { return value < range.first; });
    return after != ranges_.begin() && c <= std::prev(after)->last;
  }

 private:
  static constexpr char32_t kBits = 0x10000;
  CodePointRanges ranges_;
  std::bitset<kBits> bits_;
};

}  // namespace hotswap::tokenizers
