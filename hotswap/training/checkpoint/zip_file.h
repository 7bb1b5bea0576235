// ZIP archives as torch.save writes them: every entry is stored, none is compressed. For sources of this folder.
//
// A file is taken for hostile: every offset and length is checked before it is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/base/file.h"

namespace hotswap {

class ZipReader {
 public:
  // Error where the file is no archive, is cut off, or has compressed or encrypted entries.
  explicit ZipReader(const std::filesystem::path& file);
  const std::filesystem::path& path() const { return map_.path(); }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return entries_.contains(name); }
  // The bytes of an entry, in the file's memory, which lives as long as the reader. Error where there is none.
  std::span<const uint8_t> entry(const std::string& name) const;

 private:
  struct Range {
    uint64_t offset, size;
  };
  struct Directory {
    uint64_t offset, count;
  };
  Directory find_directory() const;
  uint64_t read_entry(uint64_t at);  // of the directory; where the next one begins
  uint64_t number(uint64_t at, int bytes) const;
  [[noreturn]] void fail(const std::string& got) const;

  MappedFile map_;
  std::map<std::string, Range> entries_;
};

// Written piece by piece into a temporary file, which commit() renames.
class ZipWriter {
 public:
  explicit ZipWriter(const std::filesystem::path& target) : out_(target) {}
  void add(const std::string& name, std::string_view bytes);
  void commit();

 private:
  struct Entry {
    std::string name;
    uint64_t offset, size;
    uint32_t crc;
  };
  void write(const std::string& bytes);

  AtomicFile out_;
  uint64_t written_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace hotswap
