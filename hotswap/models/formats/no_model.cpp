#include "hotswap/models/formats/no_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

bool has_file(const fs::path& folder, const char* file) { return fs::is_regular_file(folder / file); }
bool is_adapter(const fs::path& folder) { return has_file(folder, "adapter_config.json"); }
bool is_model(const fs::path& folder) { return has_file(folder, "config.json"); }

[[noreturn]] void refuse_path(const fs::path& path, const std::string& what, std::string next) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a model: a folder with config.json and weights, a .gguf file, or org/name on the Hub",
               .got = cat(path.string(), ", ", what),
               .next = std::move(next)});
}

Names entries_of(const fs::path& folder, bool folders) {
  Names names;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    if (folders ? entry.is_directory() : entry.is_regular_file()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Names ending(const Names& names, std::initializer_list<const char*> ends) {
  Names found;
  for (const std::string& name : names) {
    const std::string end = fs::path(name).extension().string();
    if (std::find(ends.begin(), ends.end(), end) != ends.end()) found.push_back(name);
  }
  return found;
}

std::string some(Names names) {
  constexpr size_t kShown = 8;
  const size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  return cat(join(names), more > 0 ? cat(" and ", more, " more") : std::string());
}

// A broken file must not hide what the folder is.
std::string text_in(const fs::path& file, const char* key) try {
  return Json::read(file).get<std::string>(key, "");
} catch (const Error&) {
  return "";
}

void refuse_adapter_folder(const fs::path& folder) {
  if (!is_adapter(folder)) return;
  const fs::path config = folder / "adapter_config.json";
  const std::string base = text_in(config, "base_model_name_or_path"), type = text_in(config, "peft_type");
  const std::string kind = type == "LORA" ? "LoRA " : type.empty() ? "" : type + " ";
  refuse_path(
      folder,
      cat("the ", kind, "adapter of ", base.empty() ? "a model that it does not name" : base, " (adapter_config.json)"),
      cat("give its base as the model and this folder as its adapter: ", base.empty() ? "MODEL" : base, " --adapter ",
          folder.string()));
}

bool is_package(const fs::path& folder) {
  if (has_file(folder, "build.toml") || has_file(folder, "metadata.json") || has_file(folder, "layers.json"))
    return true;
  const Names variants = entries_of(folder / "build", true);
  return std::any_of(variants.begin(), variants.end(),
                     [&](const std::string& variant) { return has_file(folder / "build" / variant, "metadata.json"); });
}

void refuse_ggufs(const fs::path& folder, const Names& files) {
  Names models;
  for (const std::string& name : ending(files, {".gguf"})) {
    const bool later_part = name.find("-of-") != name.npos && name.find("-00001-of-") == name.npos;
    if (!later_part && !name.starts_with("mmproj")) models.push_back(name);
  }
  if (models.empty()) return;
  if (models.size() == 1)
    refuse_path(folder, cat("a folder of the GGUF file ", models[0]), cat("give ", (folder / models[0]).string()));
  refuse_path(folder, cat("a folder of ", models.size(), " GGUF files: ", some(models)),
              cat("give one of them: ", (folder / models[0]).string(), ", or this folder and --gguf-file ", models[0]));
}

// The steps of checkpoint-500; -1 of another name.
long step_of(const std::string& name) {
  const std::string_view prefix = "checkpoint-";
  if (!name.starts_with(prefix)) return -1;
  const std::string steps = name.substr(prefix.size());
  const bool digits = !steps.empty() && steps.size() < 10 && steps.find_first_not_of("0123456789") == steps.npos;
  return digits ? std::stol(steps) : -1;
}

// What a training run wrote, a cache of the Hub, or simply several models.
void refuse_parent(const fs::path& folder) {
  const fs::path parent = fs::is_directory(folder / "snapshots") ? folder / "snapshots" : folder;
  Names inner;
  for (const std::string& name : entries_of(parent, true)) {
    if (is_model(parent / name) || is_adapter(parent / name)) inner.push_back(name);
  }
  if (inner.empty()) return;
  std::stable_sort(inner.begin(), inner.end(),
                   [](const std::string& a, const std::string& b) { return step_of(a) < step_of(b); });
  const fs::path last = parent / inner.back();
  const bool adapters = !is_model(last);
  const bool by_step = step_of(inner.back()) >= 0;
  const std::string one = inner.size() == 1 ? "give "
                          : by_step         ? "give one of them; the newest is "
                                            : "give one of them, as ";
  refuse_path(folder, cat("the parent of ", adapters ? "adapters: " : "models: ", some(inner)),
              adapters
                  ? cat("give the base as the model and one of these as its adapter: MODEL --adapter ", last.string())
                  : cat(one, last.string()));
}

void refuse_dataset(const fs::path& folder, const Names& files) {
  Names found = ending(files, {".parquet", ".arrow", ".jsonl", ".csv"});
  for (const char* part : {"data", "train"}) {
    for (const std::string& name : ending(entries_of(folder / part, false), {".parquet", ".arrow", ".jsonl", ".csv"}))
      found.push_back(cat(part, "/", name));
  }
  for (const char* name : {"dataset_info.json", "dataset_dict.json"}) {
    if (has_file(folder, name)) found.emplace_back(name);
  }
  if (!found.empty())
    refuse_path(folder, cat("a dataset: ", some(found)), "give a model; its text goes to --text or --data as a file");
}

void refuse_folder(const fs::path& folder) {
  refuse_adapter_folder(folder);
  if (is_model(folder)) return;
  if (is_package(folder)) {
    refuse_path(
        folder, "a kernel package",
        cat("give the model whose layers it computes, and the package beside it: MODEL --use-local-kernel --kernel "
            "LAYER=",
            folder.string(), ":LAYER"));
  }
  const Names files = entries_of(folder, false);
  refuse_ggufs(folder, files);
  if (has_file(folder, "model_index.json"))
    refuse_path(folder, "a pipeline of diffusers", "give a model that generates text; this host runs no other");
  refuse_parent(folder);
  refuse_dataset(folder, files);
  const Names weights = ending(files, {".safetensors", ".bin", ".pt", ".pth"});
  if (!weights.empty())
    refuse_path(folder, cat("weights without config.json: ", some(weights)),
                "copy config.json, tokenizer.json and tokenizer_config.json of their model there");
}

}  // namespace

void refuse_no_model(const fs::path& path) {
  if (fs::is_directory(path)) return refuse_folder(path);
  if (!fs::is_regular_file(path) || path.extension() == ".gguf") return;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (is_model(folder) || is_adapter(folder))
    refuse_path(path, "a file of a model's folder", cat("give the folder: ", folder.string()));
}

}  // namespace hotswap
