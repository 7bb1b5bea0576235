// Where a text stops being JSON and what could stand there, in words for a person; the parser's own name its functions.
//
//   json_fault(R"({"a": 1,})")   "'}' at byte 9 (line 1, column 9), not a key in double quotes"
//   json_fault("[None]")         "'None' at byte 2 (line 1, column 2), not a value"
#pragma once

#include <string>
#include <string_view>

namespace hotswap {

// "" where the text is JSON (RFC 8259, a byte order mark is skipped). Bytes, lines and columns count from 1; a column
// is a byte. Ends in one pass, without recursion.
std::string json_fault(std::string_view text);

}  // namespace hotswap
