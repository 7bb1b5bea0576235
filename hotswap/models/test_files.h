// For the tests of this room: Python as an oracle, files with chosen defects.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "hotswap/base/test_data.h"

namespace hotswap::test_support {

// Without write_file's fsync, which costs milliseconds: these tests write thousands of files.
inline void put_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Runs a script of the test's own, in that folder.
inline PythonRun run_python(const TempFolder& folder, const std::string& script) {
  put_file(folder / "script.py", script);
  return run_script(folder / "script.py", "", folder.path());
}

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

}  // namespace hotswap::test_support
