// Prompts that begin as an earlier one, and sequences that give their pages back and run again: each has the tokens,
// and where forwards are exact the bits, of one that runs by itself in an empty pool.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/exact_steps.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/test_sequences.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::expect_same;
using test_support::greedy;
using test_support::Ids;
using test_support::kRounding;
using test_support::message_of;
using test_support::new_ids;
using test_support::recurs;
using test_support::single;
using test_support::Steps;
using test_support::tiny;

using Drawn = std::vector<std::pair<int64_t, double>>;  // tokens and their logprobs

constexpr int64_t kChunk = 5, kAnswer = 8;

// `count` tokens that begin as those of any other count do.
Ids text(int64_t count) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back((i * 7 + 3) % test_support::kVocabulary);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

SchedulerOptions exact_options(CausalLM& model) {
  return {.max_sequences = 4,
          .chunk = kChunk,
          .groups = {.decode_rows = max_exact_decode_rows(model, 4), .single_prompts = true},
          .exact = true};
}

Sequence drawing(CausalLM& model, const Ids& prompt, int64_t count = kAnswer) {
  const RowSampling sampling{.seed = prompt.size(), .logprobs = 0};
  return {.tokens = prompt,
          .row_sampler = std::make_shared<RowSampler>(sampling, model.config().vocab_size),
          .stop = {.max_new_tokens = count}};
}

// Steps until all have ended. -> what each drew
std::map<int64_t, Drawn> run(Scheduler& scheduler) {
  std::map<int64_t, Drawn> out;
  while (!scheduler.idle()) {
    for (const NewToken& token : scheduler.step()) {
      out[token.sequence].emplace_back(token.id, token.logprobs->logprob);
    }
  }
  return out;
}

// In a pool of its own, with the same pages: kernels that read one piece are others than those that read pages.
Drawn by_itself(CausalLM& model, SchedulerOptions options, const Ids& prompt, int64_t count = kAnswer) {
  options.pages = options.prefix_tokens = 0;
  Scheduler scheduler(model, options);
  scheduler.join(drawing(model, prompt, count));
  return run(scheduler)[0];
}

class EveryFamilyReused : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyReused, AKeptBeginningHasTheBitsOfOneThatRan) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  const std::vector<std::pair<Ids, int64_t>> prompts = {{text(17), 0},  {joined(text(12), {1, 2, 3}), 10},
                                                        {text(17), 15}, {text(15), 10},
                                                        {text(3), 0},   {{9, 9, 9, 9, 9, 9}, 0}};
  for (const bool kernels : {false, true}) {
    if (kernels) model->kernelize(Mode::of_training(false));
    for (const int64_t page_size : {0, 4}) {
      SchedulerOptions options = exact_options(*model);
      options.prefix_tokens = 100;
      options.page_size = page_size;
      options.max_tokens = page_size > 0 ? 40 : 0;
      Scheduler scheduler(*model, options);
      int64_t hits = 0;
      for (const auto& [prompt, cached] : prompts) {
        const int64_t id = scheduler.join(drawing(*model, prompt));
        EXPECT_EQ(run(scheduler)[id], by_itself(*model, options, prompt))
            << prompt.size() << " tokens, pages of " << page_size;
        const int64_t expected = recurs(*GetParam()) ? 0 : cached;
        EXPECT_EQ(scheduler.take(id).cached_tokens, expected) << prompt.size();
        hits += expected;
      }
      EXPECT_EQ(scheduler.counts().prefix_hits, hits);
      EXPECT_EQ(scheduler.counts().prefix_queries, 17 + 15 + 17 + 15 + 3 + 6);
      EXPECT_EQ(scheduler.pool().usage().tokens, 0);
    }
  }
}

TEST_P(EveryFamilyReused, APreemptedSequenceHasTheBitsOfOneThatRanThrough) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  for (const int64_t prefix_tokens : {0, 100}) {
    SchedulerOptions options = exact_options(*model);
    options.max_tokens = 32;
    options.page_size = 4;
    options.pages = 10;  // 40 tokens; the four need 4 * 27
    options.prefix_tokens = prefix_tokens;
    Scheduler scheduler(*model, options);
    const std::vector<Ids> prompts = {text(8), {1, 2, 3}, joined({4}, text(7)), text(6)};
    for (const Ids& prompt : prompts) scheduler.join(drawing(*model, prompt, 20));
    const auto got = run(scheduler);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(got.at(static_cast<int64_t>(i)), by_itself(*model, options, prompts[i], 20)) << i;
    }
    EXPECT_GT(scheduler.counts().preemptions, 0);
    EXPECT_EQ(scheduler.pool().free_pages(), 10) << "pages are still in use";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyReused, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

class PrefixReuse : public testing::Test {
 protected:
  std::shared_ptr<CausalLM> model = tiny("llama", at::kCPU, at::kFloat, 16);
  std::shared_ptr<Sampler> sampler = greedy(*model);
  Sequence of(const Ids& prompt, int64_t count = 3, const std::string& salt = "") {
    return {.tokens = prompt, .sampler = sampler, .stop = {.max_new_tokens = count}, .cache_salt = salt};
  }
  // -> the sequence once it has ended
  Sequence ended(Scheduler& scheduler, Sequence sequence) {
    const int64_t id = scheduler.join(std::move(sequence));
    while (!scheduler.idle()) scheduler.step();
    return scheduler.take(id);
  }
};

// A conversation: the next prompt is the one before, its answer and a question more.
TEST_F(PrefixReuse, AnAnswerIsPartOfTheNextPrompt) {
  Scheduler scheduler(*model, {.max_sequences = 2, .prefix_tokens = 1024});
  const Sequence first = ended(scheduler, of(text(70), 60));
  EXPECT_EQ(first.cached_tokens, 0);
  const Ids next = joined(first.tokens, {1, 2});  // 132; of the last new token no keys are kept
  const Sequence second = ended(scheduler, of(next, 5));
  EXPECT_EQ(second.cached_tokens, 128);
  expect_same({new_ids(second)}, single(*model, next, 5), kRounding, "the second prompt");
}

TEST_F(PrefixReuse, OfEqualPromptsAtTheSameTimeOneRuns) {
  Scheduler scheduler(*model, {.max_sequences = 4, .chunk = 32, .prefix_tokens = 1024});
  std::vector<int64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(scheduler.join(of(text(100))));
  scheduler.step();
  EXPECT_EQ(scheduler.running(), 1) << "the others wait for what it computes";
  while (!scheduler.idle()) scheduler.step();
  const Steps expected = single(*model, text(100), 3);
  for (const int64_t id : ids) {
    const Sequence one = scheduler.take(id);
    EXPECT_EQ(one.cached_tokens, id == ids[0] ? 0 : 64);
    expect_same({new_ids(one)}, expected, kRounding, cat("sequence ", id));
  }
}

// The one that the others wait for may leave.
TEST_F(PrefixReuse, NothingWaitsForASequenceThatHasLeft) {
  Scheduler scheduler(*model, {.max_sequences = 2, .chunk = 16, .prefix_tokens = 1024});
  const int64_t first = scheduler.join(of(text(100))), second = scheduler.join(of(text(90)));
  scheduler.step();
  scheduler.leave(first);
  while (!scheduler.idle()) scheduler.step();
  const Sequence one = scheduler.take(second);
  EXPECT_EQ(one.cached_tokens, 0);
  expect_same({new_ids(one)}, single(*model, text(90), 3), kRounding, "the second");
}

TEST_F(PrefixReuse, IsNeverBetweenSaltsOrTextsThatDifferBefore) {
  Scheduler scheduler(*model, {.max_sequences = 1, .prefix_tokens = 1024});
  ended(scheduler, of(text(100), 3, "a"));
  EXPECT_EQ(ended(scheduler, of(text(100), 3, "b")).cached_tokens, 0);
  EXPECT_EQ(ended(scheduler, of(text(100), 3, "a")).cached_tokens, 64);
  ended(scheduler, of(text(140), 3, "a"));
  Ids other = text(140);
  other[0] = 49 - other[0];  // its second page has the same tokens
  EXPECT_EQ(ended(scheduler, of(other, 3, "a")).cached_tokens, 0);
  other = text(140);
  other[64] = 49 - other[64];
  EXPECT_EQ(ended(scheduler, of(other, 3, "a")).cached_tokens, 64);
}

TEST_F(PrefixReuse, ThePageUsedLongestAgoMakesRoomAndAnEndBeforeItsBeginning) {
  Scheduler scheduler(*model, {.max_sequences = 1, .prefix_tokens = 3 * 64});
  const auto cached = [&](int64_t first, int64_t count) {
    Ids prompt = text(count);
    prompt[0] = first;
    return ended(scheduler, of(prompt, 1)).cached_tokens;
  };
  EXPECT_EQ(cached(1, 130), 0);
  EXPECT_EQ(cached(2, 70), 0);
  EXPECT_EQ(cached(1, 130), 128) << "all three pages are kept";
  EXPECT_EQ(cached(3, 70), 0);
  EXPECT_EQ(cached(1, 130), 128) << "the page of 2 made room";
  EXPECT_EQ(cached(2, 70), 0);
  EXPECT_EQ(cached(4, 70), 0);
  EXPECT_EQ(cached(1, 130), 64) << "its second page made room for that of 4, its first one was still there";
  EXPECT_EQ(cached(5, 64 * 4 + 1), 0);
  EXPECT_EQ(cached(5, 64 * 4 + 1), 64 * 3) << "more than fits: its beginning";
}

TEST_F(PrefixReuse, NotWhereKeysDependOnTheTextsLength) {
  const nlohmann::ordered_json rope = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 10000.0}};
  const nlohmann::ordered_json config = {
      {"model_type", "llama"},         {"vocab_size", 50},         {"hidden_size", 64},
      {"num_hidden_layers", 2},        {"num_attention_heads", 4}, {"num_key_value_heads", 2},
      {"intermediate_size", 64},       {"initializer_range", 0.4}, {"rms_norm_eps", 1e-5},
      {"max_position_embeddings", 10}, {"rope_parameters", rope}};
  model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3);
  model->eval();
  Scheduler scheduler(*model, {.max_sequences = 1, .prefix_tokens = 1024});
  ended(scheduler, of(text(100)));
  EXPECT_EQ(ended(scheduler, of(text(100))).cached_tokens, 0);
}

TEST_F(PrefixReuse, RefusesWhatCannotBe) {
  KvPool pool(at::kCPU, {.max_sequences = 1});
  expect_has(message_of([&] { PrefixCache(pool, {.pages = 0}); }), {"at least one page", "PrefixCacheOptions"});
  const int64_t sequence = pool.acquire();
  expect_has(message_of([&] { pool.tokens_of(sequence, 0, 1); }), {"tokens among the sequence's 0", "have run"});
}

// Sequences come and go at random where the pool has room for few: all end with the tokens that they have by
// themselves, the oldest first of those that began, and nothing is in use afterwards.
TEST_F(PrefixReuse, RandomArrivalsInAPoolThatIsTooSmall) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(cat("seed ", seed));
  std::mt19937_64 random(seed);
  SchedulerOptions options = exact_options(*model);
  options.max_tokens = 40;
  options.page_size = 4;
  options.pages = 12;
  options.prefix_tokens = 60;
  Scheduler scheduler(*model, options);
  std::map<int64_t, std::pair<Ids, int64_t>> requests;
  std::map<int64_t, Drawn> got;
  std::set<int64_t> left;
  for (int event = 0; event < 160 || !scheduler.idle(); ++event) {
    if (event < 160 && random() % 4 == 0) {
      const Ids prompt = joined(text(static_cast<int64_t>(random() % 12)), {static_cast<int64_t>(random() % 3)});
      const auto count = static_cast<int64_t>(1 + random() % 25);
      requests[scheduler.join(drawing(*model, prompt, count))] = {prompt, count};
    }
    if (event < 160 && !requests.empty() && random() % 20 == 0) {
      const auto id = static_cast<int64_t>(random() % requests.size());
      scheduler.leave(id);
      if (scheduler.sequence(id).finish == Finish::kLeft) left.insert(id);
    }
    for (const NewToken& token : scheduler.step()) {
      got[token.sequence].emplace_back(token.id, token.logprobs->logprob);
    }
    ASSERT_LT(event, 100000) << "a sequence never ends";
  }
  for (const auto& [id, request] : requests) {
    if (left.contains(id)) continue;
    EXPECT_EQ(got[id], by_itself(*model, options, request.first, request.second)) << id;
  }
  EXPECT_GT(scheduler.counts().preemptions, 0);
  EXPECT_GT(scheduler.counts().prefix_hits, 0);
  EXPECT_EQ(scheduler.pool().free_pages(), 12);
  EXPECT_EQ(scheduler.pool().free_sequences(), 4);
}

}  // namespace
}  // namespace hotswap
