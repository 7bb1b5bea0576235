// How files leave a cache (cache_management.h). Names go before what they name: killed half-way, a run leaves nothing
// that looks whole and is not. Lock files stay: whoever waits for one must not wait for a file that is gone.
#include <algorithm>
#include <memory>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/hub/cache/cache_management.h"
#include "hotswap/hub/cache/cache_names_impl.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

CachedRepo need_repo(const HubCache& cache, const Repo& repo) {
  if (auto found = list_repo(cache, repo)) return std::move(*found);
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat(repo.id, " in the cache ", cache.root().string()),
               .got = "no folder " + repo_folder_name(repo),
               .next = "`hotswap cache ls` lists what is there"});
}

// Bytes that go with a file, a link or a folder; links are not followed.
int64_t bytes_below(const fs::path& path) {
  std::error_code code;
  if (fs::is_symlink(fs::symlink_status(path, code))) return 0;
  if (fs::is_regular_file(path, code)) return static_cast<int64_t>(fs::file_size(path, code));
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator at(path, code), end; !code && at != end; at.increment(code)) {
    if (!at->is_symlink() && at->is_regular_file()) bytes += static_cast<int64_t>(at->file_size(code));
  }
  return bytes;
}

class Remover {
 public:
  Remover(const HubCache& cache, const Repo& repo, const RemoveOptions& options)
      : cache_(cache), repo_(repo), folder_(cache.folder(repo)), options_(options) {}

  void take(const fs::path& path, int64_t bytes) {
    const fs::path below = path.lexically_relative(folder_);
    if (below.empty() || below.native().starts_with("..")) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "to remove only what lies in " + folder_.string(),
                   .got = path.string(),
                   .next = "look at what this path is, and remove it by hand if nobody needs it"});
    }
    std::error_code code;
    if (!fs::exists(fs::symlink_status(path, code))) return;
    if (!options_.dry_run) {
      fs::remove_all(path, code);
      if (code) {
        throw Error({.kind = ErrorKind::kUnavailable,
                     .wanted = "to remove " + path.string(),
                     .got = code.message(),
                     .next = "check its permissions"});
      }
    }
    removed_.files.push_back({path, bytes});
  }
  void take(const fs::path& path) { take(path, bytes_below(path)); }

  // Takes files under their blobs' locks, so that no download is about to show one. `wanted` is asked, with the locks
  // held, for the blobs that must stay.
  template <typename Wanted>
  void take_blobs(const std::vector<RemovedFile>& files, const Wanted& wanted) {
    for (size_t begin = 0; begin < files.size(); begin += kLocks) {
      std::vector<std::pair<const RemovedFile*, std::unique_ptr<CacheLock>>> mine;
      for (size_t i = begin; i < std::min(files.size(), begin + kLocks); ++i) {
        const fs::path lock_file = cache_.lock_file(repo_, blob_of(files[i].path));
        auto lock = options_.dry_run ? nullptr : CacheLock::if_free(lock_file);
        const bool free = options_.dry_run ? !CacheLock::is_held(lock_file) : lock != nullptr;
        if (free) {
          mine.emplace_back(&files[i], std::move(lock));
        } else {
          keep(files[i].path.string() + ": a process is downloading it");
        }
      }
      const std::set<std::string> stay = wanted();
      for (const auto& [file, lock] : mine) {
        if (!stay.contains(blob_of(file->path))) take(file->path, file->bytes);
      }
    }
  }

  void keep(std::string why) { removed_.kept.push_back(std::move(why)); }
  Removed finish() { return std::move(removed_); }

 private:
  static constexpr size_t kLocks = 256;  // at a time: each is an open file

  static std::string blob_of(const fs::path& file) {
    const std::string name = file.filename().string(), unfinished = blob_of_unfinished(name);
    return unfinished.empty() ? name : unfinished;
  }

  const HubCache& cache_;
  const Repo& repo_;
  const fs::path folder_;
  const RemoveOptions& options_;
  Removed removed_;
};

std::vector<std::string> locked_blobs(const HubCache& cache, const Repo& repo) {
  std::vector<std::string> held;
  std::error_code code;
  const fs::path locks = cache.lock_file(repo, "x").parent_path();
  for (fs::directory_iterator at(locks, code), end; !code && at != end; at.increment(code)) {
    if (at->path().extension() == ".lock" && CacheLock::is_held(at->path())) held.push_back(at->path().stem().string());
  }
  return held;
}

[[noreturn]] void busy(const HubCache& cache, const Repo& repo, const std::string& what, const std::string& blob) {
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = "to remove " + what,
               .got = "a download into it that runs: " + cache.lock_file(repo, blob).string() + " is held",
               .next = "try again when it has ended"});
}

// The blobs that snapshots show: of one commit, or of all but one.
std::set<std::string> blobs_shown(const fs::path& repo_folder, const std::string& commit, bool all_but_it) {
  std::set<std::string> blobs;
  std::error_code code;
  for (fs::directory_iterator one(repo_folder / "snapshots", code), none; !code && one != none; one.increment(code)) {
    if ((one->path().filename() == commit) == all_but_it) continue;
    std::error_code inner;
    for (fs::recursive_directory_iterator at(one->path(), inner), end; !inner && at != end; at.increment(inner)) {
      if (at->is_symlink()) blobs.insert(blob_of_link(at->path(), repo_folder));
    }
  }
  blobs.erase("");
  return blobs;
}

const CachedRevision& find_revision(const CachedRepo& found, const std::string& wanted) {
  std::vector<const CachedRevision*> hits;
  std::vector<std::string> known, begun;
  for (const CachedRevision& revision : found.revisions) {
    const bool named = std::find(revision.refs.begin(), revision.refs.end(), wanted) != revision.refs.end();
    if (named) return revision;
    if (wanted.size() >= 7 && is_hex(wanted) && revision.commit.starts_with(wanted)) {
      hits.push_back(&revision);
      begun.push_back(revision.commit);
    }
    known.push_back(revision.refs.empty() ? revision.commit : join(revision.refs, " = "));
  }
  if (hits.size() == 1) return *hits.front();
  throw Error({.kind = hits.empty() ? ErrorKind::kNotFound : ErrorKind::kInvalidArgument,
               .wanted = cat("'", shown(wanted), "' to be one revision of ", found.repo.id, " in the cache"),
               .got = hits.empty() ? cat("these revisions: ", known.empty() ? "none" : join(known)) : join(begun),
               .next = hits.empty() ? "name one of them" : "write more digits of the one that you mean"});
}

}  // namespace

int64_t Removed::bytes() const {
  int64_t sum = 0;
  for (const RemovedFile& file : files) sum += file.bytes;
  return sum;
}

Removed remove_repo(const HubCache& cache, const Repo& repo, const RemoveOptions& options) {
  const CachedRepo found = need_repo(cache, repo);
  if (const auto held = locked_blobs(cache, repo); !held.empty()) busy(cache, repo, repo.id, held.front());
  Remover remover(cache, repo, options);
  for (const char* part : {"refs", "hotswap", "trees", ".no_exist", "snapshots", "blobs"}) {
    remover.take(found.folder / part);
  }
  std::error_code code;
  if (!options.dry_run) fs::remove(found.folder, code);  // what nobody knows keeps its folder
  if (!options.dry_run && fs::exists(found.folder)) {
    remover.keep(found.folder.string() + ": holds files that are none of a cache's");
  }
  return remover.finish();
}

Removed remove_revision(const HubCache& cache, const Repo& repo, const std::string& wanted,
                        const RemoveOptions& options) {
  const CachedRepo found = need_repo(cache, repo);
  const CachedRevision& revision = find_revision(found, wanted);
  const auto tree = cache.read_tree(repo, revision.commit);
  for (const std::string& blob : locked_blobs(cache, repo)) {
    const bool of_it =
        !tree || std::any_of(tree->begin(), tree->end(), [&](const TreeEntry& entry) { return entry.etag() == blob; });
    if (of_it) busy(cache, repo, cat(repo.id, "@", wanted), blob);
  }
  std::vector<RemovedFile> blobs;
  for (const std::string& blob : blobs_shown(found.folder, revision.commit, false)) {
    blobs.push_back({found.folder / "blobs" / blob, bytes_below(found.folder / "blobs" / blob)});
  }
  Remover remover(cache, repo, options);
  for (const std::string& name : revision.refs) {
    remover.take(found.folder / "refs" / name);
    remover.take(found.folder / "hotswap/refs" / name);
  }
  remover.take(found.folder / "trees" / (revision.commit + ".json"));
  remover.take(found.folder / "hotswap/trees" / revision.commit);
  remover.take(found.folder / ".no_exist" / revision.commit);
  remover.take(found.folder / "snapshots" / revision.commit);
  remover.take_blobs(blobs, [&] { return blobs_shown(found.folder, revision.commit, true); });
  return remover.finish();
}

Removed remove_unfinished(const HubCache& cache, const Repo& repo, const RemoveOptions& options) {
  const CachedRepo found = need_repo(cache, repo);
  Remover remover(cache, repo, options);
  std::vector<RemovedFile> files;
  for (const UnfinishedFile& file : found.unfinished) {
    if (file.age_s >= options.unfinished_s) {
      files.push_back({file.file, file.bytes});
    } else {
      remover.keep(cat(file.file.string(), ": written ", static_cast<int64_t>(file.age_s), " seconds ago"));
    }
  }
  remover.take_blobs(files, [] { return std::set<std::string>(); });
  return remover.finish();
}

Removed remove_wrong(const HubCache& cache, const Repo& repo, const CacheVerdict& verdict,
                     const RemoveOptions& options) {
  Remover remover(cache, repo, options);
  std::vector<RemovedFile> blobs;
  for (const CacheProblem& problem : verdict.problems) {
    if (!problem.wrong_content) continue;
    if (problem.file.parent_path().filename() == "blobs") {
      blobs.push_back({problem.file, bytes_below(problem.file)});
    } else {
      remover.take(problem.file);  // of a snapshot: a link, or a file where there are no links
    }
  }
  remover.take_blobs(blobs, [] { return std::set<std::string>(); });
  return remover.finish();
}

}  // namespace hotswap
