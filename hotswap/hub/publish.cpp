#include "hotswap/hub/publish.h"

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/serve/served_repos.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// Removes what is still there under a temporary name.
struct Temporary {
  fs::path path;
  ~Temporary() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

void copy_files(const BuiltPackage& package, const fs::path& to) {
  const Temporary copy{temporary_beside(to.parent_path() / ("." + to.filename().string()), ".tmp")};
  std::map<std::string, ServedFile> copied;
  for (const auto& [path, file] : package.files) {
    const fs::path target = copy.path / path;
    fs::create_directories(target.parent_path());
    fs::copy_file(file.disk, target);
    copied[path] = describe_file(target, 0);
  }
  if (commit_of(copied) != to.filename()) {
    throw Error({.wanted = "a package that stays as it is while it is published",
                 .got = "files that changed",
                 .next = "publish it again when its build has ended"});
  }
  std::error_code code;
  fs::rename(copy.path, to, code);
  if (code && !fs::is_directory(to))
    throw fs::filesystem_error("publish", copy.path, to, code);  // else: another was first
}

void point(const fs::path& ref, const fs::path& target) {
  if (!fs::is_symlink(ref) && fs::exists(ref)) {
    throw Error({.wanted = ref.string() + " as a link to a published commit",
                 .got = "a folder that was put there otherwise",
                 .next = "move it away; `hotswap hub publish` makes its own"});
  }
  const Temporary link{temporary_beside(ref.parent_path() / ("." + ref.filename().string()), ".tmp")};
  fs::create_directory_symlink(target, link.path);
  fs::rename(link.path, ref);
}

}  // namespace

Published publish_package(const fs::path& package, const fs::path& folder, const std::string& repo_id,
                          const std::string& tag) {
  const Repo repo{RepoType::kKernel, repo_id};
  check_repo_with_publisher(repo);
  if (!tag.empty() && !is_tag(tag)) {
    throw Error({.wanted = "a tag such as v1.2.0", .got = "'" + tag + "'", .next = "write v and a version with dots"});
  }
  const BuiltPackage built = read_built_package(package);
  Published done{.repo = repo_id, .commit = commit_of(built.files), .refs = {cat("v", built.version), "main"}};
  const fs::path place = folder / plural(repo.type) / repo.id, target = fs::path(".commits") / done.commit;
  fs::create_directories(place / ".commits");
  const FileLock lock(place / ".commits/.lock");  // one publisher at a time
  if (!tag.empty()) {
    if (fs::is_symlink(place / tag) && fs::read_symlink(place / tag) != target) {
      throw Error({.wanted = "a tag that is new, or names commit " + done.commit,
                   .got = cat(tag, ", which names ", fs::read_symlink(place / tag).filename().string()),
                   .next = "tags never move: publish this under the next version"});
    }
    done.refs.insert(done.refs.begin(), tag);
  }
  if (!fs::is_directory(place / target)) copy_files(built, place / target);
  for (const std::string& ref : done.refs) point(place / ref, target);
  return done;
}

}  // namespace hotswap
