#include "hotswap/tokenizers/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "hotswap/base/test_support.h"
#include "hotswap/tokenizers/regex.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;
using Ids = std::vector<int64_t>;

// A tokenizer.json with these members instead of the usual ones.
struct File {
  std::string added = "[]", normalizer = "null", pre_tokenizer = "null", post_processor = "null", decoder = "null";
  std::string vocab = R"({"<unk>":0,"a":1,"b":2,"ab":3,"c":4})", merges = R"(["a b"])";
  std::string options = R"("unk_token":"<unk>")", more;
  std::string text() const {
    return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)" + added + R"(,"normalizer":)" +
           normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer + R"(,"post_processor":)" + post_processor +
           R"(,"decoder":)" + decoder + R"(,"model":{"type":"BPE",)" + options + R"(,"vocab":)" + vocab +
           R"(,"merges":)" + merges + "}" + more + "}";
  }
  Tokenizer read() const { return Tokenizer::from_json(text(), "t.json"); }
};

std::string refusal(const File& file) {
  return message_of([&] { file.read(); });
}

TEST(Tokenizer, ReadsBothFormsOfMerges) {
  EXPECT_EQ(File{}.read().ids("abcx"), (Ids{3, 4, 0}));
  EXPECT_EQ(File{.merges = R"([["a","b"]])"}.read().ids("abcx"), (Ids{3, 4, 0}));
  EXPECT_EQ(File{.merges = "[]"}.read().ids("ab"), (Ids{1, 2}));
}

TEST(Tokenizer, UnknownCharacters) {
  EXPECT_EQ(File{}.read().ids("xyaz"), (Ids{0, 0, 1, 0}));
  EXPECT_EQ(File{.options = R"("unk_token":"<unk>","fuse_unk":true)"}.read().ids("xyaz"), (Ids{0, 1, 0}));
  EXPECT_EQ(File{.options = R"("unk_token":null)"}.read().ids("xyaz"), (Ids{1}));
  const Tokenizer without = File{.options = R"("unk_token":"<no>")"}.read();
  EXPECT_EQ(without.ids("ab"), (Ids{3}));
  expect_has(message_of([&] { without.ids("x"); }), {"'<no>'"});
}

TEST(Tokenizer, LongWordsMergeAsShortOnes) {
  File file{.vocab = R"({"a":0,"b":1,"aa":2,"aaaa":3,"ab":4,"aab":5})",
            .merges = R"(["a a","aa aa","a b","aa b"])",
            .options = R"("unk_token":null)"};
  const Tokenizer tokenizer = file.read();
  std::string word;
  for (int i = 0; i < 3000; ++i) word += i * i % 7 == 2 ? 'b' : 'a';
  Ids parts;  // the heap's way against the plain search's: a b ends every merge
  for (size_t at = 0; at < word.size();) {
    const size_t end = std::min(word.find('b', at), word.size() - 1) + 1;
    for (const int64_t id : tokenizer.ids(word.substr(at, end - at))) parts.push_back(id);
    at = end;
  }
  EXPECT_EQ(tokenizer.ids(word), parts);
  EXPECT_EQ(tokenizer.ids(std::string(1 << 20, 'a')), Ids(1 << 18, 3));
}

TEST(Tokenizer, RefusesHostileVocabularies) {
  expect_has(refusal({.vocab = R"({"a":1,"b":1})"}), {"each id once"});
  expect_has(refusal({.vocab = R"({"a":1,"a":2})"}), {"each token once"});
  expect_has(refusal({.vocab = R"({"a":-1})"}), {"negative"});
  expect_has(refusal({.vocab = R"({"a":1.5})"}), {"fraction"});
  expect_has(refusal({.vocab = R"({"a":2147483647})"}), {"2147483647"});
  expect_has(refusal({.vocab = R"({"a":99999999999999999999})"}), {"fraction"});
  expect_has(refusal({.vocab = R"({"a":4294967296})"}), {"2^31"});
  expect_has(refusal({.vocab = R"({"a":"1"})"}), {"string for 'a'"});
  expect_has(refusal({.vocab = R"({"a":[1]})"}), {"array for 'a'"});
  expect_has(refusal({.vocab = R"({"a":null})"}), {"null for 'a'"});
  expect_has(refusal({.vocab = "[]"}), {"an object of ids"});
  expect_has(refusal({.vocab = R"([["a",-1.5]])"}), {"an object of ids"});
  expect_has(refusal({.vocab = "{}", .merges = "[]"}), {"vocabulary"});
  expect_has(refusal({.merges = "{}"}), {"list of pairs"});
  expect_has(refusal({.merges = R"(["a z"])"}), {"'z' in merge 0"});
  expect_has(refusal({.merges = R"(["a b", "a c"])"}), {"'ac' in merge 1"});
  expect_has(refusal({.merges = R"(["ab"])"}), {"one blank"});
  expect_has(refusal({.merges = R"(["a b c"])"}), {"one blank"});
  expect_has(refusal({.merges = R"([["a"]])"}), {"1 strings"});
  expect_has(refusal({.merges = R"([["a","b","c"]])"}), {"three"});
  expect_has(refusal({.merges = R"([["a",["b"]]])"}), {"array"});
  expect_has(refusal({.merges = R"([[1,2]])"}), {"number"});
  expect_has(refusal({.merges = R"([{"a":"b"}])"}), {"object"});
}

TEST(Tokenizer, RefusesHostileDocuments) {
  const auto read = [](const std::string& text) { return message_of([&] { Tokenizer::from_json(text, "t.json"); }); };
  const std::string good = File{}.text();
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(read(good.substr(0, size)), "no error") << size;
  for (const char* text :
       {"", "[]", "null", "3", "\"x\"", "{}", R"({"model":3})", R"({"model":[]})", R"({"model":{"vocab":{"a":0}}})"}) {
    EXPECT_NE(read(text), "no error") << text;
  }
  expect_has(read(std::string(100000, '[')), {"deep"});
  expect_has(read("{\"a\":" + std::string(100000, '[')), {"deep"});
  expect_has(read("{\"a\":\"\xFF\"}"), {"valid JSON"});
  expect_has(read(R"({"a":"\ud800"})"), {"valid JSON"});
  expect_has(refusal({.more = R"(,"version":"1.0")"}), {"twice"});
  expect_has(refusal({.more = R"(,"extra":1)"}), {"'extra'"});
  expect_has(refusal({.options = R"("type":"BPE")"}), {"twice"});
  expect_has(refusal({.options = R"("dropout":0.1)"}), {"dropout"});
  expect_has(refusal({.options = R"("end_of_word_suffix":"</w>","byte_fallback":true)"}), {"end_of_word_suffix"});
  expect_has(refusal({.options = R"("continuing_subword_prefix":"##")"}), {"begin with '##'"});
  expect_has(refusal({.options = R"("fuse_unk":"yes")"}), {"fuse_unk"});
  expect_has(refusal({.options = R"("cache_capacity":1)"}), {"cache_capacity"});
  std::string unigram = good;
  unigram.replace(unigram.find("BPE"), 3, "Unigram2");
  expect_has(read(unigram), {"Unigram2"});
  std::string newer = good;
  newer.replace(newer.find("1.0"), 3, "2.0");
  expect_has(read(newer), {"'2.0'"});
  std::string wide = "{";
  for (int i = 0; i < 6000; ++i) wide += "\"k" + std::to_string(i) + "\":0,";
  expect_has(read(wide), {"4096"});
}

TEST(Tokenizer, RefusesWhatItDoesNotImplement) {
  expect_has(refusal({.normalizer = R"({"type":"NFX"})"}), {"'NFX'"});
  expect_has(refusal({.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFX"}]})"}), {"normalizers"});
  expect_has(refusal({.normalizer = R"({"prepend":"x"})"}), {"type"});
  expect_has(refusal({.normalizer = R"({"type":"NFC","x":1})"}), {"'x'"});
  expect_has(refusal({.pre_tokenizer = R"({"type":"RandomChunk"})"}), {"'RandomChunk'"});
  expect_has(
      refusal({.pre_tokenizer = R"({"type":"Split","pattern":{"String":"a"},"behavior":"Sometimes","invert":false})"}),
      {"'Sometimes'"});
  expect_has(
      refusal({.pre_tokenizer = R"({"type":"Split","pattern":{"String":""},"behavior":"Isolated","invert":false})"}),
      {"''"});
  expect_has(
      refusal({.pre_tokenizer =
                   R"({"type":"Split","pattern":{"String":"a","Regex":"a"},"behavior":"Isolated","invert":false})"}),
      {"either"});
  expect_has(refusal({.pre_tokenizer = R"({"type":"Metaspace","replacement":"ab","prepend_scheme":"always"})"}),
             {"one character"});
  expect_has(refusal({.pre_tokenizer = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"often"})"}),
             {"'often'"});
  expect_has(refusal({.pre_tokenizer = R"({"type":"ByteLevel","trim_offsets":true})"}), {"add_prefix_space"});
  expect_has(refusal({.pre_tokenizer = R"({"type":"Digits","individual_digits":1})"}), {"individual_digits"});
  expect_has(refusal({.post_processor = R"({"type":"BertProcessing"})"}), {"cls"});
  expect_has(refusal({.decoder = R"({"type":"WordPiece"})"}), {"cleanup"});
  expect_has(refusal({.decoder = R"({"type":"Strip","content":" ","start":-1,"stop":0})"}), {"0 or more"});
}

TEST(Tokenizer, RefusesTemplatesThatDoNotFit) {
  const auto with = [](const char* single, const char* pair, const char* special) {
    return refusal({.post_processor = std::string(R"({"type":"TemplateProcessing","single":[)") + single +
                                      R"(],"pair":[)" + pair + R"(],"special_tokens":{)" + special + "}}"});
  };
  constexpr const char* kA = R"({"Sequence":{"id":"A","type_id":0}})";
  constexpr const char* kB = R"({"Sequence":{"id":"B","type_id":1}})";
  const std::string both = std::string(kA) + "," + kB;
  EXPECT_EQ(with(kA, both.c_str(), R"("x":{"id":"x","ids":[1],"tokens":["a"]})"), "no error");
  expect_has(with(kB, both.c_str(), ""), {"sequence A"});
  expect_has(with(kA, kA, ""), {"both sequences"});
  expect_has(with(R"({"SpecialToken":{"id":"x","type_id":0}})", both.c_str(), ""), {"'x'"});
  expect_has(with(kA, both.c_str(), R"("x":{"id":"x","ids":[99],"tokens":["a"]})"), {"99"});
  expect_has(with(kA, both.c_str(), R"("x":{"id":"x","ids":[-1],"tokens":["a"]})"), {"-1"});
  expect_has(with(kA, both.c_str(), R"("x":{"id":"x","ids":[1,2],"tokens":["a"]})"), {"2 and 1"});
}

TEST(Tokenizer, RefusesAddedTokensThatDoNotFit) {
  const auto with = [](const char* id, const char* content, const char* rest = "") {
    return refusal(
        {.added = std::string(R"([{"id":)") + id + R"(,"content":")" + content +
                  R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})" + rest +
                  "]"});
  };
  EXPECT_EQ(with("5", "new"), "no error");
  EXPECT_EQ(with("1", "a"), "no error");
  expect_has(with("1", "new"), {"with id 5"});
  expect_has(with("-1", "new"), {"with id 5"});
  expect_has(with("4000000000", "new"), {"with id 5"});
  expect_has(with("2", "a"), {"with id 1"});
  expect_has(with("5", ""), {"content"});
  expect_has(with("5", "new", R"(,{"id":6})"), {"content"});
  expect_has(refusal({.added = R"({"id":5})"}), {"added_tokens"});
}

TEST(Tokenizer, RefusesRegularExpressionsItCannotMatchExactly) {
  const auto with = [](const std::string& regex) { return message_of([&] { tokenizers::Regex(regex, "here"); }); };
  for (const char* regex :
       {"(", ")", "[", "[]", "[]a]", "a)", "*", "a{2,1}", "\\", "\\p{Nope}", "\\p", "[a", "(?<n", "(?#"}) {
    expect_has(with(regex), {"here"});
  }
  for (const char* regex : {"(?s).", "(?P<n>a)", "[a&&b]", "[a[bc]]", "\\R", "\\X", "\\K", "\\G", "\\Qa\\E", "(*UTF)a",
                            "(?~a)", "a{2}?", "[[:alpha:]]", "\\C", "(?(1)a)", "\\g<1>", "(?R)", "(?<n>a)\\k<n>"}) {
    expect_has(with(regex), {"here"});
  }
  for (const char* regex : {"a{,2}", "a{1,2}+", "x{", "(?i)a|b", "\\h", "(a)\\1", "[\\S\\d]", "\\u0041"}) {
    EXPECT_EQ(with(regex), "no error");
  }
}

TEST(Tokenizer, StopsRegularExpressionsThatRunAway) {
  const Tokenizer tokenizer =
      File{.pre_tokenizer =
               R"({"type":"Split","pattern":{"Regex":"(a+)+$|((a|b)*c)+x"},"behavior":"Isolated","invert":false})"}
          .read();
  std::string text(60, 'a');
  text += 'b';
  expect_has(message_of([&] { tokenizer.ids(text); }), {"steps"});
}

TEST(Tokenizer, StopsTextsThatBlowUp) {
  std::string grow = R"({"type":"Sequence","normalizers":[)";
  const std::string many(1000, 'a');
  for (int i = 0; i < 4; ++i) grow += R"({"type":"Replace","pattern":{"String":"a"},"content":")" + many + R"("},)";
  grow.back() = ']';
  const Tokenizer tokenizer = File{.normalizer = grow + "}"}.read();
  expect_has(message_of([&] { tokenizer.ids("a"); }), {"bytes"});
  expect_has(refusal({.pre_tokenizer = R"({"type":"Split","pattern":{"Regex":")" +
                                       [] {
                                         std::string all;
                                         for (int i = 0; i < 5000; ++i) all += R"(\\b)";
                                         return all;
                                       }() +
                                       R"("},"behavior":"Isolated","invert":false})"}),
             {"too much"});
}

TEST(Tokenizer, WantsUtf8) {
  expect_has(message_of([] { File{}.read().ids("ab\xC3"); }), {"byte 2"});
  expect_has(message_of([] { File{}.read().ids("\xED\xA0\x80"); }), {"UTF-8"});
  expect_has(message_of([] { File{}.read().decode({{-1}}); }), {"-1"});
  EXPECT_EQ(File{}.read().decode({{1, 77, 3}}), "a ab");  // an id that is no token is left out
}

TEST(Tokenizer, ServesManyThreadsAtOnce) {
  const Tokenizer tokenizer = File{}.read();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        std::string text;
        Ids expected;
        for (int k = 0; k < (i + t) % 17; ++k) text += "abc", expected.insert(expected.end(), {3, 4});
        wrong += tokenizer.ids(text) != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, KnowsTheRolesOfTokens) {
  const TempFolder folder;
  expect_has(message_of([&] { Tokenizer::from_folder(folder.path()); }), {"tokenizer.json"});
  write_file(folder / "tokenizer.json", File{}.text());
  EXPECT_FALSE(Tokenizer::from_folder(folder.path()).special_ids().bos);
  write_file(folder / "special_tokens_map.json", R"({"eos_token":"a","unk_token":"<unk>"})");
  write_file(folder / "tokenizer_config.json",
             R"({"bos_token":{"content":"c"},"eos_token":"b","pad_token":null,"model_max_length":1e30})");
  const SpecialIds special = Tokenizer::from_folder(folder.path()).special_ids();
  EXPECT_EQ(special.bos, 4);
  EXPECT_EQ(special.eos, 2);
  EXPECT_EQ(special.unk, 0);
  EXPECT_FALSE(special.pad);
  // A token that tokenizer.json has not is added, as transformers does; what that does not read adds none.
  write_file(folder / "tokenizer_config.json", R"({"bos_token":"nothing"})");
  const Tokenizer more = Tokenizer::from_folder(folder.path());
  ASSERT_TRUE(more.special_ids().bos);
  EXPECT_FALSE(Tokenizer::from_file(folder / "tokenizer.json").token_to_id("nothing"));
  EXPECT_EQ(more.ids("nothing"), (std::vector<int64_t>{*more.special_ids().bos}));
  write_file(folder / "special_tokens_map.json", R"({"unk_token":"none"})");
  expect_has(message_of([&] { Tokenizer::from_folder(folder.path()); }), {"'none'"});
}

}  // namespace
}  // namespace hotswap
