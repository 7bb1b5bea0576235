// For every room's tests: errors as text, folders that disappear, environment variables for a while, random inputs that
// are the same each run.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/own_binary_path.h"

namespace hotswap::test_support {

// The same inputs each run, so that a red test is red again; HOTSWAP_TEST_SEED=N tries others, and tests must pass with
// any.
inline uint64_t test_seed() { return std::strtoull(env(EnvVar::kTestSeed).value_or("0").c_str(), nullptr, 10); }

// A library that is built for tests, by its file's name: in lib/ beside the program's folder, wherever both were moved.
inline std::filesystem::path test_library(const std::string& name) {
  return own_binary_path()->parent_path().parent_path() / "lib" / name;
}

// Bytes that neither repeat nor compress.
inline std::string noise(size_t size, uint32_t seed = 1) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

// The text of the Error that `call` must throw, or "no error".
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
    std::string name = (std::filesystem::temp_directory_path() / "hotswap-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error({.kind = ErrorKind::kUnavailable,
                   .wanted = "a temporary folder",
                   .got = "none at " + name,
                   .next = "check TMPDIR"});
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
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    write_file(file, bytes);
    return file;
  }

 private:
  std::filesystem::path path_;
};

class ScopedEnv {  // as it was before when the object goes
 public:
  ScopedEnv(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) before_ = old;
    set(value);
  }
  ~ScopedEnv() { set(before_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    value ? ::setenv(name_.c_str(), value->c_str(), 1) : ::unsetenv(name_.c_str());
  }
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace hotswap::test_support
