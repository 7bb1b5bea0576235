// Files: whole reads, read-only maps, writes that are never seen half done, and locks between processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hotswap {

// The bytes of a file. Error when it cannot be read.
std::string read_file(const std::filesystem::path& file);

// The same; nullopt when there is no such file. One look, where asking first would leave time for it to be removed.
std::optional<std::string> read_file_if_there(const std::filesystem::path& file);

// Writes a temporary file beside the target, fsyncs, renames: readers see the old file or the whole new one.
void write_file(const std::filesystem::path& file, std::string_view bytes);
// The same without fsync: as whole for readers, and after a power cut perhaps gone. For what can be made again.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

// "<file>.<8 hex digits><suffix>": a name for a file that is coming into being; huggingface_hub's tools know the shape.
std::filesystem::path temporary_beside(const std::filesystem::path& file, const std::string& suffix);

// The same for content that is produced piece by piece; without commit() nothing remains on disk.
//   AtomicFile out("model.safetensors"); out.write(header); out.write(data); out.commit();
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target, bool durable = true);  // durable: commit() syncs
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::string_view bytes);
  void write(const void* data, size_t size) { write({static_cast<const char*>(data), size}); }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool durable_;
  int fd_ = -1;
};

// A read-only memory map of a whole file. Private: a later change of the file by rename does not touch it.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// An exclusive flock, held as long as the object lives. The lock file itself stays; a folder is locked as such.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace hotswap
