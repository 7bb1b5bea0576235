// The cache on disk, byte for byte as huggingface_hub lays it out, so that Python and hotswap use one cache, also at
// the same time:
//
//   CACHEDIR.TAG                              for backup programs
//   .locks/models--org--name/<etag>.lock      flock, as Python's filelock takes it
//   models--org--name/blobs/<etag>            content; <etag>.<8 hex>.incomplete while it comes
//                    /refs/<revision>         the commit, 40 characters
//                    /snapshots/<commit>/path relative link to the blob; a file where links cannot be
//                    /.no_exist/<commit>/path the Hub said that there is no such file
//                    /trees/<commit>.json     the commit's list of files
//                    /hotswap/<hash>.json     ours alone: the Hub's answers about names, for a while
//                    /hotswap/refs/<revision> ours alone: the same as refs, of a commit of which no file is here yet
//                    /hotswap/trees/<commit>  ours alone: the same lists, of kernels (tree_file.h)
//
// Lists of kernels are kept apart, because Python's `kernels` refuses a snapshot offline that lacks any file of trees/:
// one of which only the variant for this machine was fetched, that is every one. And a name whose commit has no
// snapshot is kept apart, because Python's `hf cache ls` calls a repository that has such a one corrupted.
//
// Everything appears by rename or link, complete. Nothing here queries the network.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/hub/names/repo.h"
#include "hotswap/hub/net/client.h"

namespace hotswap {

// Exclusive among processes and threads. Waits as long as it takes, saying so every ten seconds. On a file system
// without flock it warns and holds nothing: complete files by rename keep the cache right, only bandwidth is lost.
class CacheLock {
 public:
  explicit CacheLock(const std::filesystem::path& file);
  // Takes it only when nobody has it; null: somebody does.
  static std::unique_ptr<CacheLock> if_free(const std::filesystem::path& file);
  static bool is_held(const std::filesystem::path& file);  // by anybody, right now; writes nothing
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  CacheLock() = default;
  bool take(const std::filesystem::path& file, bool wait);
  int fd_ = -1;
};

class HubCache {
 public:
  // links false: plain files in snapshots, even where links could be.
  HubCache(std::filesystem::path root, bool links);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path folder(const Repo& repo) const;
  std::filesystem::path snapshot(const Repo& repo, const std::string& commit) const;
  std::filesystem::path blob(const Repo& repo, const std::string& etag) const;
  std::filesystem::path lock_file(const Repo& repo, const std::string& etag) const;

  // The commit that `revision` was last seen to be; a commit is itself. max_age_s < 0: however long ago, and rather one
  // that is here than one that was seen later.
  std::optional<std::string> read_ref(const Repo& repo, const std::string& revision, double max_age_s = -1) const;
  void write_ref(const Repo& repo, const std::string& revision, const std::string& commit) const;
  std::vector<std::string> refs(const Repo& repo) const;  // names of commits that are here
  // The folder snapshots/<commit>; what is known of its names moves to refs.
  std::filesystem::path begin_snapshot(const Repo& repo, const std::string& commit) const;

  std::optional<std::filesystem::path> find(const Repo& repo, const std::string& commit, const std::string& path) const;
  // Of these files of the commit, those that find() does not find.
  std::vector<TreeEntry> lacking(const Repo& repo, const std::string& commit, std::vector<TreeEntry> files) const;
  bool known_absent(const Repo& repo, const std::string& commit, const std::string& path) const;
  void mark_absent(const Repo& repo, const std::string& commit, const std::string& path) const;

  // Makes snapshots/<commit>/<path> show the blob, which exists; call it under the blob's lock. `fresh`: the blob was
  // just made, so where links cannot be it is moved instead of copied.
  std::filesystem::path publish(const Repo& repo, const std::string& commit, const std::string& path,
                                const std::string& etag, bool fresh) const;

  // Where the commit's list of files lies, ours or Python's; none where there is none.
  std::optional<std::filesystem::path> tree_file(const Repo& repo, const std::string& commit) const;
  std::optional<std::vector<TreeEntry>> read_tree(const Repo& repo, const std::string& commit) const;
  void write_tree(const Repo& repo, const std::string& commit, const std::vector<TreeEntry>& entries) const;

  // JSON answers by a key of the caller's; it holds the endpoint, so that one Hub's word is not taken for another's.
  std::optional<std::string> read_answer(const Repo& repo, const std::string& key, double max_age_s = -1) const;
  void write_answer(const Repo& repo, const std::string& key, const std::string& json) const;

  void prepare(const Repo& repo) const;  // folders and CACHEDIR.TAG

 private:
  bool links_work() const;
  std::filesystem::path answer_file(const Repo& repo, const std::string& key) const;
  std::filesystem::path own_tree_file(const Repo& repo, const std::string& commit) const;
  std::filesystem::path root_;
  bool links_;
};

}  // namespace hotswap
