#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace hotswap {

// A line that parses but makes no sense: message and usage hint on stderr, exit 2.
inline CLI::ValidationError usage_error(const std::string& message) { return CLI::ValidationError(message); }

}  // namespace hotswap
