// What lies in a cache, whether it is what it should be, and how it leaves: behind `hotswap cache ls|verify|rm`. Asks
// no network, and knows files by the names that huggingface_hub gives them, so it serves what Python put there as well.
//
//   for (const CachedRepo& repo : list_cache(cache)) ...
//   const Removed gone = remove_revision(cache, repo, "v1", {.dry_run = true});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/hub/cache/cache.h"

namespace hotswap {

struct CachedRevision {
  std::string commit;
  std::vector<std::string> refs;  // the names that lead to it
  int64_t files = 0;
  int64_t bytes = 0;  // what other revisions share is counted in each
};

// What a download that runs, or one that was killed, left beside the blobs.
struct UnfinishedFile {
  std::filesystem::path file;
  int64_t bytes = 0;  // on the disk
  double age_s = 0;
  bool busy = false;  // somebody holds the blob's lock: a download runs
};

struct CachedRepo {
  Repo repo;
  std::filesystem::path folder;
  int64_t bytes = 0;  // on the disk, shared blobs once, unfinished files included
  std::vector<CachedRevision> revisions;
  std::vector<UnfinishedFile> unfinished;
};

std::vector<CachedRepo> list_cache(const HubCache& cache);  // by type, then name; other folders are passed over
// None where the cache has no such repository. Error where its place is a link: that leads elsewhere.
std::optional<CachedRepo> list_repo(const HubCache& cache, const Repo& repo);

struct CacheProblem {
  std::filesystem::path file;
  std::string what;
  bool wrong_content = false;  // the file is not what its name, or the list of files, says
};

struct CacheVerdict {
  int64_t files = 0, bytes = 0;  // hashed
  int64_t unknown = 0;           // files whose name holds no hash: nothing to compare with
  std::vector<CacheProblem> problems;
};

// Hashes every blob, and every file of a snapshot that is no link; follows every link. `advanced` hears of the bytes.
CacheVerdict verify_cached(const HubCache& cache, const CachedRepo& repo,
                           const std::function<void(int64_t)>& advanced = nullptr);

struct RemoveOptions {
  bool dry_run = false;         // say what would go, touch nothing
  double unfinished_s = 600.0;  // unfinished files younger than that stay
};

struct RemovedFile {
  std::filesystem::path path;
  int64_t bytes = 0;  // freed
};

struct Removed {
  std::vector<RemovedFile> files;
  std::vector<std::string> kept;  // what was asked for but is in use, and by what
  int64_t bytes() const;
};

// All of it. Error while somebody downloads into it.
Removed remove_repo(const HubCache& cache, const Repo& repo, const RemoveOptions& options = {});
// One revision by a name or a commit (7 digits of it are enough): its snapshot, names, records, and the blobs that no
// other revision shows. Error where there is no such revision, or while somebody downloads a file of it.
Removed remove_revision(const HubCache& cache, const Repo& repo, const std::string& revision,
                        const RemoveOptions& options = {});
Removed remove_unfinished(const HubCache& cache, const Repo& repo, const RemoveOptions& options = {});
// The files of a verdict that have wrong content; the next download brings them anew.
Removed remove_wrong(const HubCache& cache, const Repo& repo, const CacheVerdict& verdict,
                     const RemoveOptions& options = {});

}  // namespace hotswap
