#include "hotswap/hub/serve/served_repos.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/cache/partial_file.h"
#include "hotswap/hub/cache/tree_file.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashBuffer = 1 << 20;
constexpr int64_t kSmall = 16 << 20;             // bytes; read in some milliseconds
constexpr int64_t kSaveFrom = int64_t{1} << 30;  // bytes
constexpr std::chrono::milliseconds kTick{20};

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    if (at->is_directory(code) && at->path().filename().string().front() != '.') found.push_back(at->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// "", or why no client can ask for a file of this name.
std::string wrong_name(const std::string& path) {
  if (!is_utf8(path)) return "its name is not UTF-8";
  try {
    check_relative_path(path, "file");
    return "";
  } catch (const Error& error) {
    return error.got();
  }
}

}  // namespace

bool is_tag(std::string_view name) {
  if (name.empty() || name[0] != 'v') return false;
  const auto parts = split(name.substr(1), '.');
  return parts.size() > 1 &&
         std::all_of(parts.begin(), parts.end(), [](const std::string& part) { return all_digits(part); });
}

ServedFile describe_file(const fs::path& file, int64_t large_from) {
  const auto size = static_cast<int64_t>(fs::file_size(file));
  ContentHash git(std::string(40, '0'), size), large(std::string(64, '0'), size);
  std::ifstream in(file, std::ios::binary);
  std::string buffer(kHashBuffer, '\0');
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
    : folder_(std::move(folder)), large_from_(large_from), rescan_(rescan_s), hashes_(folder_ / ".serve-hub-hashes") {
  if (fs::is_directory(folder_)) return;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "a folder with models/ORG/NAME/REVISION or kernels/ORG/NAME/REVISION in it",
               .got = folder_.string() + ", which is no folder",
               .next = "name the folder to serve"});
}

std::vector<std::string> ServedRepos::revision_names(const Repo& repo) const {
  check_repo(repo);
  std::vector<std::string> names;
  if (publisher_of(repo).empty()) return names;
  for (const fs::path& folder : folders_in(folder_ / plural(repo.type) / repo.id)) names.push_back(folder.filename());
  return names;
}

bool ServedRepos::has(const Repo& repo) const { return !revision_names(repo).empty(); }

std::vector<std::shared_ptr<const ServedRevision>> ServedRepos::revisions(const Repo& repo) {
  std::vector<std::shared_ptr<const ServedRevision>> found;
  for (const std::string& name : revision_names(repo))
    found.push_back(revision(folder_ / plural(repo.type) / repo.id / name));
  return found;
}

std::shared_ptr<const ServedRevision> ServedRepos::find(const Repo& repo, const std::string& wanted) {
  const fs::path place = folder_ / plural(repo.type) / repo.id;
  std::vector<std::string> names = revision_names(repo);
  for (const std::string& name : names) {
    const std::string full = cat(is_tag(name) ? "refs/tags/" : "refs/heads/", name);  // as refs has it
    if (name == wanted || full == wanted) return revision(place / name);
  }
  if (wanted.size() != 40 || !is_hex(wanted)) return nullptr;
  // A commit: first where it was seen last, so that a large revision that is new does not keep the others waiting.
  const auto unseen = std::stable_partition(names.begin(), names.end(), [&](const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto known = scans_.find(place / name);
    return known != scans_.end() && known->second->commit == wanted;
  });
  // One that was published stays, whatever the branches name now.
  if (unseen == names.begin() && fs::is_directory(place / ".commits" / wanted)) {
    if (auto kept = revision(place / ".commits" / wanted); kept->commit == wanted) return kept;
  }
  for (const std::string& name : names) {
    if (auto found = revision(place / name); found->commit == wanted) return found;
  }
  return nullptr;
}

std::shared_ptr<const ServedRevision> ServedRepos::revision(const fs::path& folder) {
  const std::shared_ptr<Scan> scan = [&] {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Scan>& known = scans_[folder];
    if (known == nullptr) known = std::make_shared<Scan>();
    return known;
  }();
  const std::lock_guard walking(scan->walking);
  if (scan->revision != nullptr && Clock::now() - scan->when < rescan_) return scan->revision;
  scan->revision = walk(folder, folder.filename().string());
  scan->when = Clock::now();
  const std::lock_guard lock(mutex_);
  scan->commit = scan->revision->commit;
  for (const auto& [path, file] : scan->revision->files) {
    if (file.large) large_[file.sha256] = std::make_shared<const ServedFile>(file);
  }
  return scan->revision;
}

std::vector<Repo> ServedRepos::all(RepoType type) const {
  std::vector<Repo> found;
  for (const fs::path& organization : folders_in(folder_ / plural(type))) {
    for (const fs::path& name : folders_in(organization)) {
      found.push_back({type, cat(organization.filename().string(), "/", name.filename().string())});
    }
  }
  return found;
}

void ServedRepos::prepare(const std::function<void(const Repo& repo, const ServedRevision& revision)>& on_revision) {
  for (const RepoType type : {RepoType::kModel, RepoType::kKernel, RepoType::kDataset, RepoType::kSpace}) {
    for (const Repo& repo : all(type)) {
      for (const std::string& name : revision_names(repo))
        on_revision(repo, *revision(folder_ / plural(type) / repo.id / name));
    }
  }
  hashes_.save(true);
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
  const fs::path root = fs::canonical(folder);  // a link may lead elsewhere while its files are being sent
  for (fs::recursive_directory_iterator at(root), end; at != end; ++at) {
    if (at->is_directory()) {
      if (at->path().filename() == ".git" || at->path().filename() == "__pycache__") at.disable_recursion_pending();
      continue;
    }
    struct stat info {};
    if (::stat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;  // a dead link, a socket
    const std::string path = at->path().lexically_relative(root).generic_string();
    if (const std::string wrong = wrong_name(path); !wrong.empty()) {
      tell_once(at->path(), cat("not served: ", shown(path), ": ", wrong));
      continue;
    }
    revision->modified = std::max<int64_t>(revision->modified, info.st_mtim.tv_sec);
    const FileHashes hashes = hashes_of(at->path(), FileStamp::of(info));
    revision->files[path] = {.disk = at->path(),
                             .size = info.st_size,
                             .git_sha1 = hashes.git_sha1,
                             .sha256 = hashes.sha256,
                             .large = info.st_size >= large_from_};
  }
  hashes_.save();
  revision->commit = commit_of(revision->files);
  take_list(root, *revision);
  return revision;
}

// A commit of another Hub keeps its name, and its files are large or not as they are there.
void ServedRepos::take_list(const fs::path& root, ServedRevision& revision) {
  const fs::path file = root.string() + ".files";
  std::error_code code;
  if (!fs::is_regular_file(file, code)) return;
  std::map<std::string, ServedFile> listed = revision.files;
  try {
    const std::vector<TreeEntry> entries = parse_tree_lines(read_file(file));
    bool same = entries.size() == listed.size();
    for (const TreeEntry& entry : entries) {
      const auto found = listed.find(entry.path);
      same = same && found != listed.end();
      if (!same) break;
      found->second.large = !entry.sha256.empty();
      same = found->second.etag() == entry.etag();
    }
    if (!same)
      return tell_once(file,
                       cat("not the files that are listed: ", root.string(), " is served as a commit of its own"));
  } catch (const Error& error) {
    return tell_once(file, error.what());
  }
  revision.files = std::move(listed);
  revision.commit = root.filename().string();
}

void ServedRepos::tell_once(const fs::path& about, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (told_.insert(about).second) log_warning(text);
}

FileHashes ServedRepos::hashes_of(const fs::path& file, const FileStamp& stamp) {
  if (const auto known = hashes_.find(stamp)) return *known;
  // A small file does not wait for the large ones.
  std::unique_lock hashing(hashing_, std::defer_lock);
  if (stamp.size > kSmall) {
    hashing.lock();
    if (const auto known = hashes_.find(stamp)) return *known;
  }
  // The clock of files ticks every few milliseconds: within a tick a file could change and look the same for ever.
  const auto age = std::chrono::system_clock::now().time_since_epoch() - std::chrono::nanoseconds(stamp.changed_ns);
  if (age >= age.zero() && age < kTick) std::this_thread::sleep_for(kTick - age);
  const ServedFile read = describe_file(file, large_from_);
  FileHashes hashes{.git_sha1 = read.git_sha1, .sha256 = read.sha256};
  struct stat after {};
  if (::stat(file.c_str(), &after) != 0 || FileStamp::of(after) != stamp)
    return hashes;  // changing: read again next time
  hashes_.add(stamp, hashes);
  if (stamp.size > kSaveFrom) hashes_.save();  // minutes of reading are not lost with the process
  return hashes;
}

}  // namespace hotswap
