// TOML becomes the tree that JSON becomes; json.h's accessors read both.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hotswap {

inline constexpr int kMaxNesting = 256;  // of JSON and of TOML: parsers and destructors recurse

// Tables by their sorted keys; dates and times are strings. `where` names the document in errors. Error where the text
// is no TOML, is over 1 MiB, or is nested deeper than kMaxNesting.
nlohmann::ordered_json parse_toml(std::string_view text, const std::string& where);

}  // namespace hotswap
