#include "hotswap/hub/cache/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/base/sha256.h"
#include "hotswap/hub/cache/tree_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEarlyRefs = "hotswap/refs";

// A read-only cache is a good cache: what would only save a later request is left undone there.
void write_if_possible(const fs::path& file, std::string_view bytes) {
  std::error_code code;
  fs::create_directories(file.parent_path(), code);
  if (code || ::access(file.parent_path().c_str(), W_OK) != 0) {
    log_info("not written, the cache is read-only: ", file.string());
    return;
  }
  replace_file(file, bytes);
}

// What is noted of a repository. It may be all that is ever there of it, where trust is refused or the name is wrong,
// and Python takes a repository's folder without snapshots for a corrupted one.
void note(const fs::path& repo, const fs::path& file, std::string_view bytes) {
  std::error_code code;  // a read-only cache
  fs::create_directories(repo / "snapshots", code);
  write_if_possible(file, bytes);
}

// Is it a file, and was it written at most so many seconds ago? max_age_s < 0: however long ago.
bool is_young_file(const char* file, double max_age_s = -1) {
  struct stat info {};
  if (::stat(file, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (max_age_s < 0) return true;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const double age = static_cast<double>(now.tv_sec - info.st_mtim.tv_sec) +
                     1e-9 * static_cast<double>(now.tv_nsec - info.st_mtim.tv_nsec);
  return age >= -60 && age <= max_age_s;  // from the future: a clock was set; not to be trusted
}

std::optional<std::string> commit_in(const fs::path& file, double max_age_s = -1) {
  if (!is_young_file(file.c_str(), max_age_s)) return std::nullopt;
  std::optional<std::string> commit = read_file_if_there(file);  // another process may move it meanwhile
  if (commit && !is_commit(*commit)) return std::nullopt;        // of a power cut; the next answer replaces it
  return commit;
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    if (at->is_regular_file()) names.push_back(at->path().lexically_relative(folder).generic_string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

HubCache::HubCache(fs::path root, bool links) : root_(fs::absolute(root)), links_(links) {}

fs::path HubCache::folder(const Repo& repo) const { return root_ / repo_folder_name(repo); }

fs::path HubCache::snapshot(const Repo& repo, const std::string& commit) const {
  if (!is_commit(commit)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a commit of 40 hexadecimal digits",
                 .got = "'" + commit.substr(0, 100) + "'",
                 .next = "give a whole commit; Hub::commit() finds it for a branch or a tag"});
  }
  return folder(repo) / "snapshots" / commit;
}

fs::path HubCache::blob(const Repo& repo, const std::string& etag) const {
  check_relative_path(etag, "blob");
  return folder(repo) / "blobs" / etag;
}

fs::path HubCache::lock_file(const Repo& repo, const std::string& etag) const {
  check_relative_path(etag, "blob");
  return root_ / ".locks" / repo_folder_name(repo) / (etag + ".lock");
}

std::optional<std::string> HubCache::read_ref(const Repo& repo, const std::string& revision, double max_age_s) const {
  if (is_commit(revision)) return revision;
  check_relative_path(revision, "revision");
  const fs::path here = folder(repo) / "refs" / revision, early = folder(repo) / kEarlyRefs / revision;
  if (max_age_s < 0) {  // the latest first only where its age counts
    if (auto commit = commit_in(here)) return commit;
  }
  if (auto commit = commit_in(early, max_age_s)) return commit;
  return commit_in(here, max_age_s);  // the last look: refs move from early to here, by other processes too
}

void HubCache::write_ref(const Repo& repo, const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  check_relative_path(revision, "revision");
  std::error_code code;
  const fs::path early = folder(repo) / kEarlyRefs / revision;
  const bool is_here = fs::is_directory(snapshot(repo, commit), code);
  const fs::path file = is_here ? folder(repo) / "refs" / revision : early;
  if (commit_in(file) == commit) {  // confirmed just now: its age counts from here
    fs::last_write_time(file, fs::file_time_type::clock::now(), code);
  } else if (is_here) {
    write_if_possible(file, commit);
  } else {
    note(folder(repo), file, commit);
  }
  if (is_here) fs::remove(early, code);
}

fs::path HubCache::begin_snapshot(const Repo& repo, const std::string& commit) const {
  fs::path made = snapshot(repo, commit);
  std::error_code code;
  if (fs::is_directory(made, code)) return made;
  fs::create_directories(made, code);
  if (code) return made;  // a read-only cache; who writes into it will say so
  const fs::path early = folder(repo) / kEarlyRefs;
  for (const std::string& name : files_below(early)) {
    if (commit_in(early / name) != commit) continue;
    const fs::path ref = folder(repo) / "refs" / name;
    fs::create_directories(ref.parent_path(), code);
    fs::rename(early / name, ref, code);  // another process may have been first
  }
  return made;
}

std::vector<std::string> HubCache::refs(const Repo& repo) const { return files_below(folder(repo) / "refs"); }

std::optional<fs::path> HubCache::find(const Repo& repo, const std::string& commit, const std::string& path) const {
  check_relative_path(path, "file");
  fs::path file = snapshot(repo, commit) / path;
  if (!is_young_file(file.c_str())) return std::nullopt;  // also a link whose blob was removed
  return file;
}

std::vector<TreeEntry> HubCache::lacking(const Repo& repo, const std::string& commit,
                                         std::vector<TreeEntry> files) const {
  const std::string folder = snapshot(repo, commit).string() + "/";
  std::erase_if(files, [&](const TreeEntry& entry) {
    check_relative_path(entry.path, "file");
    return is_young_file((folder + entry.path).c_str());
  });
  return files;
}

bool HubCache::known_absent(const Repo& repo, const std::string& commit, const std::string& path) const {
  check_relative_path(path, "file");
  return is_commit(commit) && is_young_file((folder(repo) / ".no_exist" / commit / path).c_str());
}

void HubCache::mark_absent(const Repo& repo, const std::string& commit, const std::string& path) const {
  check_relative_path(path, "file");
  if (is_commit(commit)) note(folder(repo), folder(repo) / ".no_exist" / commit / path, "");
}

fs::path HubCache::publish(const Repo& repo, const std::string& commit, const std::string& path,
                           const std::string& etag, bool fresh) const {
  check_relative_path(path, "file");
  fs::path pointer = begin_snapshot(repo, commit) / path, content = blob(repo, etag);
  std::error_code code;
  fs::create_directories(pointer.parent_path(), code);
  if (code) {
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "the folder " + pointer.parent_path().string(),
                 .got = code.message(),
                 .next = "check permissions and space; or the repository has a file and a folder of one name"});
  }
  // Temporary names live in blobs/: a snapshot never shows one.
  const fs::path temporary = temporary_beside(content, ".tmp");
  if (links_work()) {
    const fs::path target = content.lexically_relative(pointer.parent_path());
    if (fs::read_symlink(pointer, code) == target) return pointer;
    fs::create_symlink(target, pointer, code);
    if (!code) return pointer;
    fs::create_symlink(target, temporary);  // something else is in the way: a dead link, or a file of link-less days
    fs::rename(temporary, pointer);
  } else if (fresh) {
    fs::rename(content, pointer);
  } else {
    try {
      fs::copy_file(content, temporary);
      fs::rename(temporary, pointer);
    } catch (...) {
      fs::remove(temporary, code);
      throw;
    }
  }
  return pointer;
}

bool HubCache::links_work() const {
  if (!links_) return false;
  static std::mutex mutex;
  static std::map<fs::path, bool> known;  // a property of the file system, asked once
  const std::lock_guard lock(mutex);
  const auto [at, added] = known.try_emplace(root_, false);
  if (added) {
    const fs::path probe = temporary_beside(root_ / "probe", ".link");
    std::error_code code;
    fs::create_symlink("target", probe, code);
    at->second = !code;
    fs::remove(probe, code);
    if (!at->second) log_info(root_.string(), " has no symbolic links: snapshots hold files");
  }
  return at->second;
}

// A kernel's list is not where Python would find it, nor in its form.
fs::path HubCache::own_tree_file(const Repo& repo, const std::string& commit) const {
  return folder(repo) / (repo.type == RepoType::kKernel ? "hotswap/trees/" + commit : "trees/" + commit + ".json");
}

std::optional<fs::path> HubCache::tree_file(const Repo& repo, const std::string& commit) const {
  if (!is_commit(commit)) return std::nullopt;
  for (fs::path file : {own_tree_file(repo, commit), folder(repo) / "trees" / (commit + ".json")}) {  // then Python's
    if (is_young_file(file.c_str())) return file;
  }
  return std::nullopt;
}

std::optional<std::vector<TreeEntry>> HubCache::read_tree(const Repo& repo, const std::string& commit) const {
  const auto file = tree_file(repo, commit);
  if (!file) return std::nullopt;
  try {
    return file->extension() == ".json" ? parse_tree_json(read_file(*file)) : parse_tree_lines(read_file(*file));
  } catch (const Error& error) {  // only ever a saving: asked again, then written anew
    log_warning("an unreadable list of files is ignored: ", file->string(), ": ", error.what());
    return std::nullopt;
  }
}

void HubCache::write_tree(const Repo& repo, const std::string& commit, const std::vector<TreeEntry>& entries) const {
  if (!is_commit(commit)) return;
  note(folder(repo), own_tree_file(repo, commit),
       repo.type == RepoType::kKernel ? tree_as_lines(entries) : tree_as_json(entries));
}

fs::path HubCache::answer_file(const Repo& repo, const std::string& key) const {
  const auto hash = sha256({reinterpret_cast<const uint8_t*>(key.data()), key.size()});
  return folder(repo) / "hotswap" / (to_hex(hash).substr(0, 32) + ".json");
}

std::optional<std::string> HubCache::read_answer(const Repo& repo, const std::string& key, double max_age_s) const {
  const fs::path file = answer_file(repo, key);
  if (!is_young_file(file.c_str(), max_age_s)) return std::nullopt;
  return read_file_if_there(file);
}

void HubCache::write_answer(const Repo& repo, const std::string& key, const std::string& json) const {
  note(folder(repo), answer_file(repo, key), json);
}

void HubCache::prepare(const Repo& repo) const {
  for (const fs::path& made : {folder(repo) / "blobs", folder(repo) / "snapshots", folder(repo) / "refs"}) {
    std::error_code code;
    fs::create_directories(made, code);
    if (code) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = "the folder " + made.string(),
                   .got = code.message(),
                   .next = "check its permissions, or set HF_HUB_CACHE to a folder that you may write to"});
    }
  }
  const fs::path tag = root_ / "CACHEDIR.TAG";
  if (!fs::exists(tag)) {
    replace_file(tag,
                 "Signature: 8a477f597d28d172789f06886806bc55\n"
                 "# This file is a cache directory tag created by huggingface_hub.\n"
                 "# For information about cache directory tags, see:\n"
                 "#\thttps://bford.info/cachedir/\n");
  }
}

}  // namespace hotswap
