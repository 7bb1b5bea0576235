// Tokens that the device draws for many rows at once are those that the host draws for each.
#include "hotswap/engine/batch_sampler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <set>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/test_families.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {
namespace {

using test_support::Ids;

struct Text {
  RowSampling settings;
  Ids tokens;
  int64_t prompt_length = 0;
  std::vector<int32_t> allowed = {};  // empty: any
};

struct Words : TokenConstraint {
  explicit Words(const std::vector<int32_t>& words) : words_(words) {}
  void allowed(std::span<int32_t> words) override { std::copy(words_.begin(), words_.end(), words.begin()); }
  void accept(int64_t) override {}
  bool ended() const override { return false; }
  const std::vector<int32_t>& words_;
};

// Any words of bits, of which at least one of the vocabulary is set.
std::vector<int32_t> some_words(std::mt19937_64& random, int64_t vocab) {
  std::vector<int32_t> words(static_cast<size_t>(vocab + 31) / 32);
  for (int32_t& word : words) word = static_cast<int32_t>(random() & random());
  const auto id = static_cast<size_t>(random() % vocab);
  words[id / 32] |= static_cast<int32_t>(1u << (id % 32));
  return words;
}

// Every setting, with others and without.
RowSampling some_settings(std::mt19937_64& random, int64_t vocab) {
  const auto one_of = [&](std::initializer_list<double> values) { return values.begin()[random() % values.size()]; };
  RowSampling s{.temperature = one_of({0, 0.3, 1, 1, 1.7}),
                .top_k = static_cast<int64_t>(one_of({0, 0, 1, 3, 40, 1e6})),
                .top_p = one_of({1, 1, 0.9, 0.53, 1e-6}),
                .min_p = one_of({0, 0, 0.07}),
                .repetition_penalty = one_of({1, 1, 1.3, 0.8}),
                .presence_penalty = one_of({0, 0, 0.7}),
                .frequency_penalty = one_of({0, 0, 0.4, -0.3}),
                .seed = random()};
  if (random() % 3 == 0) s.logit_bias = {{static_cast<int64_t>(random() % vocab), 3.5}, {0, -2}};
  if (random() % 3 == 0) {
    s.min_new_tokens = 3;
    s.ends = {static_cast<int64_t>(random() % vocab), vocab + 3};
  }
  return s;
}

std::vector<Text> some_texts(std::mt19937_64& random, int64_t count, int64_t vocab) {
  std::vector<Text> texts;
  for (int64_t i = 0; i < count; ++i) {
    Text text{.settings = some_settings(random, vocab), .prompt_length = 1 + static_cast<int64_t>(random() % 9)};
    for (int64_t t = 0; t < text.prompt_length; ++t) text.tokens.push_back(static_cast<int64_t>(random() % vocab));
    if (random() % 3 == 0) text.allowed = some_words(random, vocab);
    texts.push_back(std::move(text));
  }
  return texts;
}

// Logits that differ, or of which many are equal, as bfloat16 has them.
Tensor some_logits(std::mt19937_64& random, int64_t rows, int64_t vocab) {
  const Tensor out = at::empty({rows, vocab}, at::TensorOptions(at::kFloat));
  const bool coarse = random() % 2 == 0;
  std::normal_distribution<float> normal(0, 2);
  for (int64_t i = 0; i < out.numel(); ++i) {
    const float x = normal(random);
    out.mutable_data_ptr<float>()[i] = coarse ? std::round(x * 2) / 2 : x;
  }
  return out;
}

// `known` tokens of each text; the rest only the device knows.
std::vector<DrawRow> rows_of(const std::vector<Text>& texts, int64_t unknown = 0) {
  std::vector<DrawRow> rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    const auto length = static_cast<int64_t>(text.tokens.size());
    rows.push_back({static_cast<int64_t>(i), &text.settings,
                    std::span(text.tokens).first(static_cast<size_t>(length - unknown)), text.prompt_length, length,
                    !text.allowed.empty()});
  }
  return rows;
}

Tensor words_of(const std::vector<Text>& texts) {
  std::vector<int64_t> all;
  int64_t rows = 0;
  for (const Text& text : texts) {
    all.insert(all.end(), text.allowed.begin(), text.allowed.end());
    rows += text.allowed.empty() ? 0 : 1;
  }
  return rows == 0 ? Tensor() : staged(all, at::kInt, at::kCPU).view({rows, -1});
}

Tensor drawn(BatchSampler&& sampler, const std::vector<Text>& texts, const Tensor& logits) {
  return sampler.next(rows_of(texts), logits, words_of(texts));
}

Ids ids_in(const Tensor& ids) {
  const Tensor here = ids.contiguous();
  return {here.const_data_ptr<int64_t>(), here.const_data_ptr<int64_t>() + here.numel()};
}

Ids by_the_host(const std::vector<Text>& texts, const Tensor& logits) {
  Ids out;
  const auto vocab = static_cast<size_t>(logits.size(1));
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::span row(logits.const_data_ptr<float>() + i * vocab, vocab);
    const RowSampler sampler(texts[i].settings, logits.size(1));
    Words words(texts[i].allowed);
    TokenConstraint* const constraint = texts[i].allowed.empty() ? nullptr : &words;
    out.push_back(sampler.next(row, texts[i].tokens, texts[i].prompt_length, constraint).id);
  }
  return out;
}

// By torch's operations, and by the head's op of the bundled package.
class Draws : public testing::TestWithParam<bool> {
 protected:
  static BatchSampler sampler() {
    if (!GetParam()) return BatchSampler();
    static const auto model = [] {
      auto made = test_support::tiny("llama", at::kCPU, at::kFloat, /*head_dim=*/8);
      made->kernelize(Mode::of_training(false));
      return made;
    }();
    EXPECT_TRUE(model->lm_head().sample());
    return BatchSampler(&model->lm_head());
  }
};
INSTANTIATE_TEST_SUITE_P(BatchSampler, Draws, testing::Bool(),
                         [](const auto& info) { return info.param ? "ByTheHeadsOp" : "ByTorch"; });

TEST_P(Draws, WhatTheHostDraws) {
  const c10::InferenceMode inference;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    constexpr int64_t kVocabs[] = {1, 2, 7, 130, 2100};
    const int64_t vocab = kVocabs[seed % std::size(kVocabs)], count = 1 + static_cast<int64_t>(random() % 20);
    std::vector<Text> texts = some_texts(random, count, vocab);
    BatchSampler sampler = this->sampler();
    const int64_t calls = op_calls("linear", "sample");
    bool any = false;
    for (int64_t step = 0; step < 6; ++step) {
      const Tensor logits = some_logits(random, count, vocab), before = logits.clone();
      const Ids expected = by_the_host(texts, logits);
      ASSERT_EQ(ids_in(sampler.next(rows_of(texts, step > 0 ? 1 : 0), logits, words_of(texts))), expected)
          << seed << ", step " << step;
      EXPECT_TRUE(logits.equal(before)) << "the logits are the caller's";
      for (size_t i = 0; i < texts.size(); ++i) {
        texts[i].tokens.push_back(expected[i]);
        any = any || texts[i].settings.temperature > 0;
        if (!texts[i].allowed.empty()) texts[i].allowed = some_words(random, vocab);
      }
    }
    EXPECT_EQ(op_calls("linear", "sample") - calls, GetParam() && any ? 6 : 0);
  }
}

TEST_P(Draws, ARowTheSameInAnyCompanyAndAnyRow) {
  const c10::InferenceMode inference;
  constexpr int64_t kRows = 24, kVocab = 40000;  // sums of that size are split among threads
  std::mt19937_64 random(5);
  const std::vector<Text> texts = some_texts(random, kRows, kVocab);
  const Tensor logits = some_logits(random, kRows, kVocab);
  const Ids all = ids_in(drawn(sampler(), texts, logits));
  EXPECT_EQ(ids_in(drawn(sampler(), {texts.rbegin(), texts.rend()}, logits.flip(0))), Ids(all.rbegin(), all.rend()));
  for (int64_t i = 0; i < kRows; ++i) {
    EXPECT_EQ(ids_in(drawn(sampler(), {texts[i]}, logits.narrow(0, i, 1))), Ids{all[i]}) << i;
  }
}

TEST_P(Draws, FromHalfPrecisionAndWhatIsNoNumber) {
  const c10::InferenceMode inference;
  std::mt19937_64 random(6);
  const std::vector<Text> texts = some_texts(random, 9, 50);
  const Tensor half = some_logits(random, 9, 50).to(at::kBFloat16);
  EXPECT_EQ(ids_in(drawn(sampler(), texts, half)), by_the_host(texts, half.to(at::kFloat)));
  for (const float wrong : {NAN, -INFINITY, INFINITY}) {
    const Tensor ids = drawn(sampler(), texts, at::zeros({9, 50}, at::TensorOptions(at::kFloat)).fill_(wrong));
    for (const int64_t id : ids_in(ids)) EXPECT_TRUE(id >= 0 && id < 50) << id << " of " << wrong;
  }
}

// A slot that a sequence leaves is the next one's, which begins with its own tokens.
TEST_P(Draws, AndForgetsTokensOfSequencesThatHaveEnded) {
  const c10::InferenceMode inference;
  BatchSampler sampler = this->sampler();
  const Tensor logits = at::zeros({1, 4}, at::TensorOptions(at::kFloat));
  const RowSampling fresh{.temperature = 0, .presence_penalty = 1};
  const auto next = [&](int64_t sequence, const Ids& tokens) {
    return ids_in(sampler.next({{sequence, &fresh, tokens, 1, static_cast<int64_t>(tokens.size())}}, logits)).front();
  };
  EXPECT_EQ(next(0, {3}), 0);
  EXPECT_EQ(next(0, {3}), 1) << "0 was drawn, though the host does not know";
  sampler.forget(0);
  EXPECT_EQ(next(1, {3, 0, 1}), 2) << "again after a preemption: its new tokens are counted";
  sampler.forget(1);
  sampler.forget(1);
  EXPECT_EQ(next(2, {3}), 0);
}

// Names of operations that `run` calls.
template <typename Run>
std::multiset<std::string> operations(const Run& run) {
  static thread_local std::multiset<std::string>* names = nullptr;
  std::multiset<std::string> out;
  names = &out;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        names->insert(function.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  return out;
}

// On a GPU each of these waits for the device.
TEST_P(Draws, AndReadsNothingOnTheHostAndCallsNoMoreForMoreRows) {
  const c10::InferenceMode inference;
  constexpr int64_t kVocab = 300;
  for (const RowSampling& settings : {RowSampling{},
                                      {.temperature = 0},
                                      {.top_k = 5},
                                      {.top_p = 0.8},
                                      {.top_k = 7, .top_p = 0.5, .min_p = 0.1},
                                      {.repetition_penalty = 1.1, .frequency_penalty = 0.2},
                                      {.logit_bias = {{3, 1}}},
                                      {.min_new_tokens = 5, .ends = {2}}}) {
    const auto calls = [&](int64_t count) {
      std::vector<Text> texts(count, Text{settings, {1, 2}, 1});
      for (Text& text : texts) text.allowed.assign(settings.top_k > 0 ? (kVocab + 31) / 32 : 0, 5);
      const Tensor logits = at::zeros({count, kVocab}, at::TensorOptions(at::kFloat));
      BatchSampler sampler = this->sampler();
      const Tensor words = words_of(texts);
      sampler.next(rows_of(texts), logits, words);  // slots for what is counted
      return operations([&] { sampler.next(rows_of(texts), logits, words); });
    };
    const auto few = calls(2);
    EXPECT_GT(few.size(), 0u);
    for (const char* waits : {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal",
                              "aten::nonzero", "aten::masked_select", "aten::unique_consecutive"}) {
      EXPECT_EQ(few.count(waits), 0u) << waits;
    }
    EXPECT_EQ(calls(16), few);
  }
}

}  // namespace
}  // namespace hotswap
