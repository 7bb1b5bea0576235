// For the tests of this room: Python as an oracle, files with chosen defects.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "hotswap/base/test_support.h"

namespace hotswap::test_support {

inline std::filesystem::path data_folder() { return std::filesystem::path(HOTSWAP_SOURCE_DIR) / "../shared/data"; }

// Without write_file's fsync, which costs milliseconds: these tests write thousands of files.
inline void put_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

struct PythonRun {
  int status = 0;
  std::string output;  // stdout and stderr
};

// Runs a script of the test's own; it must not hang.
inline PythonRun run_python(const TempFolder& folder, const std::string& script) {
  put_file(folder / "script.py", script);
  // A sanitizer's runtime, preloaded or not, is nothing for Python.
  const std::string command =
      cat("cd ", folder.path().string(), " && env -u LD_PRELOAD timeout 300 ", HOTSWAP_TEST_PYTHON, " script.py 2>&1");
  PythonRun run;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) run.output.append(buffer.data(), n);
  run.status = ::pclose(pipe);
  return run;
}

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

}  // namespace hotswap::test_support
