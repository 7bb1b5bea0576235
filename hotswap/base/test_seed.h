// For tests with random inputs: the same ones each run, so that a red test is red again; HOTSWAP_TEST_SEED=N tries
// others, and tests must pass with any.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace hotswap {

inline uint64_t test_seed() {
  const char* given = std::getenv("HOTSWAP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
}

}  // namespace hotswap
