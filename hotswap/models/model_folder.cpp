#include "hotswap/models/model_folder.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/hub.h"
#include "hotswap/models/gguf_choice.h"

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

std::vector<std::string> files_of_folder(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(std::filesystem::relative(entry.path(), folder).string());
  }
  return files;
}

// The file of "org/name:Q4_K_M" or "folder:Q4_K_M"; nullopt of a name without such an end.
std::optional<std::filesystem::path> file_of_tag(const std::filesystem::path& name, const std::string& revision,
                                                 const std::optional<std::string>& gguf_file) {
  const auto tagged = tagged_name(name.string());
  if (!tagged || std::filesystem::exists(name)) return std::nullopt;
  const bool is_folder = std::filesystem::is_directory(tagged->name);
  if (!is_folder && !may_be_repository(tagged->name)) return std::nullopt;
  if (gguf_file) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("one of: ", name.string(), ", or ", tagged->name, " and a gguf_file (--gguf-file)"),
                 .got = cat("both, with ", *gguf_file),
                 .next = "leave one out"});
  }
  if (is_folder)
    return tagged->name / std::filesystem::path(gguf_of_tag(files_of_folder(tagged->name), tagged->tag, tagged->name));
  Hub hub(HubOptions::from_env());
  const Repo repo{RepoType::kModel, tagged->name};
  std::vector<std::string> files;
  for (const TreeEntry& entry : hub.tree(repo, revision)) files.push_back(entry.path);
  const std::string file = gguf_of_tag(files, tagged->tag, cat(tagged->name, "@", revision));
  return hub.snapshot(repo, revision, {.allow = {with_all_parts(file)}}) / file;
}

const std::vector<std::string> kTokenizerFiles = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                                  "chat_template.jinja", "additional_chat_templates/*.jinja"};

}  // namespace

std::filesystem::path model_folder(const std::filesystem::path& name, const std::string& revision,
                                   const std::optional<std::string>& gguf_file) {
  if (const auto file = file_of_tag(name, revision, gguf_file)) return *file;
  std::vector<std::string> wanted = kTokenizerFiles;
  wanted.insert(wanted.end(), {"config.json", "generation_config.json"});
  if (gguf_file) {
    wanted.push_back(with_all_parts(*gguf_file));
  } else {
    wanted.insert(wanted.end(), {"model.safetensors", "model-*.safetensors", "model.safetensors.index.json",
                                 "adapter_config.json"});  // which is refused
  }
  return fetched(name, revision, wanted);
}

std::filesystem::path adapter_folder(const std::filesystem::path& name, const std::string& revision) {
  return fetched(name, revision,
                 {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"});
}

std::filesystem::path tokenizer_folder(const std::filesystem::path& name, const std::string& revision,
                                       const std::optional<std::string>& gguf_file) {
  if (const auto file = file_of_tag(name, revision, gguf_file)) return *file;
  std::vector<std::string> wanted = kTokenizerFiles;
  if (gguf_file) wanted.push_back(with_all_parts(*gguf_file));
  return fetched(name, revision, wanted);
}

}  // namespace hotswap
