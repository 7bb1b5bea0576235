// For this room's tests: errors as text, folders that disappear.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <initializer_list>
#include <string>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"

namespace hotswap::test_support {

// The Error's text, or "no error".
template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Fails the test where `text` lacks one of `parts`.
inline void expect_has(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), text.npos) << "no '" << part << "' in: " << text;
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hotswap-hub-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw Error({.wanted = "a temporary folder", .got = "none at " + name, .next = "check TMPDIR"});
    }
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    write_file(file, bytes);
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace hotswap::test_support
