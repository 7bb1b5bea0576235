// What the fuzz targets of several rooms share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace hotswap::test_support {

// Ends the program where a promise is broken: libFuzzer keeps the input, a test dies.
inline void must(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

// Calls `run` with each file of a folder. -> how many there are
template <class Run>
int each_kept_input(const std::filesystem::path& folder, const Run& run) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    run(entry.path());
    ++inputs;
  }
  return inputs;
}

}  // namespace hotswap::test_support
