#include "hotswap/hub/serve/hash_cache.h"

#include <fstream>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec; }

}  // namespace

FileStamp FileStamp::of(const struct stat& info) {
  return {.inode = info.st_ino,
          .size = info.st_size,
          .modified_ns = nanoseconds(info.st_mtim),
          .changed_ns = nanoseconds(info.st_ctim)};
}

std::optional<FileHashes> HashCache::find(const FileStamp& stamp) {
  const std::lock_guard lock(mutex_);
  auto known = hashes_.find(stamp);
  if (known == hashes_.end()) {
    read_if_changed();
    known = hashes_.find(stamp);
  }
  if (known == hashes_.end()) return std::nullopt;
  found_.insert(stamp);
  return known->second;
}

void HashCache::add(const FileStamp& stamp, FileHashes hashes) {
  const std::lock_guard lock(mutex_);
  hashes_[stamp] = std::move(hashes);
  found_.insert(stamp);
  dirty_ = true;
}

void HashCache::save(bool only_found) {
  const std::lock_guard lock(mutex_);
  read_if_changed();
  if (only_found) {
    dirty_ = std::erase_if(hashes_, [&](const auto& known) { return !found_.contains(known.first); }) > 0 || dirty_;
  }
  if (!dirty_) return;
  std::ostringstream lines;
  for (const auto& [stamp, hashes] : hashes_) {
    lines << stamp.inode << ' ' << stamp.size << ' ' << stamp.modified_ns << ' ' << stamp.changed_ns << ' '
          << hashes.git_sha1 << ' ' << hashes.sha256 << '\n';
  }
  dirty_ = false;
  try {
    replace_file(file_, lines.str());
  } catch (const Error& error) {
    if (!std::exchange(told_, true)) log_warning("hashes are not kept for the next start: ", error.what());
  }
}

void HashCache::read_if_changed() {
  struct stat info {};
  if (::stat(file_.c_str(), &info) != 0 || FileStamp::of(info) == read_) return;
  read_ = FileStamp::of(info);
  std::ifstream in(file_);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    FileStamp stamp;
    FileHashes hashes;
    words >> stamp.inode >> stamp.size >> stamp.modified_ns >> stamp.changed_ns >> hashes.git_sha1 >> hashes.sha256;
    if (!words || hashes.git_sha1.size() != 40 || hashes.sha256.size() != 64) continue;
    if (is_hex(hashes.git_sha1) && is_hex(hashes.sha256)) hashes_.emplace(stamp, std::move(hashes));
  }
}

}  // namespace hotswap
