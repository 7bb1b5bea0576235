// Help for an argument that may be a word or a flag, "--model,model": CLI11 writes both with REQUIRED and all of the
// text.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "hotswap/base/error.h"

namespace hotswap {

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    if (!option->get_positional() || !option->nonpositional()) return Formatter::make_option(option, is_positional);
    const std::string word = option->get_name(true, false), flag = option->get_name(false, true);
    const std::string type = " " + get_label(option->get_type_name());
    return is_positional ? row(word + type + (option->get_required() ? " " + get_label("REQUIRED") : ""),
                               cat(option->get_description(), "; as a word, or by ", flag))
                         : row(flag + type, cat("Instead of the word `", word, "`"));
  }

 private:
  std::string row(const std::string& name, const std::string& text) const {
    std::ostringstream out;
    CLI::detail::format_help(out, name, text, get_column_width());
    return out.str();
  }
};

}  // namespace hotswap
