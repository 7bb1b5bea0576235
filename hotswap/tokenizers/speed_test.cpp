// Our side of bench/tokenizer_speed.py: CPU time inside the process, as the other sides take it. Not run otherwise.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>

#include "hotswap/base/file.h"
#include "hotswap/base/test_support.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

std::string given(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr) return value;
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = name,
               .got = "no such variable",
               .next = "run bench/tokenizer_speed.py"});
}

TEST(TokenizerSpeed, DISABLED_Batch) {
  const Tokenizer tokenizer = Tokenizer::from_file(given("HOTSWAP_TEST_TOKENIZER"));
  const std::string text = read_file(given("HOTSWAP_TEST_TEXT"));
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  const EncodeOptions options{
      .add_special_tokens = false, .ids_only = true, .threads = std::atoi(given("HOTSWAP_TEST_THREADS").c_str())};
  double cpu = 0;
  double wall = 0;
  size_t tokens = 0;
  for (int round = 0; round < 2; ++round) {  // the first fills caches
    const std::clock_t cpu_start = std::clock();
    const auto start = std::chrono::steady_clock::now();
    const auto encodings = tokenizer.encode_batch(std::span<const std::string_view>(lines), options);
    cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    tokens = 0;
    for (const Encoding& encoding : encodings) tokens += encoding.ids.size();
  }
  std::printf("{\"cpu\": %.6f, \"wall\": %.6f, \"tokens\": %zu}\n", cpu, wall, tokens);
}

}  // namespace
}  // namespace hotswap
