// JSON text as a tree, in one pass and within limits. nlohmann's own parser looks through all keys of an object for
// each further one, so that a body of 2 MB took 19 s; it keeps the last of two equal keys in any case.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

struct JsonLimits {
  int64_t nesting;            // of objects and lists in one another
  bool equal_keys = false;    // the last of equal keys counts, where they are not refused
  bool exact_values = false;  // refuses whole numbers beyond 64 bits, which are rounded, and what is not finite
};

enum class JsonFault : uint8_t { kNone, kSyntax, kNesting, kEqualKeys, kNumber };

struct JsonDocument {
  nlohmann::ordered_json root;
  JsonFault fault = JsonFault::kNone;
  std::string what = {};  // of the fault, in words: "a number beyond 64 bits", "key 'a' twice"
};

JsonDocument read_json(std::string_view text, const JsonLimits& limits);

}  // namespace hotswap
