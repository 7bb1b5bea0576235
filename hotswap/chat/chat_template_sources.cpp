#include "hotswap/chat/chat_template_sources.h"

#include "hotswap/base/file.h"
#include "hotswap/base/json.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void read_config_templates(const Json& config, std::map<std::string, std::string>& templates) {
  const auto found = config.find("chat_template");
  if (!found) return;
  if (found->is_string()) {
    templates["default"] = found->as<std::string>();
    return;
  }
  for (const Json& entry : found->elements())
    templates[entry.at<std::string>("name")] = entry.at<std::string>("template");
}

void read_template_files(const fs::path& folder, std::map<std::string, std::string>& templates) {
  if (fs::is_regular_file(folder / "chat_template.jinja"))
    templates["default"] = read_file(folder / "chat_template.jinja");
  if (!fs::is_directory(folder / "additional_chat_templates")) return;
  for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates")) {
    if (entry.path().extension() == ".jinja") templates[entry.path().stem().string()] = read_file(entry.path());
  }
}

}  // namespace

std::map<std::string, std::string> chat_template_sources(const fs::path& folder) {
  std::map<std::string, std::string> templates;
  for (const char* file : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (fs::is_regular_file(folder / file)) read_config_templates(Json::read(folder / file), templates);
  }
  read_template_files(folder, templates);
  return templates;
}

}  // namespace hotswap
