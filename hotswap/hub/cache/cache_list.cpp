// What lies in a cache (cache_management.h).
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/cache/cache_management.h"
#include "hotswap/hub/cache/cache_names_impl.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

std::optional<Repo> repo_of_folder(const std::string& name) {
  for (const RepoType type : {RepoType::kModel, RepoType::kDataset, RepoType::kSpace, RepoType::kKernel}) {
    const std::string prefix = std::string(plural(type)) + "--";
    if (!name.starts_with(prefix)) continue;
    std::string id = name.substr(prefix.size());
    if (const size_t cut = id.find("--"); cut != id.npos) id.replace(cut, 2, "/");
    try {
      const Repo repo{type, id};
      check_repo(repo);
      return repo;
    } catch (const Error&) {
      return std::nullopt;  // somebody else's folder: huggingface_hub makes no such name
    }
  }
  return std::nullopt;
}

// Bytes on the disk; a half-filled file has holes.
int64_t disk_bytes(const fs::path& file) {
  struct stat info {};
  return ::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? info.st_blocks * 512LL : 0;
}

int64_t disk_size(const fs::path& file) {
  std::error_code code;
  const auto size = fs::file_size(file, code);
  return code ? 0 : static_cast<int64_t>(size);
}

double age_of(const fs::path& file) {
  std::error_code code;
  const auto when = fs::last_write_time(file, code);
  return code ? 0 : std::chrono::duration<double>(fs::file_time_type::clock::now() - when).count();
}

template <typename Visit>
void each_file(const fs::path& folder, const Visit& visit) {
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    if (at->is_symlink() || !at->is_directory()) visit(*at);
  }
}

}  // namespace

std::string blob_of_unfinished(const std::string& name) {
  for (const std::string_view end : {".pieces.incomplete", ".incomplete", ".tmp"}) {
    if (!name.ends_with(end)) continue;
    std::string rest = name.substr(0, name.size() - end.size());
    if (rest.size() > 9 && rest[rest.size() - 9] == '.' && is_hex(std::string_view(rest).substr(rest.size() - 8))) {
      return rest.substr(0, rest.size() - 9);
    }
    if (end != ".tmp" && !rest.empty()) return rest;  // older clients: one file for all processes
  }
  return "";
}

std::string blob_of_link(const fs::path& link, const fs::path& repo_folder) {
  std::error_code code;
  const fs::path target = fs::read_symlink(link, code);
  if (code || target.is_absolute()) return "";
  const fs::path place = (link.parent_path() / target).lexically_normal();
  return place.parent_path() == (repo_folder / "blobs").lexically_normal() ? place.filename().string() : "";
}

std::optional<CachedRepo> list_repo(const HubCache& cache, const Repo& repo) {
  check_repo(repo);
  CachedRepo found{.repo = repo, .folder = cache.folder(repo), .bytes = 0, .revisions = {}, .unfinished = {}};
  const auto kind = fs::symlink_status(found.folder).type();
  if (kind == fs::file_type::not_found) return std::nullopt;
  if (kind != fs::file_type::directory) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a folder at " + found.folder.string(),
                 .got = "a link or a file, which leads out of the cache",
                 .next = "remove it by hand if it should not be there"});
  }
  each_file(found.folder, [&](const fs::directory_entry& entry) {
    if (!entry.is_symlink() && entry.is_regular_file()) found.bytes += disk_size(entry.path());
    // In a snapshot such a name is a file of the repository.
    const std::string part = entry.path().lexically_relative(found.folder).begin()->string();
    const std::string name = entry.path().filename().string(), blob = blob_of_unfinished(name);
    if (blob.empty() || part == "snapshots" || part == ".no_exist" || (part != "blobs" && !name.ends_with(".tmp"))) {
      return;
    }
    const int64_t bytes = disk_bytes(entry.path());
    found.bytes += bytes - disk_size(entry.path());
    found.unfinished.push_back({.file = entry.path(),
                                .bytes = bytes,
                                .age_s = age_of(entry.path()),
                                .busy = CacheLock::is_held(cache.lock_file(repo, blob))});
  });
  std::sort(found.unfinished.begin(), found.unfinished.end(),
            [](const UnfinishedFile& a, const UnfinishedFile& b) { return a.file < b.file; });

  std::map<std::string, CachedRevision> by_commit;
  std::error_code code;
  for (fs::directory_iterator at(found.folder / "snapshots", code), end; !code && at != end; at.increment(code)) {
    const std::string commit = at->path().filename().string();
    if (!is_commit(commit) || !at->is_directory()) continue;
    CachedRevision& revision = by_commit[commit];
    each_file(at->path(), [&](const fs::directory_entry& entry) {
      ++revision.files;
      revision.bytes += disk_size(entry.path());
    });
  }
  for (const std::string& name : cache.refs(repo)) {
    if (const auto commit = cache.read_ref(repo, name)) by_commit[*commit].refs.push_back(name);
  }
  for (auto& [commit, revision] : by_commit) {
    revision.commit = commit;
    found.revisions.push_back(std::move(revision));
  }
  return found;
}

std::vector<CachedRepo> list_cache(const HubCache& cache) {
  std::vector<CachedRepo> all;
  std::error_code code;
  for (fs::directory_iterator at(cache.root(), code), end; !code && at != end; at.increment(code)) {
    const auto repo = repo_of_folder(at->path().filename().string());
    if (!repo || at->is_symlink() || !at->is_directory()) continue;
    if (auto found = list_repo(cache, *repo)) all.push_back(std::move(*found));
  }
  std::sort(all.begin(), all.end(), [](const CachedRepo& a, const CachedRepo& b) {
    return std::tie(a.repo.type, a.repo.id) < std::tie(b.repo.type, b.repo.id);
  });
  return all;
}

}  // namespace hotswap
