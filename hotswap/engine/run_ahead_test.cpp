// The host ahead of the device: every sequence has the tokens that it has without that, whatever ends it, joins it or
// leaves it. On a CPU nothing is gained by it, and all of it can be seen.
#include <gtest/gtest.h>

#include <map>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/exact_steps.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/test_sequences.h"

namespace hotswap {
namespace {

using test_support::greedy;
using test_support::Ids;
using test_support::new_ids;
using test_support::prompts;
using test_support::single;
using test_support::tiny;

constexpr int64_t kMaxNewTokens = 12;

struct Answer {
  Ids ids;
  Finish finish = Finish::kNot;
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << testing::PrintToString(answer.ids) << " and " << static_cast<int>(answer.finish);
}

// Sequence i joins before call 2 i of step(). -> the answer of each, in the order in which they joined
std::vector<Answer> answers(CausalLM& model, SchedulerOptions options, const std::vector<Sequence>& sequences,
                            bool ahead) {
  options.run_ahead = ahead;
  Scheduler scheduler(model, options);
  std::vector<int64_t> ids;
  std::map<int64_t, Answer> reported;
  for (size_t step = 0; step <= 2 * sequences.size() || !scheduler.idle(); ++step) {
    if (step % 2 == 0 && step / 2 < sequences.size()) ids.push_back(scheduler.join(sequences[step / 2]));
    for (const NewToken& token : scheduler.step()) {
      EXPECT_EQ(reported[token.sequence].finish, Finish::kNot) << "a token after the end";
      if (token.finish != Finish::kFailed) reported[token.sequence].ids.push_back(token.id);
      reported[token.sequence].finish = token.finish;
    }
  }
  std::vector<Answer> out;
  for (const int64_t id : ids) {
    const Sequence done = scheduler.take(id);
    out.push_back({new_ids(done), done.finish});
    EXPECT_EQ(out.back(), reported[id]) << "what was reported and what was kept";
  }
  EXPECT_EQ(scheduler.pool().usage().tokens, 0);
  return out;
}

// Bits that do not depend on the company, so that tokens are the same and not merely as likely.
SchedulerOptions exact(CausalLM& model, int64_t page_size) {
  return {.max_sequences = 3,
          .max_tokens = page_size > 0 ? 40 : 0,
          .page_size = page_size,
          .chunk = 5,
          .groups = {.decode_rows = max_exact_decode_rows(model, 3), .single_prompts = true}};
}

class EveryFamilyAhead : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyAhead, HasTheSameAnswers) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  const Ids free = single(*model, prompts()[1]).ids[0];
  for (const bool kernels : {false, true}) {
    if (kernels) model->kernelize(Mode::of_training(false));
    for (const int64_t page_size : {0, 16}) {
      const auto sampler = greedy(*model);
      std::vector<Sequence> all;
      for (const Ids& prompt : prompts()) {
        all.push_back({.tokens = prompt, .sampler = sampler, .stop = {.max_new_tokens = kMaxNewTokens}});
      }
      all[0].stop.max_new_tokens = 1;
      all[1].stop.eos = {free[4]};  // ends it in the middle, or where the token first comes
      all[2].stop.ends_with = [count = 0](int64_t) mutable { return ++count == 3; };
      const SchedulerOptions options = exact(*model, page_size);
      const std::vector<Answer> expected = answers(*model, options, all, false);
      EXPECT_EQ(expected[1].finish, Finish::kEos);
      EXPECT_LE(expected[1].ids.size(), 5U);
      EXPECT_EQ(expected[2].finish, Finish::kStopString);
      EXPECT_EQ(answers(*model, options, all, true), expected) << (kernels ? "kernels, " : "stock, ") << page_size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyAhead, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

class Ahead : public testing::Test {
 protected:
  std::shared_ptr<CausalLM> model = tiny("llama", at::kCPU, at::kFloat, 16);
  std::shared_ptr<Sampler> argmax = greedy(*model);
  Sequence of(const Ids& prompt, int64_t count, std::shared_ptr<Sampler> sampler = nullptr) {
    return {.tokens = prompt, .sampler = sampler ? sampler : argmax, .stop = {.max_new_tokens = count}};
  }
  std::shared_ptr<Sampler> with(GenerationConfig config) { return std::make_shared<Sampler>(config, at::kCPU); }
  Sequence drawn(const Ids& prompt, uint64_t seed, double presence = 0) {
    Sequence s{.tokens = prompt, .sampler = nullptr, .stop = {.max_new_tokens = 7}};
    s.row_sampler = std::make_shared<RowSampler>(RowSampling{.presence_penalty = presence, .seed = seed, .logprobs = 2},
                                                 model->config().vocab_size);
    return s;
  }
};

// As requests of a server have them: no log-probabilities, so that the device draws.
Sequence on_device(const CausalLM& model, const Ids& prompt, RowSampling settings) {
  Sequence s{.tokens = prompt, .sampler = nullptr, .stop = {.max_new_tokens = 9}};
  s.row_sampler = std::make_shared<RowSampler>(std::move(settings), model.config().vocab_size);
  return s;
}

// Allows the even tokens.
struct Even : TokenConstraint {
  void allowed(std::span<int32_t> words) override { std::fill(words.begin(), words.end(), 0x55555555); }
  void accept(int64_t token) override { EXPECT_EQ(token % 2, 0); }
  bool ended() const override { return false; }
};

// Allows one token more than the last one that came, modulo 31: what comes is known. Ends, or allows none, at `end`.
struct Counting : TokenConstraint {
  Counting(int64_t begin, int64_t end, bool fails) : next(begin), last(end), fails(fails) {}
  void allowed(std::span<int32_t> words) override {
    std::fill(words.begin(), words.end(), 0);
    if (!(fails && next == last)) words[0] = static_cast<int32_t>(1u << (next % 31));
  }
  void accept(int64_t token) override {
    EXPECT_EQ(token, next % 31);
    ++next;
  }
  bool ended() const override { return !fails && next == last; }
  int64_t next, last;
  bool fails;
};

// Penalties, random draws, grammars, several answers to one prompt: the host is there for each that needs it.
TEST_F(Ahead, SequencesThatNeedTheHostHaveTheSameAnswersBesideOthers) {
  const GenerationConfig penalised{.repetition_penalty = 1.7};
  GenerationConfig late{.min_new_tokens = 5};
  late.eos_token_id = Ids{single(*model, prompts()[0]).ids[0][1]};
  const auto sequences = [&] {
    std::vector<Sequence> all = {of(prompts()[0], 9, with(penalised)),
                                 of(prompts()[1], 8),
                                 drawn(prompts()[2], 3),
                                 drawn(prompts()[2], 4, 1.5),
                                 of(prompts()[0], 9, with(late)),
                                 drawn(prompts()[3], 5)};
    all[4].stop.eos = *late.eos_token_id;
    all[5].constraint = std::make_shared<Even>();
    return all;
  };
  for (const int64_t page_size : {0, 16}) {
    const std::vector<Answer> expected = answers(*model, exact(*model, page_size), sequences(), false);
    EXPECT_NE(expected[2].ids, expected[3].ids);
    for (const int64_t id : expected[5].ids) EXPECT_EQ(id % 2, 0);
    EXPECT_EQ(answers(*model, exact(*model, page_size), sequences(), true), expected) << page_size;
  }
}

// Penalties count tokens that the host has not read yet; a row that ends unseen takes nothing from the others.
TEST_F(Ahead, SequencesWithSettingsOfTheirOwnHaveTheSameAnswers) {
  const auto sequences = [&] {
    std::vector<Sequence> all = {
        on_device(*model, prompts()[0], {.seed = 1}),
        on_device(*model, prompts()[1], {.temperature = 0.7, .top_k = 9, .top_p = 0.8, .seed = 2}),
        on_device(*model, prompts()[2], {.temperature = 0, .repetition_penalty = 1.5, .presence_penalty = 1}),
        of(prompts()[3], 7),
        on_device(*model, prompts()[1], {.top_p = 0.7, .frequency_penalty = 1.2, .seed = 3}),
        on_device(*model, prompts()[0], {.min_p = 0.05, .seed = 4, .min_new_tokens = 4, .ends = {7, 8, 9}})};
    all[1].stop.ends_with = [count = 0](int64_t) mutable { return ++count == 3; };
    return all;
  };
  for (const int64_t page_size : {0, 16}) {
    const std::vector<Answer> expected = answers(*model, exact(*model, page_size), sequences(), false);
    EXPECT_EQ(answers(*model, exact(*model, page_size), sequences(), true), expected) << page_size;
    for (size_t i = 0; i < expected.size(); ++i) {  // in no company
      EXPECT_EQ(answers(*model, exact(*model, page_size), {sequences()[i]}, true).front(), expected[i]) << i;
    }
  }
}

// A constraint decides by the token before, which the host reads while the next forward runs.
TEST_F(Ahead, ConstrainedSequencesHaveTheSameAnswers) {
  const auto constrained = [&](size_t prompt, const RowSampling& settings,
                               std::shared_ptr<TokenConstraint> constraint) {
    Sequence s = on_device(*model, prompts()[prompt], settings);
    s.constraint = std::move(constraint);
    return s;
  };
  const auto sequences = [&] {
    return std::vector<Sequence>{constrained(0, {.temperature = 0}, std::make_shared<Even>()),
                                 constrained(1, {.seed = 2}, std::make_shared<Counting>(5, 9, false)),
                                 of(prompts()[3], 7),
                                 constrained(2, {.seed = 3}, std::make_shared<Counting>(27, 100, false)),
                                 constrained(1, {.seed = 4}, std::make_shared<Counting>(3, 6, true)),
                                 constrained(0, {.presence_penalty = 1, .seed = 5}, std::make_shared<Even>())};
  };
  for (const int64_t page_size : {0, 16}) {
    const std::vector<Answer> expected = answers(*model, exact(*model, page_size), sequences(), false);
    for (const int64_t id : expected[0].ids) EXPECT_EQ(id % 2, 0);
    EXPECT_EQ(expected[1], (Answer{{5, 6, 7, 8}, Finish::kEos}));
    EXPECT_EQ(expected[3], (Answer{{27, 28, 29, 30, 0, 1, 2, 3, 4}, Finish::kLength}));
    EXPECT_EQ(expected[4], (Answer{{3, 4, 5}, Finish::kFailed}));
    EXPECT_EQ(answers(*model, exact(*model, page_size), sequences(), true), expected) << page_size;
    for (size_t i = 0; i < expected.size(); ++i) {  // in no company
      EXPECT_EQ(answers(*model, exact(*model, page_size), {sequences()[i]}, true).front(), expected[i]) << i;
    }
  }
}

// A sequence's tokens do not change where its logits are read as well.
TEST_F(Ahead, TheHostDrawsTheSameTokens) {
  for (RowSampling settings :
       {RowSampling{.seed = 5}, {.top_k = 12, .top_p = 0.9, .presence_penalty = 0.6, .seed = 6}}) {
    std::vector<Sequence> there = {on_device(*model, prompts()[0], settings)};
    settings.logprobs = 0;
    std::vector<Sequence> here = {on_device(*model, prompts()[0], settings)};
    EXPECT_EQ(answers(*model, exact(*model, 0), there, true), answers(*model, exact(*model, 0), here, true));
  }
}

// What all rows draw from one generator in one call stay in step: no step runs ahead of them.
TEST_F(Ahead, RowsThatShareAGeneratorDrawTheSame) {
  const auto run = [&](bool ahead) {
    const auto shared = with({.do_sample = true, .seed = 7});
    std::vector<Sequence> all = {of(prompts()[0], 9, shared), of(prompts()[1], 9, shared), of(prompts()[2], 9, shared)};
    all[1].stop.ends_with = [count = 0](int64_t) mutable { return ++count == 2; };
    return answers(*model, exact(*model, 0), all, ahead);
  };
  EXPECT_EQ(run(true), run(false));
}

// What has run by the time that a token is known.
TEST_F(Ahead, IsOneStepAndOnlyWhereTheDeviceDraws) {
  const auto tokens_after_one_step = [&](const Sequence& sequence, bool ahead) {
    Scheduler scheduler(*model, {.max_sequences = 2, .run_ahead = ahead});
    scheduler.join(sequence);
    EXPECT_EQ(scheduler.step().size(), 1U);
    return scheduler.pool().usage().tokens;
  };
  const auto length = static_cast<int64_t>(prompts()[0].size());
  EXPECT_EQ(tokens_after_one_step(of(prompts()[0], 9), false), length);
  EXPECT_EQ(tokens_after_one_step(of(prompts()[0], 9), true), length + 1);
  EXPECT_EQ(tokens_after_one_step(of(prompts()[0], 1), true), 0) << "that one token ends it is known before";
  EXPECT_EQ(tokens_after_one_step(on_device(*model, prompts()[0], {.frequency_penalty = 1, .seed = 1}), true),
            length + 1);
  Sequence held = on_device(*model, prompts()[0], {.seed = 1});
  held.constraint = std::make_shared<Even>();
  EXPECT_EQ(tokens_after_one_step(held, true), length + 1);
  EXPECT_EQ(tokens_after_one_step(drawn(prompts()[0], 1), true), length) << "its logits are reported";
  EXPECT_EQ(tokens_after_one_step(of(prompts()[0], 9, with({.repetition_penalty = 1.5})), true), length);
}

TEST_F(Ahead, WhoIsTakenWhileAStepIsOnItsWayLeavesNothing) {
  Scheduler scheduler(*model, {.max_sequences = 2, .run_ahead = true});
  const int64_t gone = scheduler.join(of(prompts()[0], 9)), stays = scheduler.join(of(prompts()[1], 6));
  scheduler.step();
  scheduler.leave(gone);
  EXPECT_EQ(scheduler.take(gone).new_tokens(), 1);
  const int64_t next = scheduler.join(of(prompts()[2], 4));
  while (!scheduler.idle()) {
    for (const NewToken& token : scheduler.step()) EXPECT_NE(token.sequence, gone);
  }
  EXPECT_EQ(new_ids(scheduler.take(stays)), single(*model, prompts()[1], 6).ids[0]);
  EXPECT_EQ(new_ids(scheduler.take(next)), single(*model, prompts()[2], 4).ids[0]);
  const int64_t late = scheduler.join(of(prompts()[3], 3));
  while (!scheduler.idle()) scheduler.step();
  EXPECT_EQ(new_ids(scheduler.take(late)), single(*model, prompts()[3], 3).ids[0]);
}

}  // namespace
}  // namespace hotswap
