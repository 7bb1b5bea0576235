// What the fuzz targets of several rooms share.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace hotswap::test_support {

// Ends the program where a promise is broken: libFuzzer keeps the input, a test dies.
inline void must(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

}  // namespace hotswap::test_support
