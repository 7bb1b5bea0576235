// Character classes that the tokenizers library has inside (unicode_tables.cpp is made by make_unicode_tables.py).
#pragma once

#include <span>

namespace hotswap::tokenizers {

struct CodePointRange {
  char32_t first, last;
};
using CodePointRanges = std::span<const CodePointRange>;  // in order

struct ScriptRange {
  char32_t first, last;
  int script;  // 1 and more; characters of no range join every script
};

struct LowercaseRange {
  char32_t first, last;
  int offset;  // from a letter to its lower case
};

CodePointRanges punctuation_ranges();  // P* of Unicode 8.0, and ASCII's symbols
CodePointRanges control_ranges();      // Cc, Cf and Co of Unicode 8.0; \t \n \r are not among them
CodePointRanges nonspacing_ranges();   // Mn of Unicode 8.0
CodePointRanges mark_ranges();         // M*
CodePointRanges joining_ranges();      // of one grapheme with a letter before: Extend, SpacingMark, ZWJ
CodePointRanges combining_ranges();    // combining class other than 0, in Unicode 11
CodePointRanges decomposed_ranges();   // that NFD decomposes, in Unicode 11
CodePointRanges compatible_ranges();   // that NFKD decomposes, in Unicode 11
std::span<const ScriptRange> script_ranges();
std::span<const LowercaseRange> late_lowercase_ranges();  // of letters since Unicode 15

}  // namespace hotswap::tokenizers
