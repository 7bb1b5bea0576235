// The chat templates of a model's folder as they stand there: text, not looked into.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace hotswap {

// By name, "default" where there is only one: chat_template.jinja, additional_chat_templates/NAME.jinja, or
// "chat_template" of tokenizer_config.json. Empty where the folder has none.
std::map<std::string, std::string> chat_template_sources(const std::filesystem::path& folder);

}  // namespace hotswap
