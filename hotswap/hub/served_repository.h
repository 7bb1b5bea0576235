// A repository in the folder behind serve-hub, as who fills it sees it: commits that appear as a whole and stay, and
// names that lead to them.
//
//   DIR/kernels/acme/norm/.commits/<commit>/...         the files, never changed
//   DIR/kernels/acme/norm/.commits/<commit>.files       of a commit of another Hub: its list of them (tree_file.h)
//   DIR/kernels/acme/norm/{main,v1,v1.2.0} -> .commits/<commit>     links, replaced as a whole
//
//   ServedRepository served("/srv/hub", repo);
//   served.add(commit, [](const fs::path& folder) { ... });
//   served.point("v1", commit);
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "hotswap/base/file.h"
#include "hotswap/hub/names/repo.h"

namespace hotswap {

class ServedRepository {
 public:
  // One writer at a time; what one that was killed left behind goes.
  ServedRepository(const std::filesystem::path& folder, const Repo& repo);

  bool has(const std::string& commit) const;
  std::string commit_of(const std::string& ref) const;  // empty: there is no such link
  // `fill` writes the commit's files into the folder that it is given. `listed`: how the commit's own Hub lists them;
  // serve-hub calls the commit by its name there as long as the files are those.
  void add(const std::string& commit, const std::function<void(const std::filesystem::path& folder)>& fill,
           const std::string& listed = "") const;
  // Error where something else than such a link has the name.
  void point(const std::string& ref, const std::string& commit) const;

 private:
  std::filesystem::path commits() const { return folder_ / ".commits"; }
  std::filesystem::path folder_;
  FileLock lock_;
};

}  // namespace hotswap
