// Models and components of every kind against Python's `tokenizers`: trained ones, random Unigram models with many
// ties, and every code point through each component.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <random>

#include "hotswap/tokenizers/test_against_python.h"
#include "hotswap/tokenizers/test_text.h"
#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/unicode_normalization.h"

namespace hotswap {
namespace {

using test_support::expect_as_python;
using test_support::Plain;

// HOTSWAP_TOKENIZER_STRINGS=1000000: that number of random strings, and every code point instead of a sample. To go on
// with a run that was ended: HOTSWAP_TOKENIZER_FROM=NAME leaves out the files whose names sort before it.
int64_t strings_of_full_run() {
  const char* value = std::getenv("HOTSWAP_TOKENIZER_STRINGS");
  return value == nullptr ? 0 : std::strtoll(value, nullptr, 10);
}

class Kinds : public test_support::WithTransformers<> {
 protected:
  std::mt19937_64 random{test_support::test_seed()};

  Plain texts(int64_t count) {
    Plain out = Plain::array();
    for (int64_t i = 0; i < count; ++i) out.push_back(random_text(random));
    return out;
  }

  // Where blocks of code points begin: all of them in a full run, else one in `rarity`, of those below U+3000, where
  // most classes are, 16 times as many.
  std::vector<char32_t> blocks(uint64_t rarity) {
    const bool whole = strings_of_full_run() > 0;
    std::vector<char32_t> out;
    for (char32_t first = 0; first < 0x110000; first += kBlock) {
      if (first >= 0xD800 && first < 0xE000) continue;
      if (whole || random() % (first < 0x3000 ? rarity / 16 : rarity) == 0) out.push_back(first);
    }
    return out;
  }
  static constexpr char32_t kBlock = 64;
};

// The trained tokenizers; in a full run also those with a large vocabulary, and the recorded files where they are.
std::map<std::string, std::filesystem::path> tokenizer_files() {
  std::map<std::string, std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(test_support::made_data("tokenizers/train_tokenizers.py")))
    files.emplace(entry.path().stem().string(), entry.path());
  if (strings_of_full_run() == 0) return files;
  for (const auto& golden : test_support::golden_folders(
           "tokenizers/golden_tokenizers.py",
           {"tokenizers/gpt2", "tokenizers/split_nfc", "tokenizers/metaspace", "tokenizers/normalizers"},
           {"models/stories260k", "models/smollm2-135m-instruct", "tokenizers/gpt2", "tokenizers/mistral-v0.3",
            "tokenizers/qwen3"}))
    files.emplace(cat(golden.script.empty() ? "recorded " : "made ", golden.folder), golden.path() / "tokenizer.json");
  if (const char* from = std::getenv("HOTSWAP_TOKENIZER_FROM")) files.erase(files.begin(), files.lower_bound(from));
  return files;
}

// A line a file while a full run goes on.
void report_equal(const std::string& name, int64_t count, const char* what) {
  if (strings_of_full_run() == 0) return;
  std::printf("%s: %lld %s\n", name.c_str(), static_cast<long long>(count), what);
  std::fflush(stdout);
}

TEST_F(Kinds, Trained) {
  const auto files = tokenizer_files();
  ASSERT_GE(files.size(), strings_of_full_run() == 0 ? 15u : 1u);
  const auto count = static_cast<int64_t>(files.size());
  const int64_t each = std::max<int64_t>((strings_of_full_run() + count - 1) / count, 60);
  constexpr int64_t kAtOnce = 20000;  // of one file: what Python's answers may take of memory
  const bool brief = strings_of_full_run() > 0;
  for (const auto& [name, file] : files) {
    for (int64_t left = each; left > 0; left -= kAtOnce) {
      expect_as_python({{{"file", file.string()}, {"texts", texts(std::min(left, kAtOnce))}, {"brief", brief}}});
      if (HasFailure()) return;
    }
    report_equal(name, each, "random strings");
  }
}

// An unknown token is spelled as its text, so this model shows what came to it, and from where.
std::string mirror(const std::string& normalizer, const std::string& pre_tokenizer) {
  return cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":)", normalizer,
             ",\"pre_tokenizer\":", pre_tokenizer,
             R"(,"post_processor":null,"decoder":null,"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0]]}})");
}

std::string typed(const std::string& type, const std::string& more = "") {
  return cat(R"({"type":")", type, "\"", more, "}");
}

std::string bert(bool clean, bool chinese, bool accents, bool lower) {
  const auto word = [](bool value) { return value ? "true" : "false"; };
  return typed("BertNormalizer", cat(R"(,"clean_text":)", word(clean), R"(,"handle_chinese_chars":)", word(chinese),
                                     R"(,"strip_accents":)", word(accents), R"(,"lowercase":)", word(lower)));
}

std::vector<std::string> mirrors() {
  std::vector<std::string> all;
  for (const std::string& normalizer :
       {bert(true, false, false, false), bert(false, true, false, false), bert(false, false, true, false),
        bert(false, false, false, true), bert(true, true, true, true), typed("StripAccents"), typed("Nmt"),
        typed("ByteLevel"), typed("NFC"), typed("NFD"), typed("NFKC"), typed("NFKD"), typed("Lowercase")})
    all.push_back(mirror(normalizer, "null"));
  for (const std::string& pre_tokenizer :
       {typed("BertPreTokenizer"), typed("Whitespace"), typed("Punctuation"), typed("UnicodeScripts"),
        typed("FixedLength", R"(,"length":3)"), typed("CharDelimiterSplit", R"(,"delimiter":"é")")})
    all.push_back(mirror("null", pre_tokenizer));
  const auto trained = test_support::made_data("tokenizers/train_tokenizers.py") / "unigram.json";
  all.push_back(mirror(Plain::parse(read_file(trained))["normalizer"].dump(), "null"));  // Precompiled
  return all;
}

// Each code point after a letter and before one, next to a blank and next to another of its neighbours.
TEST_F(Kinds, EveryCodePoint) {
  Plain lines = Plain::array();
  for (const char32_t first : blocks(256)) {
    std::string text;
    for (char32_t c = first; c < first + kBlock; ++c) text += cat("a", utf8_of(c), "b ", utf8_of(c), utf8_of(c));
    lines.push_back(text);
  }
  const bool whole = strings_of_full_run() > 0;
  Plain jobs = Plain::array();
  for (const std::string& json : mirrors()) {
    jobs.push_back({{"tokenizer", json}, {"texts", lines}});
    if (!whole) continue;
    expect_as_python(jobs);  // one by one: the oracle has a few minutes
    jobs.clear();
  }
  if (!whole) expect_as_python(jobs);
}

// Each code point before two of one grapheme, which Precompiled replaces as a whole; also before those that join it.
TEST_F(Kinds, GraphemesAfterEveryCodePoint) {
  std::vector<char32_t> all = blocks(256);
  for (char32_t first = 0xE0000; first < 0xE1000; first += kBlock) all.push_back(first);
  all.insert(all.end(), {0x2040, 0xFFC0});
  Plain lines = Plain::array();
  for (const char32_t first : all) {
    std::string text;
    for (char32_t c = first; c < first + kBlock; ++c) text += utf8_of(c) + "\u0e33\u059d";
    lines.push_back(text);
  }
  expect_as_python({{{"tokenizer", mirrors().back()}, {"texts", lines}, {"brief", true}}});
}

// Each code point through the whole tokenizer of each file: between two letters, 64 of them to a text, and by itself.
class EveryCodePointOfEachFile : public Kinds {
 protected:
  void SetUp() override {
    Kinds::SetUp();
    if (!IsSkipped()) all_ = blocks(1024);
  }

  // At most as many texts of one file at a time as Python's answers may take of memory.
  template <class TextsOfBlock>
  void run(const char* what, size_t at_once, const TextsOfBlock& texts_of_block) {
    const bool whole = strings_of_full_run() > 0;
    Plain jobs = Plain::array();
    for (const auto& [name, file] : tokenizer_files()) {
      Plain texts = Plain::array();
      for (const char32_t first : all_) {
        for (std::string& text : texts_of_block(first)) texts.push_back(std::move(text));
        if (texts.size() < at_once && first != all_.back()) continue;
        jobs.push_back({{"file", file.string()}, {"texts", std::move(texts)}, {"brief", true}});
        texts = Plain::array();
        if (!whole) continue;
        expect_as_python(jobs);
        if (HasFailure()) return;
        jobs.clear();
      }
      report_equal(name, static_cast<int64_t>(all_.size() * kBlock), what);
    }
    if (!whole) expect_as_python(jobs);
  }

 private:
  std::vector<char32_t> all_;
};

TEST_F(EveryCodePointOfEachFile, InsideAWord) {
  run("code points inside a word", 2000, [](char32_t first) {
    std::string text;
    for (char32_t c = first; c < first + kBlock; ++c) text += cat("a", utf8_of(c), "b");
    return std::vector<std::string>{text};
  });
}

TEST_F(EveryCodePointOfEachFile, ByItself) {
  run("code points by themselves", 100000, [](char32_t first) {
    std::vector<std::string> texts;
    for (char32_t c = first; c < first + kBlock; ++c) texts.push_back(utf8_of(c));
    return texts;
  });
}

// All of them in each form, between two letters, in every run: the library's tables are of an older Unicode than
// utf8proc's, and what is newer stays whole.
TEST_F(Kinds, EveryCodePointInEveryForm) {
  using tokenizers::NormalizationForm;
  const TempFolder scratch;
  write_file(scratch / "script.py", R"(
import json, sys
from tokenizers import normalizers
blocks = ["".join(f"a{chr(c)}b" for c in range(first, first + 64)) for first in range(0, 0x110000, 64) if not 0xD800 <= first < 0xE000]
forms = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
json.dump([[form.normalize_str(block) for block in blocks] for form in forms], open(sys.argv[1], "w"), ensure_ascii=False)
)");
  const auto run = test_support::run_script(scratch / "script.py", (scratch / "out.json").string());
  ASSERT_EQ(run.status, 0) << run.output;
  const Plain expected = Plain::parse(read_file(scratch / "out.json"));
  const std::array forms = {NormalizationForm::kNfc, NormalizationForm::kNfd, NormalizationForm::kNfkc,
                            NormalizationForm::kNfkd};
  for (size_t form = 0; form < forms.size(); ++form) {
    size_t block = 0;
    for (char32_t first = 0; first < 0x110000; first += kBlock) {
      if (first >= 0xD800 && first < 0xE000) continue;
      std::string text, got;
      for (char32_t c = first; c < first + kBlock; ++c) text += cat("a", utf8_of(c), "b");
      for (const auto& point : tokenizers::normalize_unicode(text, forms[form])) got += utf8_of(point.value);
      EXPECT_EQ(got, expected[form][block++])
          << "form " << form << ", from " << std::hex << static_cast<int64_t>(first);
    }
  }
}

// What Unicode got after the version that utf8proc has here.
TEST(Unicode, LateLettersMarksAndDigitsAreOfWords) {
  int digits = 0;
  for (const auto& row : tokenizers::late_categories()) {
    const std::string_view category = row.category;
    const bool expected = category[0] == 'L' || category[0] == 'M' || category == "Nd";
    digits += category == "Nd" ? 1 : 0;
    for (const char32_t c : {row.first, row.last})
      EXPECT_EQ(tokenizers::is_word(c), expected) << category << std::hex << int64_t(c);
  }
  EXPECT_GT(digits, 5);
}

TEST_F(Kinds, MirrorsOfRandomStrings) {
  Plain jobs = Plain::array();
  for (const std::string& json : mirrors()) jobs.push_back({{"tokenizer", json}, {"texts", texts(60)}});
  expect_as_python(jobs);
}

// Few letters and few scores: most texts have several best ways.
TEST_F(Kinds, UnigramTies) {
  const std::vector<std::string> letters = {"a", "b", "\u00e9", "\u65e5"};
  Plain jobs = Plain::array();
  for (int model = 0; model < 40; ++model) {
    Plain vocabulary = Plain::array();
    vocabulary.push_back({"<unk>", 0.0});
    const bool bytes = model % 4 == 0;
    for (int byte = 0; bytes && byte < 256 - model % 8; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      vocabulary.push_back({name, -1000.0});
    }
    for (int i = 0; i < 14; ++i) {
      std::string piece;
      for (uint64_t size = 1 + random() % 4; size > 0; --size) piece += letters[random() % letters.size()];
      const double score =
          model % 2 == 0 ? -static_cast<double>(random() % 4) : -static_cast<double>(random() % 997) / 97;
      vocabulary.push_back({piece, score});
    }
    Plain json = Plain::parse(mirror("null", "null"));
    json["model"] = {
        {"type", "Unigram"}, {"unk_id", model % 3 == 0 ? 3 : 0}, {"vocab", vocabulary}, {"byte_fallback", bytes}};
    Plain some = Plain::array();
    for (int i = 0; i < 25; ++i) {
      std::string text;
      for (uint64_t size = random() % 16; size > 0; --size)
        text += random() % 12 == 0 ? random_text(random) : letters[random() % letters.size()];
      some.push_back(text);
    }
    jobs.push_back({{"tokenizer", json.dump()}, {"texts", some}});
  }
  expect_as_python(jobs);
}

}  // namespace
}  // namespace hotswap
