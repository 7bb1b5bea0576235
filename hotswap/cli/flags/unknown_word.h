// What a person mistyped on a command line, and what was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace hotswap {

// After a parse that failed: the first flag or verb of the line that no parsed verb knows, with the nearest known one;
// none where every word is known. CLI11 checks what is required first, and so hides the word that was mistyped.
std::optional<std::string> unknown_word(const CLI::App& app);

}  // namespace hotswap
