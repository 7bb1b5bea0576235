#include "hotswap/hub/verify_file_lists.h"

#include <map>

#include "hotswap/hub/cache/cache_names_impl.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

using Listed = std::map<std::string, std::string>;  // path -> etag and size, as a message shows them

Listed by_path(const std::vector<TreeEntry>& files) {
  Listed all;
  for (const TreeEntry& file : files) {
    all[file.path] = cat(file.etag(), " of ", file.sha256.empty() ? file.size : file.lfs_size, " bytes");
  }
  return all;
}

// The first difference; empty where there is none.
std::string difference(const Listed& cached, const Listed& hub) {
  for (const auto& [path, what] : hub) {
    const auto known = cached.find(path);
    if (known == cached.end()) return cat("lacks ", path, ", which the Hub lists");
    if (known->second != what) return cat("has ", path, " as ", known->second, "; the Hub has ", what);
  }
  for (const auto& [path, what] : cached) {
    if (!hub.contains(path)) return cat("has ", path, ", which the Hub does not list");
  }
  return "";
}

}  // namespace

CacheVerdict verify_file_lists(Hub& hub, const CachedRepo& found) {
  const HubCache& cache = hub.cache(found.repo);
  CacheVerdict verdict;
  for (const auto& [commit, refs, files, bytes] : found.revisions) {
    const fs::path snapshot = cache.snapshot(found.repo, commit);
    std::vector<TreeEntry> told;
    try {
      told = hub.client().tree(found.repo, commit);
    } catch (const HubError& error) {
      if (error.reason() != HubReason::kRepoNotFound && error.reason() != HubReason::kRevisionNotFound) throw;
      verdict.problems.push_back({snapshot, cat("the Hub does not know this commit: ", error.got())});
      continue;
    }
    std::erase_if(told, [](const TreeEntry& entry) { return entry.folder; });
    if (const auto cached = cache.read_tree(found.repo, commit)) {
      const std::string wrong = difference(by_path(*cached), by_path(told));
      if (!wrong.empty()) verdict.problems.push_back({*cache.tree_file(found.repo, commit), wrong, true});
    }
    for (const TreeEntry& entry : told) {
      const std::string blob = blob_of_link(snapshot / entry.path, found.folder);
      if (blob.empty() || blob == entry.etag()) continue;
      verdict.problems.push_back(
          {snapshot / entry.path, cat("shows the blob ", blob, "; the Hub has ", entry.etag()), true});
    }
  }
  return verdict;
}

}  // namespace hotswap
