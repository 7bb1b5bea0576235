// What was probably meant by a mistyped name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

// The nearest of the names, where a slip of the fingers explains the difference.
std::optional<std::string> nearest_name(std::string_view word, const std::vector<std::string>& names);

// The next step of an error that has listed the names: "did you mean rope?", or to use one of them.
std::string nearest_name_hint(std::string_view word, const std::vector<std::string>& names);

}  // namespace hotswap
