#include "hotswap/hub/served_repository.h"

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporary = ".tmp";

// Removes what is still there under a temporary name.
struct Temporary {
  fs::path path;
  ~Temporary() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

fs::path temporary_for(const fs::path& target) {
  return temporary_beside(target.parent_path() / ("." + target.filename().string()), kTemporary);
}

void remove_left_behind(const fs::path& folder) {
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename();
    std::error_code ignored;
    if (name.starts_with(".") && name.ends_with(kTemporary)) fs::remove_all(at->path(), ignored);
  }
}

}  // namespace

ServedRepository::ServedRepository(const fs::path& folder, const Repo& repo)
    : folder_(folder / plural(repo.type) / repo.id), lock_(commits() / ".lock") {
  remove_left_behind(folder_);
  remove_left_behind(commits());
}

bool ServedRepository::has(const std::string& commit) const { return fs::is_directory(commits() / commit); }

std::string ServedRepository::commit_of(const std::string& ref) const {
  return fs::is_symlink(folder_ / ref) ? fs::read_symlink(folder_ / ref).filename().string() : "";
}

void ServedRepository::add(const std::string& commit, const std::function<void(const fs::path& folder)>& fill,
                           const std::string& listed) const {
  if (has(commit)) return;
  const Temporary copy{temporary_for(commits() / commit)};
  fs::create_directories(copy.path);
  fill(copy.path);
  if (!listed.empty()) write_file(commits() / (commit + ".files"), listed);
  fs::rename(copy.path, commits() / commit);
}

void ServedRepository::point(const std::string& ref, const std::string& commit) const {
  const fs::path link = folder_ / ref;
  if (!fs::is_symlink(link) && fs::exists(link)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = link.string() + " as a link to a commit in .commits",
                 .got = "a folder that was put there otherwise",
                 .next = "move it away; this program makes its own"});
  }
  const Temporary fresh{temporary_for(link)};
  fs::create_directory_symlink(fs::path(".commits") / commit, fresh.path);
  fs::rename(fresh.path, link);
}

}  // namespace hotswap
