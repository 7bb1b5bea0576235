// What the fuzz_test.cpp of each room shares. It lists its parsers and ends with
//
//   constexpr FuzzTarget kGrammarFuzz[] = {{"grammar", parse_grammar}};
//   HOTSWAP_FUZZ_TARGETS(grammar, kGrammarFuzz)
//
// Compiled with HOTSWAP_FUZZ_TARGET="grammar" that is a libFuzzer program (`./x check --fuzz`); otherwise a test that
// runs each parser over the inputs that are kept in hotswap/<room>/fuzz/<target>/: seeds, and what the fuzzers found.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "hotswap/base/file.h"
#include "hotswap/base/log.h"

#ifndef HOTSWAP_FUZZ_TARGET
#include <gtest/gtest.h>
#endif

namespace hotswap::test_support {

// A parser under test: any input ends in a value that keeps its promises, or in the error that `run` catches.
struct FuzzTarget {
  const char* name;
  void (*run)(const std::string& input);
};

// Ends the program where a promise is broken: libFuzzer keeps the input, a test dies.
inline void must(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

#ifdef HOTSWAP_FUZZ_TARGET

inline const FuzzTarget& chosen_target(std::span<const FuzzTarget> targets) {
  set_log_level(LogLevel::kError);
  for (const FuzzTarget& target : targets) {
    if (target.name == std::string_view(HOTSWAP_FUZZ_TARGET)) return target;
  }
  must(false, "this program has the target that cmake/fuzz.cmake names");
  std::abort();
}

#define HOTSWAP_FUZZ_TARGETS(room, targets)                                             \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {             \
    static const auto& target = hotswap::test_support::chosen_target(hotswap::targets); \
    target.run(std::string(reinterpret_cast<const char*>(data), size));                 \
    return 0;                                                                           \
  }

#else

inline void run_kept_inputs(const std::string& room, std::span<const FuzzTarget> targets) {
  for (const FuzzTarget& target : targets) {
    int inputs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(room + "/fuzz/" + target.name)) {
      SCOPED_TRACE(entry.path().string());
      target.run(read_file(entry.path()));
      ++inputs;
    }
    EXPECT_GT(inputs, 0) << target.name;
  }
}

#define HOTSWAP_FUZZ_TARGETS(room, targets)                                                         \
  TEST(FuzzCorpus, EveryKeptInputEndsInAValueOrAnError) {                                           \
    hotswap::test_support::run_kept_inputs(HOTSWAP_SOURCE_DIR "/hotswap/" #room, hotswap::targets); \
  }

#endif

}  // namespace hotswap::test_support
