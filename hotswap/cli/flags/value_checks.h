// Checks of a flag's number. CLI11's own take inf and nan or print DBL_MAX.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace hotswap {

inline CLI::Validator value_check(const char* name, bool zero_too) {
  return {[zero_too](std::string& text) {
            double value = 0;
            const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
            if (is_number && (value > 0 || (zero_too && value == 0))) return std::string();
            return std::string("expected a number ") + (zero_too ? "of 0 or more" : "above 0") + "; got " + text;
          },
          name};
}

inline CLI::Validator above_zero() { return value_check("POSITIVE", false); }
inline CLI::Validator zero_or_more() { return value_check("NONNEGATIVE", true); }

}  // namespace hotswap
