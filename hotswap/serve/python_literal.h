// A value as Python writes it, in a call that a model wrote: texts in either quotes, integers, floats, True, False,
// None, lists, tuples, and dicts with texts as keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hotswap::serve {

// As JSON; none where it is no such value, or nested more than 64 deep.
std::optional<std::string> json_of_python(std::string_view text);

}  // namespace hotswap::serve
