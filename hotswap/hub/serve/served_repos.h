// The folder behind `hotswap serve-hub`, read-only and free of git:
//
//   DIR/kernels/ORG/NAME/REVISION/...   also models/, datasets/, spaces/; REVISION is a branch (main, v1, v2) or, when
//                                       it is v and a dotted version (v1.2.0), a tag
//   DIR/kernels/ORG/NAME/.commits/COMMIT/...   what branches and tags are links to, where `hub publish` made them
//   DIR/kernels/ORG/NAME/.commits/COMMIT.files   of a commit that `hub mirror` brought: its list of files
//   DIR/trusted_publishers.txt          organizations that this Hub calls trusted, one a line
//
// A commit is the SHA-1 of the list of files with their hashes: the same content has the same commit everywhere, and a
// changed file makes a new one. One from another Hub has its name there, as long as its files are those of its list.
// Requests can only name what a walk over the folder found, so no path leads out of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hotswap/hub/names/repo.h"
#include "hotswap/hub/serve/hash_cache.h"

namespace hotswap {

struct ServedFile {
  std::filesystem::path disk;
  int64_t size = 0;
  std::string git_sha1, sha256;
  bool large = false;  // described by its SHA-256, as an LFS file is
  const std::string& etag() const { return large ? sha256 : git_sha1; }
};

// Reads the file for its hashes. large_from: bytes from which a file is an LFS file.
ServedFile describe_file(const std::filesystem::path& file, int64_t large_from);
// v1.2 and v1.2.3 are tags, v1 is a branch: as the Hub's kernels use them.
bool is_tag(std::string_view name);
// The commit of these files, by their paths: the same content has the same one everywhere.
std::string commit_of(const std::map<std::string, ServedFile>& files);

struct ServedRevision {
  std::string name, commit;
  bool tag = false;
  int64_t modified = 0;  // the newest file's time, in seconds since 1970
  std::map<std::string, ServedFile> files;
};

class ServedRepos {
 public:
  // large_from: bytes from which a file is an LFS file. rescan_s: how old a walk's result may be.
  ServedRepos(std::filesystem::path folder, int64_t large_from, double rescan_s);

  // All of a repository's revisions; none when there is no such repository.
  std::vector<std::shared_ptr<const ServedRevision>> revisions(const Repo& repo);
  // By branch, tag or commit; null: none. Only the revision that is meant is walked, where its name says which.
  std::shared_ptr<const ServedRevision> find(const Repo& repo, const std::string& revision);
  bool has(const Repo& repo) const;
  std::shared_ptr<const ServedFile> by_sha256(const std::string& sha256);  // null: none seen
  bool has_publisher(const std::string& name) const;
  bool trusts(const std::string& publisher) const;
  std::vector<Repo> all(RepoType type) const;  // by name
  // Hashes everything, so that no client waits for it, and forgets what is no longer there.
  void prepare(const std::function<void(const Repo& repo, const ServedRevision& revision)>& on_revision);

 private:
  using Clock = std::chrono::steady_clock;
  struct Scan {
    std::mutex walking;  // who waits finds the answer then
    Clock::time_point when;
    std::shared_ptr<const ServedRevision> revision;  // null: not walked yet
    std::string commit;                              // of that; under mutex_
  };
  std::vector<std::string> revision_names(const Repo& repo) const;
  std::shared_ptr<const ServedRevision> revision(const std::filesystem::path& folder);
  std::shared_ptr<const ServedRevision> walk(const std::filesystem::path& folder, const std::string& name);
  void take_list(const std::filesystem::path& root, ServedRevision& revision);
  void tell_once(const std::filesystem::path& about, const std::string& text);
  FileHashes hashes_of(const std::filesystem::path& file, const FileStamp& stamp);

  const std::filesystem::path folder_;
  const int64_t large_from_;
  const std::chrono::duration<double> rescan_;
  HashCache hashes_;
  std::mutex hashing_;  // one large file at a time
  std::mutex mutex_;
  std::map<std::filesystem::path, std::shared_ptr<Scan>> scans_;
  std::map<std::string, std::shared_ptr<const ServedFile>> large_;
  std::set<std::filesystem::path> told_;  // what is not as it should be is said once
};

}  // namespace hotswap
