// For tests: a vocabulary of bytes, and answers drawn by a grammar.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "hotswap/base/test_support.h"
#include "hotswap/grammar/xgrammar.h"

namespace hotswap::test_support {

inline constexpr int64_t kEndOfBytes = 256;

inline grammar::TokenBytes byte_tokens() {
  grammar::TokenBytes tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.bytes.emplace_back(1, static_cast<char>(byte));
  tokens.bytes.emplace_back();
  tokens.ends = {kEndOfBytes};
  return tokens;
}

// Skips where xgrammar is not installed; HOTSWAP_GRAMMAR names another folder.
class WithXgrammar : public testing::Test {
 protected:
  void SetUp() override {
    const auto folder = grammar::find_xgrammar();
    if (!folder) GTEST_SKIP() << folder.why();
    engine = grammar::load_xgrammar(*folder, byte_tokens());
  }
  // Whether the grammar allows the whole text, byte by byte, and its end.
  bool takes(const std::string& ebnf, const std::string& text) const {
    const auto matcher = engine->compile(ebnf)->matcher();
    for (const char c : text) {
      if (!matcher->accept(static_cast<unsigned char>(c))) return false;
    }
    return matcher->accept(kEndOfBytes);
  }
  // A text that the grammar allows, or the beginning of one where `max` bytes end none.
  std::string drawn(const grammar::CompiledGrammar& compiled, std::mt19937_64& random, bool& ended,
                    int max = 2000) const {
    const auto matcher = compiled.matcher();
    std::string text;
    std::vector<int32_t> words(9);
    for (ended = false; !ended && static_cast<int>(text.size()) < max;) {
      matcher->allowed(words);
      std::vector<int64_t> ids;
      for (int64_t id = 0; id <= kEndOfBytes; ++id) {
        // ASCII twice as likely as halves of characters, and what ends a value more likely still.
        const char c = static_cast<char>(id);
        const int weight = id == kEndOfBytes || c == '"' || c == '}' || c == ']' ? 20 : id < 128 ? 2 : 1;
        if (words[id / 32] >> (id % 32) & 1) ids.insert(ids.end(), weight, id);
      }
      if (ids.empty()) {
        ADD_FAILURE() << "nothing may follow " << text;
        return text;
      }
      const int64_t id = ids[random() % ids.size()];
      EXPECT_TRUE(matcher->accept(id)) << text;
      ended = id == kEndOfBytes;
      if (!ended) text += static_cast<char>(id);
    }
    return text;
  }
  std::unique_ptr<grammar::GrammarEngine> engine;
};

}  // namespace hotswap::test_support
