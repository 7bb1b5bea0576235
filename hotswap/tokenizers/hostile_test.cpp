// Files that are broken or made to harm: each ends in an Error that names the part.
#include <gtest/gtest.h>

#include "hotswap/base/sha256.h"
#include "hotswap/base/test_support.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

// A tokenizer.json with this model and these members.
std::string file(const std::string& model, const std::string& normalizer = "null",
                 const std::string& post_processor = "null", const std::string& more = "") {
  return cat(R"({"version":"1.0","added_tokens":[],"normalizer":)", normalizer,
             R"(,"pre_tokenizer":null,"post_processor":)", post_processor, R"(,"decoder":null,"model":)", model, more,
             "}");
}

std::string refusal_of_text(const std::string& text) {
  return message_of([&] { Tokenizer::from_json(text, "t.json"); });
}

constexpr const char* kUnigram = R"({"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1.5],["ab",-2]]})";
constexpr const char* kWordPiece =
    R"({"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"a":0}})";

TEST(HostileTokenizer, Unigram) {
  const auto model = [](const char* unknown, const char* vocabulary) {
    return refusal_of_text(file(cat(R"({"type":"Unigram","unk_id":)", unknown, ",\"vocab\":", vocabulary, "}")));
  };
  expect_has(model("0", "[]"), {"pieces with scores"});
  expect_has(model("0", R"({"a":0})"), {"pieces with scores"});
  expect_has(model("1", R"([["a",0]])"), {"unk_id"});
  expect_has(model("-1", R"([["a",0]])"), {"unk_id"});
  expect_has(model("99999999999", R"([["a",0]])"), {"unk_id"});
  expect_has(model("0", R"([["a"]])"), {"without a score"});
  expect_has(model("0", R"([["a",0,0]])"), {"a number"});
  expect_has(model("0", R"([["a","b"]])"), {"a string"});
  expect_has(model("0", R"([[0,"a"]])"), {"a number"});
  expect_has(model("0", R"(["a"])"), {"a string"});
  expect_has(model("0", R"([["a",null]])"), {"null"});
  expect_has(model("0", R"([["a",[0]]])"), {"an array"});
  expect_has(model("0", R"([{"a":0}])"), {"an object"});
  expect_has(model("0", R"([["a",1e999]])"), {"JSON"});
  const std::string full = file(kUnigram);
  for (size_t size = 0; size < full.size(); ++size)
    EXPECT_NE(refusal_of_text(full.substr(0, size)), "no error") << size;
  const Tokenizer without =
      Tokenizer::from_json(file(R"({"type":"Unigram","unk_id":null,"vocab":[["a",0]]})"), "t.json");
  EXPECT_EQ(without.ids("aa"), (std::vector<int64_t>{0, 0}));
  expect_has(message_of([&] { without.ids("ab"); }), {"unk_id"});
}

TEST(HostileTokenizer, WordPieceAndWordLevel) {
  const Tokenizer pieces = Tokenizer::from_json(file(kWordPiece), "t.json");
  expect_has(message_of([&] { pieces.ids("b"); }), {"'[UNK]'"});
  std::string endless = kWordPiece;
  endless.replace(endless.find("100"), 3, "-1");
  expect_has(refusal_of_text(file(endless)), {"max_input_chars_per_word"});
  const Tokenizer words =
      Tokenizer::from_json(file(R"({"type":"WordLevel","unk_token":"<unk>","vocab":{"a":0}})"), "t.json");
  expect_has(message_of([&] { words.ids("b"); }), {"'<unk>'"});
  expect_has(refusal_of_text(file(R"({"type":"WordLevel","unk_token":"<unk>","vocab":[["a",0]]})")),
             {"the other kind"});
}

TEST(HostileTokenizer, PostProcessorsOfUnknownIds) {
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    const auto with = [&](const char* sep) {
      const char* flags = *type == 'R' ? R"(,"trim_offsets":true,"add_prefix_space":true)" : "";
      return refusal_of_text(
          file(kUnigram, "null", cat(R"({"type":")", type, R"(","cls":["<unk>",0],"sep":)", sep, flags, "}")));
    };
    EXPECT_EQ(with(R"(["a",1])"), "no error");
    expect_has(with(R"(["a",77])"), {"77"});
    expect_has(with(R"(["a",-1])"), {"-1"});
    expect_has(with(R"(["a"])"), {"1 elements"});
    expect_has(with(R"("a")"), {"sep"});
  }
}

std::string charsmap(std::vector<uint32_t> units, const std::string& texts) {
  units.insert(units.begin(), static_cast<uint32_t>(units.size() * 4));
  std::vector<uint8_t> bytes;
  for (const uint32_t unit : units) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<uint8_t>(unit >> shift));
  }
  bytes.insert(bytes.end(), texts.begin(), texts.end());
  return to_base64(bytes);
}

TEST(HostileTokenizer, Precompiled) {
  const auto normalizer = [](const std::string& table) {
    return cat(R"({"type":"Precompiled","precompiled_charsmap":")", table, "\"}");
  };
  const auto read = [&](const std::string& table) { return refusal_of_text(file(kUnigram, normalizer(table))); };
  const auto encode = [&](const std::string& table, const char* text) {
    return message_of([&] { Tokenizer::from_json(file(kUnigram, normalizer(table)), "t.json").ids(text); });
  };
  expect_has(read(""), {"double array"});
  expect_has(read("AAAA"), {"double array"});
  expect_has(read("AAA"), {"base64"});
  expect_has(read("AA=A"), {"base64"});
  expect_has(read("AAB="), {"base64"});
  expect_has(read("A\u00e9A"), {"base64"});
  expect_has(read("////////"), {"double array"});  // a size beyond the table
  expect_has(read(charsmap({0}, "\xff")), {"UTF-8"});
  const uint32_t far_away = 0x1FFFFF << 10 | 1 << 9;
  expect_has(encode(charsmap({far_away}, ""), "a"), {"double array of 1 units"});
  std::vector<uint32_t> units(512);
  units[0] = 256 << 10;
  units[256 ^ 'a'] = 1 << 10 | 1 << 8 | 'a';
  units[256 ^ 'a' ^ 1] = 1u << 31 | 7;  // after the texts
  expect_has(encode(charsmap(units, "x"), "a"), {"1 bytes of replacements"});
  units[256 ^ 'a' ^ 1] = 1u << 31 | 1;  // inside a character
  expect_has(encode(charsmap(units, "\u00e9"), "a"), {"characters"});
  units[256 ^ 'a' ^ 1] = 1u << 31;
  EXPECT_EQ(encode(charsmap(units, "b"), "a"), "no error");
  for (uint32_t& unit : units) unit = 0x41 << 10 | 'a';  // units that lead back to each other
  EXPECT_NE(encode(charsmap(units, "b"), std::string(1000, 'a').c_str()), "");
}

TEST(HostileTokenizer, OtherFormsAreNamed) {
  const test_support::TempFolder folder;
  expect_has(message_of([&] { Tokenizer::from_folder(folder.path()); }), {"none"});
  folder.write("spiece.model", "x");
  expect_has(message_of([&] { Tokenizer::from_folder(folder.path()); }), {"spiece.model"});
  expect_has(message_of([&] { Tokenizer::from_file(folder / "spiece.model"); }), {"SentencePiece"});
}

TEST(HostileTokenizer, TruncationAndPadding) {
  const auto with = [](const char* key, const char* value) {
    return refusal_of_text(file(kUnigram, "null", "null", cat(",\"", key, "\":", value)));
  };
  EXPECT_EQ(
      with(
          "padding",
          R"({"strategy":{"Fixed":3},"direction":"Left","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"a"})"),
      "no error");
  expect_has(with("truncation", R"({"max_length":3,"strategy":"Sometimes","stride":0})"), {"'Sometimes'"});
  expect_has(with("truncation", R"({"max_length":3,"strategy":"OnlyFirst","stride":0,"direction":"Up"})"), {"'Up'"});
  expect_has(with("truncation", R"({"strategy":"OnlyFirst","stride":0})"), {"max_length"});
  expect_has(with("padding", R"({"strategy":"Longest","direction":"Left","pad_id":0,"pad_type_id":0,"pad_token":"a"})"),
             {"'Longest'"});
}

}  // namespace
}  // namespace hotswap
