// For tests with random inputs: the same ones each run, so that a red test is red again; HOTSWAP_TEST_SEED=N tries
// others, and tests must pass with any.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "hotswap/base/env.h"

namespace hotswap {

inline uint64_t test_seed() { return std::strtoull(env(EnvVar::kTestSeed).value_or("0").c_str(), nullptr, 10); }

}  // namespace hotswap
