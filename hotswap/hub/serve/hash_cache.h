// The hashes of served files, kept from one start of serve-hub to the next in DIR/.serve-hub-hashes.
//
// A file is known by inode, size and the times of its last change, not by its path: whoever changes it changes ctime,
// whatever he does about mtime, and links to one file share its hashes. A line each; a line that makes no sense is as
// if it were not there, which costs a reading of that file.
#pragma once

#include <sys/stat.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace hotswap {

struct FileStamp {
  uint64_t inode = 0;
  int64_t size = 0, modified_ns = 0, changed_ns = 0;
  static FileStamp of(const struct stat& info);
  auto operator<=>(const FileStamp&) const = default;
};

struct FileHashes {
  std::string git_sha1, sha256;
};

class HashCache {
 public:
  explicit HashCache(std::filesystem::path file) : file_(std::move(file)) {}

  // What is known, also by another process that has written the file since.
  std::optional<FileHashes> find(const FileStamp& stamp);
  void add(const FileStamp& stamp, FileHashes hashes);
  // Writes the file where there is something new; a folder that cannot be written is a warning, once. only_found:
  // without those that nobody has asked for or added.
  void save(bool only_found = false);

 private:
  void read_if_changed();

  const std::filesystem::path file_;
  std::mutex mutex_;
  std::map<FileStamp, FileHashes> hashes_;
  std::set<FileStamp> found_;
  FileStamp read_;  // of file_
  bool dirty_ = false, told_ = false;
};

}  // namespace hotswap
