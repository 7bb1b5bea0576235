#include "hotswap/base/json_fault.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

TEST(JsonFault, NamesWhatStandsWhereAndWhatCould) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "the end of the text at byte 1 (line 1, column 1), not a value"},
      {"{\"a\": 1,}", "'}' at byte 9 (line 1, column 9), not a key in double quotes"},
      {"{\"a\": 1\n \"b\": 2}", "'\"' at byte 10 (line 2, column 2), not ',' or '}'"},
      {"{a: 1}", "'a' at byte 2 (line 1, column 2), not a key in double quotes, or '}'"},
      {"{'a': 1}", "''' at byte 2 (line 1, column 2), not a key in double quotes, or '}'"},
      {"{\"a\" 1}", "'1' at byte 6 (line 1, column 6), not ':'"},
      {"[1, 2", "the end of the text at byte 6 (line 1, column 6), not ',' or ']'"},
      {"[1, ]", "']' at byte 5 (line 1, column 5), not a value"},
      {"[None]", "'None' at byte 2 (line 1, column 2), not a value or ']'"},
      {"[nulll]", "'nulll' at byte 2 (line 1, column 2), not a value or ']'"},
      {"[1] x", "'x' at byte 5 (line 1, column 5), not the end of the text"},
      {"[01]", "'1' at byte 3 (line 1, column 3), not ',' or ']'"},
      {"[1.]", "']' at byte 4 (line 1, column 4), not a digit"},
      {"[1e999]", "'1e999' at byte 2 (line 1, column 2), not a number that fits 64 bits"},
      {"[\"a", "the end of the text at byte 4 (line 1, column 4), not the '\"' that ends the text begun before"},
      {"[\"a\nb\"]",
       "the byte 0x0A at byte 4 (line 1, column 4), not a character, or \\n, \\t, \\u00xx for one of control"},
      {"[\"\xFF\"]", "the byte 0xFF at byte 3 (line 1, column 3), not a character of UTF-8"},
      {"[\"\\x\"]", "'\\' at byte 3 (line 1, column 3), not an escape: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX"},
      {"[\"\\ud800\"]", "'\\' at byte 3 (line 1, column 3), not a pair of surrogates, the high one first"},
  };
  for (const auto& [text, fault] : rows) EXPECT_EQ(json_fault(text), fault) << text;
  EXPECT_EQ(json_fault("\xEF\xBB\xBF [{}, [], {\"a\": -1.5e+3}, \"\\ud83d\\ude00 \xF0\x9F\x98\x80\", true, null]"), "");
}

// The parser decides what is JSON. Where the two differed, an error would have no words, or words without an error.
TEST(JsonFault, AgreesWithTheParserOnDamagedTexts) {
  const auto seed = test_support::test_seed();
  std::mt19937_64 random(seed);
  const std::string whole =
      "{\"a\": [1, -2.5e-3, true, null, {\"b\": \"x\\n\\u00e9\xC3\xA9\xF0\x9F\x98\x80\"}], \"c\": {}}";
  const std::string letters = "{}[],:\"\\/ue0123456789.-+tfn \n\x01\xC3\xA9\xED\xA0\x80\xF4\x90\xFF";
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      const char letter = letters[random() % letters.size()];
      if (random() % 3 == 0) {
        text.erase(at, 1);
      } else if (random() % 2 == 0) {
        text[at] = letter;
      } else {
        text.insert(at, 1, letter);
      }
    }
    if (random() % 8 == 0) text.resize(random() % text.size());
    const bool is_json = nlohmann::json::accept(text);
    refused += is_json ? 0 : 1;
    ASSERT_EQ(json_fault(text).empty(), is_json) << "seed " << seed << ": " << text << '\n' << json_fault(text);
  }
  EXPECT_GT(refused, 10000);
}

TEST(JsonFault, IsTheGotOfAnError) {
  const std::string message = test_support::message_of([] { Json::parse("{\"a\": 1,}", "config.json"); });
  EXPECT_NE(message.find("expected valid JSON in config.json; got '}' at byte 9"), std::string::npos) << message;
  EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
}

}  // namespace
}  // namespace hotswap
