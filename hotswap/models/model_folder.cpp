#include "hotswap/models/model_folder.h"

#include <algorithm>

#include "hotswap/hub/hub.h"

namespace hotswap {
namespace {

// "org/name"; one part alone is more likely a mistyped folder, and ./org/name, /org/name, ~/name are paths.
bool may_be_repository(const std::string& name) {
  return std::count(name.begin(), name.end(), '/') == 1 && name.front() != '/' && name.front() != '.' &&
         name.front() != '~' && name.back() != '/' && std::filesystem::path(name).extension() != ".gguf";
}

std::filesystem::path fetched(const std::filesystem::path& name, const std::string& revision,
                              const std::vector<std::string>& wanted) {
  if (std::filesystem::exists(name) || !may_be_repository(name.string())) return name;
  Hub hub(HubOptions::from_env());
  return hub.snapshot({RepoType::kModel, name.string()}, revision, {.allow = wanted});
}

const std::vector<std::string> kTokenizerFiles = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                                  "chat_template.jinja", "additional_chat_templates/*.jinja"};

}  // namespace

std::filesystem::path model_folder(const std::filesystem::path& name, const std::string& revision,
                                   const std::optional<std::string>& gguf_file) {
  std::vector<std::string> wanted = kTokenizerFiles;
  wanted.insert(wanted.end(), {"config.json", "generation_config.json"});
  if (gguf_file) {
    wanted.push_back(*gguf_file);
  } else {
    wanted.insert(wanted.end(), {"model.safetensors", "model-*.safetensors", "model.safetensors.index.json",
                                 "adapter_config.json"});  // which is refused
  }
  return fetched(name, revision, wanted);
}

std::filesystem::path tokenizer_folder(const std::filesystem::path& name, const std::string& revision,
                                       const std::optional<std::string>& gguf_file) {
  std::vector<std::string> wanted = kTokenizerFiles;
  if (gguf_file) wanted.push_back(*gguf_file);
  return fetched(name, revision, wanted);
}

}  // namespace hotswap
