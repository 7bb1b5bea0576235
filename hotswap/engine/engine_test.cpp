// Sequences of different length in one batch, without padding: each has the tokens of a batch of one, whatever else
// is in the batch, joins it or leaves it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/exact_steps.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/test_sequences.h"

namespace hotswap {

test_support::Steps test_support::single(CausalLM& model, const Ids& prompt, int64_t count) {
  const c10::InferenceMode inference;
  const auto cache = model.make_cache();
  Steps out{{Ids()}, {}};
  Ids tokens = prompt;
  for (int64_t step = 0; step < count; ++step) {
    const Tensor ids = at::tensor(tokens, at::kLong).unsqueeze(0).to(model.device());
    out.logits.push_back(model({.input_ids = ids, .cache = cache.get(), .logits_to_keep = 1})
                             .logits.select(1, 0)
                             .to(at::kCPU, at::kFloat));
    out.ids[0].push_back(out.logits.back().argmax().item<int64_t>());
    tokens = {out.ids[0].back()};
  }
  return out;
}

namespace {

using test_support::batched;
using test_support::expect_has;
using test_support::expect_same;
using test_support::greedy;
using test_support::Ids;
using test_support::kinds;
using test_support::kNew;
using test_support::kRounding;
using test_support::message_of;
using test_support::new_ids;
using test_support::prepare;
using test_support::prompts;
using test_support::recurs;
using test_support::single;
using test_support::Steps;
using test_support::tiny;

class EveryFamilyInOneBatch : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyInOneBatch, EachPromptHasTheTokensOfABatchOfOne) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  for (const std::string& kind : kinds()) {
    if (!prepare(*model, kind)) continue;
    std::vector<Steps> expected;
    for (const Ids& prompt : prompts()) expected.push_back(single(*model, prompt));
    for (const SchedulerOptions& options :
         {SchedulerOptions{.max_sequences = 4}, {.max_sequences = 3, .max_tokens = 40, .page_size = 16, .chunk = 5}}) {
      const std::string what = cat(kind, options.page_size > 0 ? ", pages and chunks" : ", one page a sequence");
      std::vector<Ids> got = batched(*model, options);
      ASSERT_EQ(got.size(), prompts().size());
      EXPECT_LT(got[1].size(), kNew) << "it left";
      expected[1].ids[0].resize(got[1].size());
      int64_t same = 0, all = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        same += expect_same({got[i]}, expected[i], kRounding, cat(what, ", prompt ", i));
        all += static_cast<int64_t>(got[i].size());
      }
      EXPECT_GE(same, all * 3 / 4) << what << ": too many ties to say anything";
      expected[1] = single(*model, prompts()[1]);
    }
  }
}

using Drawn = std::vector<std::pair<int64_t, double>>;  // tokens and their logprobs

// Of each prompt, which has the seed of its place among prompts().
std::map<size_t, Drawn> drawn_in_exact_groups(CausalLM& model, const std::vector<size_t>& which) {
  const ForwardGroups groups = {.decode_rows = max_exact_decode_rows(model, 4), .single_prompts = true};
  Scheduler scheduler(model, {.max_sequences = 4, .chunk = 5, .groups = groups});
  std::map<int64_t, size_t> prompt_of;
  for (const size_t i : which) {
    const auto sampler = std::make_shared<RowSampler>(RowSampling{.seed = i, .logprobs = 0}, model.config().vocab_size);
    prompt_of[scheduler.join({.tokens = prompts()[i], .row_sampler = sampler, .stop = {.max_new_tokens = kNew}})] = i;
  }
  std::map<size_t, Drawn> out;
  while (!scheduler.idle()) {
    for (const NewToken& token : scheduler.step()) {
      out[prompt_of.at(token.sequence)].emplace_back(token.id, token.logprobs->logprob);
    }
  }
  return out;
}

TEST_P(EveryFamilyInOneBatch, ExactGroupsGiveEachRowTheBitsOfABatchOfOne) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  for (const bool kernels : {false, true}) {
    if (kernels) model->kernelize(Mode::of_training(false));
    auto company = drawn_in_exact_groups(*model, {0, 1, 2, 3});
    for (size_t i = 0; i < prompts().size(); ++i) {
      EXPECT_EQ(drawn_in_exact_groups(*model, {i})[i], company[i]) << (kernels ? "kernels, " : "stock, ") << i;
    }
  }
}

// What a guess added is taken back; the right tokens, several in one step, then give what single steps gave.
TEST_P(EveryFamilyInOneBatch, RollsBackToWhatWasKept) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  const Ids& prompt = prompts()[1];
  const Steps expected = single(*model, prompt, 4);
  for (const int64_t page_size : {0, 4}) {
    KvPool pool(at::kCPU, {.max_sequences = 2, .max_tokens = 40, .page_size = page_size});
    StepRunner runner(*model, pool);
    const int64_t other = pool.acquire(), sequence = pool.acquire(), pages = pool.free_pages();
    runner.run({{other, prompts()[0]}, {sequence, prompt}});
    runner.run({{sequence, {1, 2, 3, 4, 5, 6}}});
    const auto length = static_cast<int64_t>(prompt.size());
    EXPECT_EQ(pool.length(sequence), length + 6);
    if (recurs(*GetParam())) {
      expect_has(message_of([&] { pool.rollback(sequence, length); }), {"recurrent state", "back to 0"});
      pool.rollback(sequence, 0);
      runner.run({{sequence, prompt}});
    } else {
      pool.rollback(sequence, length);
    }
    EXPECT_EQ(pool.length(sequence), length);
    const Ids& kept = expected.ids[0];
    const Tensor logits = runner.run({{sequence, {kept[0], kept[1], kept[2]}}, {other, {3}}}).select(0, 0);
    EXPECT_LE((logits - expected.logits[3][0]).norm().item<double>(), 1e-4 * expected.logits[3].norm().item<double>());
    pool.release(sequence);
    pool.release(other);
    EXPECT_EQ(pool.free_pages(), page_size > 0 ? pages : 0);
    EXPECT_EQ(pool.free_sequences(), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyInOneBatch, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

// Frequencies that depend on how long a text is are each sequence's own.
TEST(RotaryOfSequences, FollowsEachRowsOwnLength) {
  std::vector<double> short_factor(8, 1), long_factor(8, 3);
  const nlohmann::ordered_json dynamic = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 10000.0}};
  const nlohmann::ordered_json longrope = {{"rope_type", "longrope"},
                                           {"short_factor", short_factor},
                                           {"long_factor", long_factor},
                                           {"original_max_position_embeddings", 10},
                                           {"rope_theta", 10000.0}};
  for (const auto& rope : {dynamic, longrope}) {
    const nlohmann::ordered_json config = {
        {"model_type", "llama"},         {"vocab_size", 50},         {"hidden_size", 64},
        {"num_hidden_layers", 2},        {"num_attention_heads", 4}, {"num_key_value_heads", 2},
        {"intermediate_size", 64},       {"initializer_range", 0.4}, {"rms_norm_eps", 1e-5},
        {"max_position_embeddings", 10}, {"rope_parameters", rope}};
    const auto fresh = [&] {  // the module itself remembers lengths
      auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
      model->init_weights(3);
      model->eval();
      return model;
    };
    const auto model = fresh();
    const std::vector<Ids> got = batched(*model, {.max_sequences = 4});
    for (size_t i = 0; i < got.size(); ++i) {
      Steps expected = single(*fresh(), prompts()[i]);
      expected.ids[0].resize(got[i].size());
      expect_same({got[i]}, expected, kRounding, cat(rope.dump(), ", prompt ", i));
    }
  }
}

class SchedulerRuns : public testing::Test {
 protected:
  std::shared_ptr<CausalLM> model = tiny("llama", at::kCPU, at::kFloat, 16);
  std::shared_ptr<Sampler> sampler = greedy(*model);
  Sequence of(const Ids& prompt, int64_t count) {
    return {.tokens = prompt, .sampler = sampler, .stop = {.max_new_tokens = count}};
  }
};

TEST_F(SchedulerRuns, FirstComeFirstServedWhereThePoolIsFull) {
  Scheduler scheduler(*model, {.max_sequences = 2, .max_tokens = 32, .page_size = 16});
  const int64_t first = scheduler.join(of({1, 2}, 3)), second = scheduler.join(of({3}, 6)),
                third = scheduler.join(of({4}, 2));
  scheduler.step();
  EXPECT_EQ(scheduler.running(), 2);
  while (scheduler.sequence(first).finish == Finish::kNot) scheduler.step();
  EXPECT_TRUE(scheduler.sequence(third).tokens.size() == 1) << "it waited";
  scheduler.step();
  EXPECT_EQ(scheduler.sequence(third).new_tokens(), 1);
  while (!scheduler.idle()) scheduler.step();
  EXPECT_EQ(scheduler.take(second).finish, Finish::kLength);
  EXPECT_EQ(scheduler.pool().free_pages(), 4);
  EXPECT_EQ(scheduler.step().size(), 0U);
}

// Of prompts that come at once a step runs two chunks' tokens; streams go on meanwhile, and a long prompt that came
// later does not keep a short one that came after it from what is left.
TEST_F(SchedulerRuns, PromptsOfAStepAreTwoChunksTogether) {
  Scheduler scheduler(*model, {.max_sequences = 6, .chunk = 8});
  const auto prompt = [](int64_t size) { return Ids(size, 7); };
  const int64_t stream = scheduler.join(of({1}, 20));
  scheduler.step();
  const int64_t first = scheduler.join(of(prompt(8), 20)), second = scheduler.join(of(prompt(12), 20)),
                third = scheduler.join(of(prompt(5), 20)), fourth = scheduler.join(of(prompt(9), 20));
  const auto step = [&] {
    std::vector<int64_t> ids;
    for (const NewToken& token : scheduler.step()) ids.push_back(token.sequence);
    return ids;
  };
  using Sequences = std::vector<int64_t>;
  EXPECT_EQ(step(), (Sequences{stream, first}));                 // 8 of the first, 8 of the second
  EXPECT_EQ(step(), (Sequences{stream, first, second, third}));  // its last 4, 5 of the third
  EXPECT_EQ(step(), (Sequences{stream, first, second, third}));  // 8 of the fourth
  EXPECT_EQ(step(), (Sequences{stream, first, second, third, fourth}));
}

TEST_F(SchedulerRuns, EndsAtAnEosATextAndWhenToldTo) {
  const Ids free = single(*model, {1, 2}).ids[0];
  Scheduler scheduler(*model, {.max_sequences = 3});
  Sequence eos = of({1, 2}, 9), text = of({1, 2}, 9);
  eos.stop.eos = {free[2]};
  int64_t calls = 0;
  text.stop.ends_with = [&](int64_t token) { return ++calls, token == free[3]; };
  const int64_t a = scheduler.join(eos), b = scheduler.join(text), c = scheduler.join(of({1, 2}, 9));
  std::set<Finish> seen;
  for (int step = 0; step < 6; ++step) {
    for (const NewToken& token : scheduler.step()) seen.insert(token.finish);
  }
  scheduler.leave(c);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(seen, (std::set<Finish>{Finish::kNot, Finish::kEos, Finish::kStopString}));
  EXPECT_EQ(scheduler.take(a).tokens.back(), free[2]);
  const Sequence ended = scheduler.take(b);
  EXPECT_EQ(ended.finish, Finish::kStopString);
  EXPECT_EQ(calls, ended.new_tokens());
  EXPECT_EQ(scheduler.take(c).finish, Finish::kLeft);
}

// Settings of a sequence are its own: in a batch it draws what it draws in a batch of one.
TEST_F(SchedulerRuns, EachSequenceSamplesByItsOwnSettings) {
  const auto sampled = [&](uint64_t seed, double penalty) {
    GenerationConfig config{.min_new_tokens = 2, .do_sample = true, .repetition_penalty = penalty, .seed = seed};
    config.eos_token_id = Ids{3};
    return std::make_shared<Sampler>(config, model->device());
  };
  const auto run = [&](const std::vector<std::pair<Ids, std::shared_ptr<Sampler>>>& all) {
    Scheduler scheduler(*model, {.max_sequences = 3});
    for (const auto& [prompt, own] : all)
      scheduler.join({.tokens = prompt, .sampler = own, .stop = {.max_new_tokens = 8}});
    while (!scheduler.idle()) scheduler.step();
    std::vector<Ids> out;
    for (size_t i = 0; i < all.size(); ++i) out.push_back(new_ids(scheduler.take(static_cast<int64_t>(i))));
    return out;
  };
  const std::vector<Ids> all = run({{{1, 2}, sampled(1, 1)}, {{1, 2, 7}, sampled(2, 1.5)}, {{9}, sampler}});
  EXPECT_EQ(all[0], run({{{1, 2}, sampled(1, 1)}})[0]);
  EXPECT_EQ(all[1], run({{{1, 2, 7}, sampled(2, 1.5)}})[0]);
  EXPECT_EQ(all[2], run({{{9}, sampler}})[0]);
}

TEST_F(SchedulerRuns, ATemperatureNearZeroIsArgmax) {
  const Tensor logits = at::tensor({1.0, 3e4, -2.0, 2.9e4}).unsqueeze(0).to(at::kFloat);
  for (const double temperature : {1e-300, 1e-40, 1e-6}) {
    Sampler cold({.do_sample = true, .temperature = temperature}, at::kCPU);
    EXPECT_EQ(cold.next(logits, {}).item<int64_t>(), 1) << temperature;
  }
}

TEST_F(SchedulerRuns, RefusesWhatCannotRun) {
  Scheduler scheduler(*model, {.max_sequences = 1, .max_tokens = 8, .page_size = 4});
  expect_has(message_of([&] { scheduler.join(of({}, 3)); }), {"a sequence with a prompt", "0 tokens"});
  expect_has(message_of([&] { scheduler.join(of({1}, 0)); }), {"at least one new token"});
  expect_has(message_of([&] { scheduler.join(of({1, 2}, 8)); }), {"at most 8 tokens", "max_tokens"});
  const int64_t id = scheduler.join(of({1, 2}, 7));
  expect_has(message_of([&] { scheduler.take(id); }), {"has ended", "leave() it"});
  expect_has(message_of([&] { scheduler.leave(id + 1); }), {"of this scheduler"});
  KvPool pool(at::kCPU, {.max_sequences = 1});
  const int64_t sequence = pool.acquire();
  expect_has(message_of([&] { pool.acquire(); }), {"at most 1 sequences"});
  expect_has(message_of([&] { pool.rollback(sequence, 1); }), {"a length of 0 to 0"});
  expect_has(message_of([&] { pool.length(7); }), {"the id of a sequence"});
  expect_has(message_of([&] { KvStep(pool, {{sequence, {}}}); }), {"at least one sequence"});
}

// One page a sequence grows as needed, and what was in it stays.
TEST_F(SchedulerRuns, APageThatIsFullGrows) {
  const Steps expected = single(*model, {1, 2, 3}, 100);
  Scheduler scheduler(*model, {.max_sequences = 2, .max_tokens = 1});
  scheduler.join(of({1, 2, 3}, 100));
  scheduler.join(of({4}, 2));
  while (!scheduler.idle()) scheduler.step();
  expect_same({new_ids(scheduler.take(0))}, expected, kRounding, "100 tokens");
}

}  // namespace
}  // namespace hotswap
