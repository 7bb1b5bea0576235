// Repositories of another Hub, brought into the folder behind serve-hub: the same commits under the same names, so that
// locks made there hold here. For a cluster without internet, filled from a machine that has it.
//
//   const auto done = mirror_repo(HubOptions::from_env(), {.repo = {RepoType::kKernel, "acme/norm"}}, "/srv/hub", {});
//
// Each commit is downloaded and verified before it appears: every file by the hash that the Hub lists for it, of
// kernels digests, and lock and signature where the project asks for them. A commit that is there is not asked for
// again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hotswap/hub/net/options.h"
#include "hotswap/hub/project.h"

namespace hotswap {

struct MirrorWish {
  Repo repo;
  std::string revision = {};  // a branch, tag or commit; empty: every branch and tag of a kernel, main of all else
  std::string name = {};      // that leads to it here; empty: its own, and none to a commit
};

struct MirroredCommit {
  std::string commit;
  std::vector<std::string> names;
  size_t files = 0;
  int64_t bytes = 0;
  bool was_here = false;
  std::vector<std::string> signers;  // of variants whose signature the project asks for
};

// Where the Hub says that the publisher of a kernel is trusted, so does the folder from then on. Error where something
// is not as it should be; what was brought before that stays.
std::vector<MirroredCommit> mirror_repo(HubOptions source, const MirrorWish& wish, const std::filesystem::path& folder,
                                        const Project& project);

// The kernels that a project has locked, by their commits.
std::vector<MirrorWish> locked_wishes(const Project& project);

}  // namespace hotswap
