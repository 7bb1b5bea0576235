// download: a repository's files into the cache, and whether what was promised is there.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/hub/hub.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

struct DownloadFlags {
  std::string model, type = "model", revision = "main", gguf_file;
  std::vector<std::string> include, exclude;
};

const std::map<std::string, RepoType> kDownloadTypes = {
    {"model", RepoType::kModel}, {"dataset", RepoType::kDataset}, {"space", RepoType::kSpace}};

std::string some_of(const std::vector<TreeEntry>& files) {
  std::vector<std::string> names;
  for (const TreeEntry& file : files) {
    if (names.size() == 20) {
      names.push_back(cat("and ", files.size() - 20, " more"));
      break;
    }
    names.push_back(file.path);
  }
  return names.empty() ? "no files" : join(names);
}

// What a model's folder still lacks of its weights: names of files; none where they are whole.
std::vector<std::string> lacking_weights(const fs::path& folder, const std::string& gguf_file) {
  const auto is_there = [&](const std::string& name) { return fs::is_regular_file(folder / name); };
  if (!gguf_file.empty()) return is_there(gguf_file) ? std::vector<std::string>{} : std::vector{gguf_file};
  if (is_there("model.safetensors")) return {};
  const std::string index = "model.safetensors.index.json";
  if (!is_there(index)) return {"model.safetensors or " + index};
  std::set<std::string> lacking;
  const auto root = nlohmann::json::parse(read_file(folder / index), nullptr, false);
  if (!root.is_object() || !root.contains("weight_map")) return {"a weight_map in " + index};
  for (const auto& [tensor, shard] : root["weight_map"].items()) {
    if (shard.is_string() && !is_there(shard)) lacking.insert(shard);
  }
  return {lacking.begin(), lacking.end()};
}

void require(const DownloadFlags& flags, const std::vector<std::string>& lacking, const std::string& has,
             const char* next) {
  if (lacking.empty()) return;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat(join(lacking), " in ", flags.model, "@", flags.revision),
               .got = has,
               .next = next});
}

// What this host reads of a model.
fs::path download_model(const DownloadFlags& flags) {
  const auto gguf = flags.gguf_file.empty() ? std::nullopt : std::optional(flags.gguf_file);
  fs::path folder = model_folder(flags.model, flags.revision, gguf);
  if (fs::is_regular_file(folder)) return folder;  // org/name:Q4_K_M
  if (lacking_weights(folder, flags.gguf_file).empty() || fs::exists(flags.model)) return folder;
  Hub hub(HubOptions::from_env());
  const Repo repo{RepoType::kModel, flags.model};
  check_repo(repo);
  const auto files = hub.tree(repo, flags.revision, /*anew=*/!hub.offline());  // the known list may lack what is there
  folder = model_folder(flags.model, flags.revision, gguf);
  require(flags, lacking_weights(folder, flags.gguf_file), some_of(files),
          "name a GGUF file with --gguf-file; for other files, which this program does not read, use --include");
  return folder;
}

// The files that --include and --exclude choose, of any type of repository.
fs::path download_files(const DownloadFlags& flags) {
  Hub hub(HubOptions::from_env());
  const Repo repo{kDownloadTypes.at(flags.type), flags.model};
  check_repo(repo);
  const auto lacking = [&](const std::vector<TreeEntry>& files) {
    std::vector<std::string> without;
    for (const std::string& pattern : flags.include.empty() ? std::vector<std::string>{"*"} : flags.include) {
      const bool chosen = std::any_of(files.begin(), files.end(), [&](const TreeEntry& file) {
        return is_selected(file.path, {pattern}, flags.exclude);
      });
      if (!chosen) without.push_back(cat("a file that matches '", pattern, "'"));
    }
    return without;
  };
  auto files = hub.tree(repo, flags.revision);
  if (!lacking(files).empty() && !hub.offline()) files = hub.tree(repo, flags.revision, /*anew=*/true);
  require(flags, lacking(files), some_of(files), "correct --include and --exclude");
  return hub.snapshot(repo, flags.revision, {.allow = flags.include, .ignore = flags.exclude});
}

}  // namespace

void add_download(CLI::App& app) {
  auto* verb = app.add_subcommand("download", "Download a repository of the Hub and print its folder");
  verb->alias("pull");
  auto flags = std::make_shared<DownloadFlags>();
  verb->add_option("--model,model", flags->model,
                   "org/name; of a model: configuration, tokenizer and weights as safetensors")
      ->required();
  verb->add_option("--type", flags->type, "model, dataset or space; of all but models every file")
      ->check(CLI::IsMember({"model", "dataset", "space"}))
      ->capture_default_str();
  verb->add_option("--revision", flags->revision, "Branch, tag or commit")->capture_default_str();
  auto* gguf = verb->add_option("--gguf-file", flags->gguf_file, "This file instead of the safetensors");
  verb->add_option("--include", flags->include, "Only files that match, as '*.json'; may be repeated")->excludes(gguf);
  verb->add_option("--exclude", flags->exclude, "No files that match; may be repeated")->excludes(gguf);
  verb->callback([flags] {
    const bool chosen = !flags->include.empty() || !flags->exclude.empty() || flags->type != "model";
    if (chosen && !flags->gguf_file.empty()) throw usage_error("--gguf-file goes with models alone");
    std::printf("%s\n", (chosen ? download_files(*flags) : download_model(*flags)).c_str());
  });
}

}  // namespace hotswap
