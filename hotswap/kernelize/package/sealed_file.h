// A copy of a file in memory that nobody can change, under a name of its own: what was hashed is what is loaded,
// however soon after that the file on the disk is replaced.
//
//   SealedFile library("/cache/.../_norm_cpu_1a2b3c4.abi3.so");
//   verify(library.bytes());
//   if (dlopen(library.name().c_str(), RTLD_NOW) != nullptr) library.keep_name();
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace hotswap {

class SealedFile {
 public:
  // Error where it cannot be read, or where the system has no sealed memory (Linux before 3.17).
  explicit SealedFile(const std::filesystem::path& file);
  ~SealedFile();
  SealedFile(const SealedFile&) = delete;
  SealedFile& operator=(const SealedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  std::string name() const;  // /proc/self/fd/N
  // The name stays these bytes' as long as the process lives: dlopen takes an equal name for a library that it has.
  void keep_name() { kept_ = true; }

 private:
  int fd_ = -1;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool kept_ = false;
};

}  // namespace hotswap
