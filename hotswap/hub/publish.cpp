#include "hotswap/hub/publish.h"

#include "hotswap/base/error.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/serve/served_repos.h"
#include "hotswap/hub/served_repository.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

void copy_files(const BuiltPackage& package, const std::string& commit, const fs::path& to) {
  std::map<std::string, ServedFile> copied;
  for (const auto& [path, file] : package.files) {
    const fs::path target = to / path;
    fs::create_directories(target.parent_path());
    fs::copy_file(file.disk, target);
    copied[path] = describe_file(target, 0);
  }
  if (commit_of(copied) == commit) return;
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = "a package that stays as it is while it is published",
               .got = "files that changed",
               .next = "publish it again when its build has ended"});
}

}  // namespace

Published publish_package(const fs::path& package, const fs::path& folder, const std::string& repo_id,
                          const std::string& tag) {
  const Repo repo{RepoType::kKernel, repo_id};
  check_repo_with_publisher(repo);
  if (!tag.empty() && !is_tag(tag)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a tag such as v1.2.0",
                 .got = "'" + tag + "'",
                 .next = "write v and a version with dots"});
  }
  const BuiltPackage built = read_built_package(package);
  Published done{.repo = repo_id, .commit = commit_of(built.files), .refs = {cat("v", built.version), "main"}};
  const ServedRepository served(folder, repo);
  if (!tag.empty()) {
    if (const std::string named = served.commit_of(tag); !named.empty() && named != done.commit) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a tag that is new, or names commit " + done.commit,
                   .got = cat(tag, ", which names ", named),
                   .next = "tags never move: publish this under the next version"});
    }
    done.refs.insert(done.refs.begin(), tag);
  }
  served.add(done.commit, [&](const fs::path& to) { copy_files(built, done.commit, to); });
  for (const std::string& ref : done.refs) served.point(ref, done.commit);
  return done;
}

}  // namespace hotswap
