// A file while it is downloaded, in pieces that may come in any order and by several connections; and the checks that
// it must pass before it becomes a blob.
//
// On disk: <etag>.<8 hex>.pieces.incomplete holds the content and behind it one byte a piece, 1 when the piece is
// there. The byte is written after the piece. The writer holds a lock on the file, which the system drops when it dies.
// A process that is killed leaves the file; the next one that wants the blob (and holds its lock) takes it over by
// renaming it, and asks only for what is missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap {

// The hash that an ETag stands for: SHA-256 of the content (64 digits), git's SHA-1 of a blob (40 digits), or none.
class ContentHash {
 public:
  ContentHash(const std::string& etag, int64_t size);  // git's hash begins with the size
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;
  bool known() const { return context_ != nullptr; }
  void update(std::string_view bytes);
  std::string finish();  // hexadecimal; empty when there is no hash to check

 private:
  void* context_ = nullptr;  // EVP_MD_CTX
};

class PartialFile {
 public:
  static constexpr int64_t kPiece = 1 << 20;

  // Beside `blob`. adopt: go on with what a killed process left, where there is such a file.
  PartialFile(std::filesystem::path blob, int64_t size, bool adopt);
  // Closes. What came stays for the next process unless commit() or remove() came before; a file without one whole
  // piece is of no use, and goes.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int64_t size() const { return size_; }
  int64_t pieces() const { return static_cast<int64_t>(done_.size()); }
  int64_t piece_begin(int64_t piece) const { return piece * kPiece; }
  int64_t piece_end(int64_t piece) const { return std::min(size_, (piece + 1) * kPiece); }
  bool done(int64_t piece) const { return done_[static_cast<size_t>(piece)].load(std::memory_order_acquire) != 0; }
  int64_t bytes_done() const;
  // Runs of missing bytes, [first, last] each, none longer than `most`.
  std::vector<std::pair<int64_t, int64_t>> missing(int64_t most) const;

  void write(int64_t offset, std::string_view bytes);  // any thread; ranges of different threads do not overlap
  void mark(int64_t piece);                            // all its bytes have been written
  std::string read(int64_t piece) const;

  void commit();  // cuts the piece map off, syncs, renames to the blob. Error where a piece is missing
  void remove();

 private:
  void create();
  bool adopt_one();
  bool adopt(const std::filesystem::path& left, int fd);
  void sign();
  int64_t whole_size() const;
  std::filesystem::path blob_, path_;
  int64_t size_;
  int fd_ = -1;
  std::vector<std::atomic<uint8_t>> done_;
};

}  // namespace hotswap
