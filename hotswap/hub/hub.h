// The Hub as the rest of hotswap sees it: names become commits, files become paths on this disk; the network is asked
// only for what the cache does not know.
//
//   Hub hub(HubOptions::from_env());
//   const Repo repo{RepoType::kModel, "HuggingFaceTB/SmolLM2-135M-Instruct"};
//   const std::filesystem::path config = hub.file(repo, "main", "config.json");
//   const std::filesystem::path folder = hub.snapshot(repo, "main", {.allow = {"*.json", "*.safetensors"}});
//
// What a name means (a branch, a publisher's standing) is kept for HubOptions::ttl_s; what a commit holds never changes
// and is kept for good. So a second run asks nothing, and offline everything works that was there once. When the Hub
// cannot be reached, an answer that is older is used, with a warning.
//
// Thread-safe. Errors: HubError; in offline mode it lists what is missing.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/hub/cache/cache.h"
#include "hotswap/hub/net/client.h"

namespace hotswap {

struct SnapshotOptions {
  std::vector<std::string> allow = {};  // patterns (matches_pattern); empty: everything
  std::vector<std::string> ignore = {};
  // The commit's, of who has them already; null: tree() is asked. Where a download shows them to be wrong, they are
  // asked of the Hub and replaced.
  std::vector<TreeEntry>* files = nullptr;
};

class Hub {
 public:
  explicit Hub(HubOptions options);

  std::string commit(const Repo& repo, const std::string& revision);
  RepoRefs refs(const Repo& repo, bool anew = false);  // anew: asked however young the known ones are
  // Whether the Hub trusts the org of org/name. A negative answer is not cached: the Hub is queried again on each
  // call.
  Publisher publisher(const Repo& repo);
  // Files only, all of them. anew: asked, whatever the cache holds.
  std::vector<TreeEntry> tree(const Repo& repo, const std::string& revision, bool anew = false);

  std::filesystem::path file(const Repo& repo, const std::string& revision, const std::string& path);
  // None when the revision has no such file; that, too, is remembered.
  std::optional<std::filesystem::path> find_file(const Repo& repo, const std::string& revision,
                                                 const std::string& path);

  // The folder snapshots/<commit>, in which every file is that the options select.
  std::filesystem::path snapshot(const Repo& repo, const std::string& revision, const SnapshotOptions& options = {});

  // Offline and by `version=N`, Python looks for refs/vN, which it never writes: whoever resolves a version does.
  void remember(const Repo& repo, const std::string& name, const std::string& commit);

  const HubCache& cache(const Repo& repo) const {
    return repo.type == RepoType::kKernel || repo.type == RepoType::kOldKernel ? kernels_ : cache_;
  }
  HubClient& client() { return client_; }
  bool offline() const { return client_.options().offline; }

 private:
  std::string answer(const Repo& repo, const std::string& what, const std::function<std::string(bool quick)>& ask,
                     const std::function<bool(const std::string& json)>& believed = nullptr);
  RepoRefs known_refs(const Repo& repo);
  std::filesystem::path download(const Repo& repo, const std::string& revision, const std::string& path);
  void fetch_all(const Repo& repo, const std::string& commit, std::vector<TreeEntry> files);

  HubClient client_;
  HubCache cache_, kernels_;
};

}  // namespace hotswap
