// What is written under a name of its own beside its target, and appears there when it is whole.
//
//   const Staged staged("out");   // a file or a folder; the caller makes it at staged.path()
//   staged.commit();              // without it nothing remains
#pragma once

#include <filesystem>
#include <system_error>

#include "hotswap/base/file.h"

namespace hotswap {

class Staged {
 public:
  explicit Staged(const std::filesystem::path& target)
      : target_(target), path_(temporary_beside(target, ".incomplete")) {}
  ~Staged() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  const std::filesystem::path& path() const { return path_; }

  // Replaces what is there.
  void commit() const {
    namespace fs = std::filesystem;
    if (!fs::is_directory(target_)) return fs::rename(path_, target_);
    // A folder, which a rename would replace only where it is empty.
    const fs::path before = temporary_beside(target_, ".replaced");
    fs::rename(target_, before);
    fs::rename(path_, target_);
    std::error_code ignored;
    fs::remove_all(before, ignored);
  }

 private:
  std::filesystem::path target_, path_;
};

}  // namespace hotswap
