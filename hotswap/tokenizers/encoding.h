// What a text becomes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hotswap {

struct Encoding {
  std::vector<int64_t> ids;
  std::vector<int64_t> type_ids;                     // 0: the first text, 1: the second, or what the template says
  std::vector<std::string> tokens;                   // as the vocabulary spells them
  std::vector<std::pair<int64_t, int64_t>> offsets;  // [begin, end) in characters (code points) of the text
  std::vector<int64_t> attention_mask;               // 0 for padding, else 1; empty where no padding was requested
  std::vector<Encoding> overflowing;                 // what truncation cut off, where it was to be kept
  bool ids_only = false;                             // tokens and offsets were not asked for and are empty
};

}  // namespace hotswap
