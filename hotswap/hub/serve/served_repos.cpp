#include "hotswap/hub/serve/served_repos.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "hotswap/base/log.h"
#include "hotswap/hub/cache/partial_file.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBuffer = 1 << 20;

// v1.2 and v1.2.3 are tags, v1 is a branch: as the Hub's kernels use them.
bool is_tag(std::string_view name) {
  if (name.empty() || name[0] != 'v') return false;
  const auto parts = split(name.substr(1), '.');
  return parts.size() > 1 &&
         std::all_of(parts.begin(), parts.end(), [](const std::string& part) { return all_digits(part); });
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    if (at->is_directory(code) && at->path().filename().string().front() != '.') found.push_back(at->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

ServedFile describe_file(const fs::path& file, int64_t large_from) {
  const auto size = static_cast<int64_t>(fs::file_size(file));
  ContentHash git(std::string(40, '0'), size), large(std::string(64, '0'), size);
  std::ifstream in(file, std::ios::binary);
  std::string buffer(kBuffer, '\0');
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), in.gcount() > 0) {
    const std::string_view bytes(buffer.data(), static_cast<size_t>(in.gcount()));
    git.update(bytes);
    large.update(bytes);
  }
  return {.disk = file, .size = size, .git_sha1 = git.finish(), .sha256 = large.finish(), .large = size >= large_from};
}

std::string commit_of(const std::map<std::string, ServedFile>& files) {
  std::string list = "hotswap serve-hub\n";
  for (const auto& [path, file] : files) list += cat(path, '\0', file.sha256, '\n');
  ContentHash commit(std::string(40, '0'), static_cast<int64_t>(list.size()));
  commit.update(list);
  return commit.finish();
}

ServedRepos::ServedRepos(fs::path folder, int64_t large_from, double rescan_s)
    : folder_(std::move(folder)), large_from_(large_from), rescan_(rescan_s) {
  if (fs::is_directory(folder_)) return;
  throw Error({.wanted = "a folder with models/ORG/NAME/REVISION or kernels/ORG/NAME/REVISION in it",
               .got = folder_.string() + ", which is no folder",
               .next = "name the folder to serve"});
}

std::vector<std::shared_ptr<const ServedRevision>> ServedRepos::revisions(const Repo& repo) {
  check_repo(repo);
  if (publisher_of(repo).empty()) return {};
  const std::string place = cat(plural(repo.type), "/", repo.id);
  {
    const std::lock_guard lock(mutex_);
    const auto known = scans_.find(place);
    if (known != scans_.end() && Clock::now() - known->second.when < rescan_) return known->second.revisions;
  }
  std::vector<std::shared_ptr<const ServedRevision>> found;
  for (const fs::path& folder : folders_in(folder_ / place)) found.push_back(walk(folder, folder.filename().string()));
  if (found.empty()) return found;  // not remembered: names that are not there would fill the memory
  const std::lock_guard lock(mutex_);
  scans_[place] = {Clock::now(), found};
  for (const auto& revision : found) {
    for (const auto& [path, file] : revision->files) {
      if (file.large) large_[file.sha256] = std::make_shared<const ServedFile>(file);
    }
  }
  return found;
}

std::shared_ptr<const ServedRevision> ServedRepos::find(const Repo& repo, const std::string& wanted) {
  for (const auto& revision : revisions(repo)) {
    const std::string full = cat(revision->tag ? "refs/tags/" : "refs/heads/", revision->name);  // as refs has it
    if (revision->name == wanted || revision->commit == wanted || full == wanted) return revision;
  }
  return nullptr;
}

std::shared_ptr<const ServedFile> ServedRepos::by_sha256(const std::string& sha256) {
  const std::lock_guard lock(mutex_);
  const auto found = large_.find(sha256);
  return found == large_.end() ? nullptr : found->second;
}

bool ServedRepos::has_publisher(const std::string& name) const {
  const auto types = {RepoType::kModel, RepoType::kKernel, RepoType::kDataset, RepoType::kSpace};
  return std::any_of(types.begin(), types.end(),
                     [&](RepoType type) { return fs::is_directory(folder_ / plural(type) / name); });
}

bool ServedRepos::trusts(const std::string& publisher) const {
  std::ifstream list(folder_ / "trusted_publishers.txt");
  for (std::string line; std::getline(list, line);) {
    if (trim(line) == publisher) return true;
  }
  return false;
}

std::shared_ptr<const ServedRevision> ServedRepos::walk(const fs::path& folder, const std::string& name) {
  auto revision = std::make_shared<ServedRevision>();
  revision->name = name;
  revision->tag = is_tag(name);
  for (fs::recursive_directory_iterator at(folder), end; at != end; ++at) {
    if (at->is_directory()) {
      if (at->path().filename() == ".git" || at->path().filename() == "__pycache__") at.disable_recursion_pending();
      continue;
    }
    struct stat info {};
    if (::stat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;  // a dead link, a socket
    const std::string path = at->path().lexically_relative(folder).generic_string();
    try {
      check_relative_path(path, "file");
    } catch (const Error& error) {
      log_warning("not served: ", error.what());
      continue;
    }
    const int64_t changed = info.st_mtim.tv_sec * 1000000000LL + info.st_mtim.tv_nsec;
    const Hashes hashes = hashes_of(at->path(), info.st_size, changed);
    revision->files[path] = {.disk = at->path(),
                             .size = info.st_size,
                             .git_sha1 = hashes.git_sha1,
                             .sha256 = hashes.sha256,
                             .large = info.st_size >= large_from_};
  }
  revision->commit = commit_of(revision->files);
  return revision;
}

ServedRepos::Hashes ServedRepos::hashes_of(const fs::path& file, int64_t size, int64_t changed) {
  const auto known = [&]() -> const Hashes* {
    const std::lock_guard lock(mutex_);
    const auto found = hashes_.find(file);
    return found != hashes_.end() && found->second.size == size && found->second.changed == changed ? &found->second
                                                                                                    : nullptr;
  };
  if (const Hashes* hashes = known()) return *hashes;
  const std::lock_guard hashing(hashing_);
  if (const Hashes* hashes = known()) return *hashes;
  const ServedFile read = describe_file(file, large_from_);
  Hashes hashes{.size = size, .changed = changed, .git_sha1 = read.git_sha1, .sha256 = read.sha256};
  const std::lock_guard lock(mutex_);
  return hashes_[file] = hashes;
}

}  // namespace hotswap
