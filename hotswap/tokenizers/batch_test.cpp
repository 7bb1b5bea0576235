// Truncation, padding, pairs and batches on several threads.
#include <gtest/gtest.h>

#include <random>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/test_against_python.h"
#include "hotswap/tokenizers/test_text.h"
#include "hotswap/tokenizers/tokenizer_impl.h"
#include "hotswap/tokenizers/word_cache.h"

namespace hotswap {
namespace {

using test_support::Plain;

constexpr const char* kBatchScript = R"(
import json, sys
from tokenizers import Tokenizer
def shown(e, parts=True):  # a part of a pair has parts of its own there, which the list has as well
    return {"ids": e.ids, "type_ids": e.type_ids, "tokens": e.tokens, "offsets": e.offsets, "mask": e.attention_mask,
            "overflowing": [shown(o, False) for o in e.overflowing if parts]}
out = []
for job in json.load(open(sys.argv[1])):
    t = Tokenizer.from_file(job["file"])
    if job["truncation"]: t.enable_truncation(**job["truncation"])
    if job["padding"]: t.enable_padding(**job["padding"])
    rows = []
    for texts in (job["texts"], [tuple(pair) for pair in job["pairs"]]):
        try: rows.append([shown(e) for e in t.encode_batch(texts, add_special_tokens=job["special"])])
        except BaseException as e: rows.append("error")
    out.append(rows)
json.dump(out, open(sys.argv[2], "w"))
)";

Plain shown(const Encoding& e, bool padded) {
  Plain offsets = Plain::array();
  for (const auto& [begin, end] : e.offsets) offsets.push_back({begin, end});
  Plain overflowing = Plain::array();
  for (const Encoding& part : e.overflowing) overflowing.push_back(shown(part, padded));
  EXPECT_EQ(e.attention_mask.size(), padded ? e.ids.size() : 0);
  return {{"ids", e.ids},
          {"type_ids", e.type_ids},
          {"tokens", e.tokens},
          {"offsets", offsets},
          {"mask", padded ? e.attention_mask : std::vector<int64_t>(e.ids.size(), 1)},
          {"overflowing", overflowing}};
}

struct Case {
  EncodeOptions options;
  Plain job;
};

Case random_case(std::mt19937_64& random, const std::string& file) {
  Case c;
  // Without special tokens the library's RobertaProcessing leaves type id 1 in what overflows of a second text.
  const bool roberta = file.find("clip") != std::string::npos;
  c.options.add_special_tokens = roberta || random() % 4 != 0;
  c.options.threads = 1 + static_cast<int>(random() % 3);
  c.job = {{"file", file}, {"truncation", nullptr}, {"padding", nullptr}, {"special", c.options.add_special_tokens}};
  if (random() % 4 != 0) {
    constexpr const char* kStrategies[] = {"longest_first", "only_first", "only_second"};
    const uint64_t strategy = random() % 3;
    Truncation t{.max_length = 5 + static_cast<int64_t>(random() % 14),
                 .strategy = static_cast<Truncation::Strategy>(strategy),
                 .side = random() % 2 == 0 ? Side::kLeft : Side::kRight,
                 .keep_overflowing = true};
    c.job["truncation"] = {{"max_length", t.max_length},
                           {"strategy", kStrategies[strategy]},
                           {"stride", t.stride},
                           {"direction", t.side == Side::kLeft ? "left" : "right"}};
    c.options.truncation = t;
  }
  if (random() % 3 != 0) {
    Padding p{.side = random() % 2 == 0 ? Side::kLeft : Side::kRight,
              .multiple_of = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 9),
              .id = 2,
              .type_id = static_cast<int64_t>(random() % 2),
              .token = "[SEP]"};
    if (random() % 3 == 0) p.length = static_cast<int64_t>(random() % 20);
    c.job["padding"] = {{"direction", p.side == Side::kLeft ? "left" : "right"},
                        {"pad_id", p.id},
                        {"pad_type_id", p.type_id},
                        {"pad_token", p.token},
                        {"length", p.length ? Plain(*p.length) : Plain(nullptr)}};
    if (p.multiple_of > 0) c.job["padding"]["pad_to_multiple_of"] = p.multiple_of;
    c.options.padding = p;
  }
  c.job["texts"] = Plain::array();
  c.job["pairs"] = Plain::array();
  for (int i = 0; i < 9; ++i) {
    c.job["texts"].push_back(random_text(random));
    c.job["pairs"].push_back({random_text(random), random_text(random)});
  }
  return c;
}

// The batch's encodings, or "error".
template <class Text>
Plain ours(const Tokenizer& tokenizer, const std::vector<Text>& texts, const EncodeOptions& options) {
  try {
    Plain rows = Plain::array();
    for (const Encoding& e : tokenizer.encode_batch(std::span<const Text>(texts), options))
      rows.push_back(shown(e, options.padding.has_value()));
    return rows;
  } catch (const Error&) {
    return "error";
  }
}

class Batch : public test_support::WithTransformers<> {
 protected:
  static std::string file(const char* name) {
    return (test_support::made_data("tokenizers/train_tokenizers.py") / name).string();
  }
};

TEST_F(Batch, AsPython) {
  std::mt19937_64 random(test_support::test_seed());
  std::vector<Case> cases;
  Plain jobs = Plain::array();
  for (int i = 0; i < 60; ++i) {
    cases.push_back(random_case(random, file(i % 3 == 0 ? "bert.json" : i % 3 == 1 ? "clip.json" : "unigram.json")));
    jobs.push_back(cases.back().job);
  }
  const test_support::TempFolder scratch;
  const auto script = scratch.write("script.py", kBatchScript);
  write_file(scratch / "in.json", jobs.dump());
  const auto run =
      test_support::run_script(script, cat((scratch / "in.json").string(), " ", (scratch / "out.json").string()));
  ASSERT_EQ(run.status, 0) << run.output;
  const Plain expected = Plain::parse(read_file(scratch / "out.json"));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Tokenizer tokenizer = Tokenizer::from_file(cases[i].job["file"].get<std::string>());
    const auto texts = cases[i].job["texts"].get<std::vector<std::string>>();
    const auto pairs = cases[i].job["pairs"].get<std::vector<std::pair<std::string, std::string>>>();
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    const std::vector<Tokenizer::TextPair> pair_views(pairs.begin(), pairs.end());
    ASSERT_EQ(ours(tokenizer, views, cases[i].options), expected[i][0]) << cases[i].job.dump();
    ASSERT_EQ(ours(tokenizer, pair_views, cases[i].options), expected[i][1]) << cases[i].job.dump();
  }
}

TEST_F(Batch, OverflowSharesStride) {
  const Tokenizer tokenizer = Tokenizer::from_file(file("bert.json"));
  const std::string text = "the hello ab 12 the hello ab 12 the hello";
  const auto whole = tokenizer.ids(text, false);
  const Truncation truncation{.max_length = 6, .keep_overflowing = true, .stride = 2};
  const Encoding got = tokenizer.encode(text, {.truncation = truncation});
  std::vector<int64_t> pieces(got.ids.begin() + 1, got.ids.end() - 1);
  for (const Encoding& part : got.overflowing) {
    ASSERT_LE(part.ids.size(), 6u);
    pieces.insert(pieces.end(), part.ids.begin() + 3, part.ids.end() - 1);  // [CLS] and the two that are shared
  }
  EXPECT_EQ(pieces, whole);
}

// Words that never come again, of as many symbols as bytes.
TEST(WordCache, HoldsAtMostItsLimit) {
  tokenizers::WordCache cache;
  size_t max_held = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string word = std::to_string(i);
    word.resize(255, 'x');
    for (int time = 0; time < 2; ++time) {
      std::vector<tokenizers::Symbol> symbols = {{.id = -1, .size = 0}};
      bool encoded = false;
      cache.encode(word, symbols, [&] {
        encoded = true;
        for (int32_t k = 0; k < 255; ++k) symbols.push_back({.id = i, .size = 1});
      });
      ASSERT_EQ(symbols.size(), 256u);
      ASSERT_EQ(symbols.back().id, i);
      ASSERT_TRUE(encoded || time == 1) << "a word that is new";
    }
    max_held = std::max(max_held, cache.held());
    ASSERT_LE(cache.held(), tokenizers::WordCache::kMaxHeld);
  }
  EXPECT_GT(max_held, tokenizers::WordCache::kMaxHeld / 2) << "the limit was not met";
}

// However many threads encoded at the same time: each space has a cache of words.
TEST(ScratchPool, KeepsOneSpaceACore) {
  ScratchPool pool;
  for (size_t i = 0; i < 4 * ScratchPool::max_free(); ++i) {
    pool.give_back(std::make_unique<tokenizers::Model::Scratch>());
    EXPECT_EQ(pool.free(), std::min(i + 1, ScratchPool::max_free()));
  }
}

TEST_F(Batch, ErrorsAreNamed) {
  const Tokenizer tokenizer = Tokenizer::from_file(file("bert.json"));
  const auto error_of = [&](const EncodeOptions& options, std::string_view text = "the hello ab 12") -> std::string {
    try {
      const std::vector<std::string_view> texts(40, text);
      tokenizer.encode_batch(texts, options);
      return "no error";
    } catch (const Error& e) {
      return e.what();
    }
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_PRED2(has, error_of({.truncation = Truncation{.max_length = 1}}), "special tokens");
  EXPECT_PRED2(has, error_of({.truncation = Truncation{.max_length = 4, .stride = 2}}), "stride");
  EXPECT_PRED2(has,
               error_of({.truncation = Truncation{.max_length = 3, .strategy = Truncation::Strategy::kOnlySecond}}),
               "only_second");
  EXPECT_PRED2(has, error_of({.padding = Padding{.length = int64_t{1} << 60}}), "padding to");
  EXPECT_PRED2(has, error_of({.padding = Padding{.multiple_of = int64_t{1} << 62}}), "padding to");
  EXPECT_PRED2(has, error_of({}, "\xff"), "UTF-8");
}

}  // namespace
}  // namespace hotswap
