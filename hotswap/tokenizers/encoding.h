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
  bool ids_only = false;                             // tokens and offsets were not asked for and are empty
};

}  // namespace hotswap
