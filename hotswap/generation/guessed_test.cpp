// Texts with guessed tokens are the texts of single steps: every family that can go back, stock and by kernels, by
// prompt lookup and by assistants that are always right and mostly wrong.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/guess_step.h"
#include "hotswap/engine/test_families.h"
#include "hotswap/engine/test_sequences.h"
#include "hotswap/engine/verified_steps.h"
#include "hotswap/generation/generate.h"
#include "hotswap/generation/guesser.h"
#include "hotswap/generation/test_sampling.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::Ids;
using test_support::kinds;
using test_support::message_of;
using test_support::prepare;
using test_support::recurs;
using test_support::tiny;

// Its end stands in it before, so that there is something to look up.
const Ids kPrompt = {5, 6, 7, 8, 9, 5, 6, 7};

GenerateResult generated(CausalLM& model, GenerationConfig config, CausalLM* assistant = nullptr) {
  if (!config.max_new_tokens) config.max_new_tokens = 40;
  config.eos_token_id = config.eos_token_id.value_or(Ids());
  return generate(model, {.input_ids = at::tensor(kPrompt, at::kLong).unsqueeze(0).to(model.device()),
                          .config = config,
                          .assistant = assistant});
}

int64_t sum(const Ids& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

void expect_same_text(const GenerateResult& got, const GenerateResult& expected, const std::string& what) {
  EXPECT_EQ(got.new_ids, expected.new_ids) << what;
  EXPECT_TRUE(at::equal(got.ids, expected.ids)) << what;
  EXPECT_EQ(sum(got.accepted) + 1, static_cast<int64_t>(got.new_ids[0].size())) << what;
}

class EveryFamilyGuesses : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyGuesses, HasTheTextOfSingleSteps) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto model = tiny(GetParam()->model_type, at::kCPU, dtype, 16);
    const auto other = tiny(GetParam()->model_type, at::kCPU, dtype, 16);
    other->init_weights(4, dtype);
    if (recurs(*GetParam())) {
      expect_has(message_of([&] { generated(*model, {.prompt_lookup_num_tokens = 3}); }),
                 {GetParam()->model_type, "recurrent states", "prompt_lookup_num_tokens"});
      continue;
    }
    for (const std::string& kind : kinds()) {
      if (!prepare(*model, kind) || !prepare(*other, kind)) continue;
      const std::string what = cat(kind, ", ", dtype);
      const GenerateResult expected = generated(*model, {.max_new_tokens = 24});
      for (const int64_t count : {2, 10}) {
        expect_same_text(generated(*model, {.max_new_tokens = 24, .prompt_lookup_num_tokens = count}), expected,
                         cat(what, ", ", count));
      }
      const GenerationConfig own = {.max_new_tokens = 24, .assistant_confidence_threshold = 0};
      const GenerateResult itself = generated(*model, own, model.get());
      expect_same_text(itself, expected, what + ", the model itself");
      EXPECT_LT(itself.accepted.size(), expected.new_ids[0].size() * 3 / 4) << what << ": it is mostly right";
      expect_same_text(generated(*model, own, other.get()), expected, what + ", another model");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyGuesses, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

// What decides whether rows of one forward are trusted: the bits. Whole layers by a kernel have them, torch's products
// do not.
TEST(GuessedRows, HaveTheBitsOfSingleStepsWhereLayersRunByAKernel) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::string family : {"llama", "qwen3", "gemma"}) {
      const auto model = tiny(family, at::kCPU, dtype, 16);
      prepare(*model, "kernels");
      const auto result = generated(*model, {.prompt_lookup_num_tokens = 3});
      if (family == "gemma") continue;  // its layers run by their parts
      EXPECT_EQ(result.repeated_tokens, 0) << family << ", " << dtype;
      EXPECT_LT(result.accepted.size(), 39U) << family << ": nothing was guessed";
    }
  }
}

// The rows of a step against single steps, also where the sequence has pages and where others stand beside it.
TEST(GuessedRows, AreSingleSteps) {
  for (const std::string family : {"llama", "gemma2", "mixtral", "deepseek_v3"}) {
    const auto model = tiny(family, at::kCPU, at::kFloat, 16);
    for (const std::string& kind : kinds()) {
      if (!prepare(*model, kind)) continue;
      for (const int64_t page_size : {0, 16}) {
        KvPool pool(at::kCPU, {.max_sequences = 3, .max_tokens = 64, .page_size = page_size});
        StepRunner runner(*model, pool);
        pool.acquire();
        const int64_t guessed = pool.acquire(), single = pool.acquire();
        runner.run({{guessed, kPrompt}, {single, kPrompt}});
        const Ids tokens = {8, 40, 3, 3, 17};
        const c10::InferenceMode inference;
        GuessStep step(pool, guessed, tokens);
        const Tensor all = (*model)({.step = &step.batch(), .memory = &step, .logits_to_keep = 1}).logits.select(1, 0);
        step.commit();
        for (size_t i = 0; i < tokens.size(); ++i) {
          const Tensor expected = runner.run({{single, {tokens[i]}}})[0];
          EXPECT_LE((all[static_cast<int64_t>(i)] - expected).norm().item<double>(),
                    1e-4 * expected.norm().item<double>())
              << family << ", " << kind << ", row " << i;
        }
        EXPECT_EQ(pool.length(guessed), pool.length(single));
      }
    }
  }
}

TEST(GuessedText, EndsWhereTheOtherEnds) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  const Ids all = generated(*model, {}).new_ids[0];
  for (const GenerationConfig& config : {GenerationConfig{.max_new_tokens = 1},
                                         {.max_new_tokens = 2},
                                         {.max_new_tokens = 17},
                                         {.eos_token_id = Ids{all[12]}},
                                         {.repetition_penalty = 1.3},
                                         {.no_repeat_ngram_size = 3},
                                         {.min_new_tokens = 20, .eos_token_id = Ids{all[3]}}}) {
    GenerationConfig guessing = config;
    guessing.prompt_lookup_num_tokens = 5;
    expect_same_text(generated(*model, guessing), generated(*model, config), to_json(config).dump());
    guessing.prompt_lookup_num_tokens = std::nullopt;
    guessing.assistant_confidence_threshold = 0;
    expect_same_text(generated(*model, guessing, model.get()), generated(*model, config), to_json(config).dump());
  }
  int64_t calls = 0;
  const auto stopped = generate(*model, {.input_ids = at::tensor(kPrompt, at::kLong).unsqueeze(0),
                                         .config = {.max_new_tokens = 40, .prompt_lookup_num_tokens = 5},
                                         .on_tokens = [&](const Ids&) { return ++calls < 7; }});
  EXPECT_EQ(stopped.new_ids[0], Ids(all.begin(), all.begin() + 7));
}

// A token is drawn from the model's own distribution at every position, and is the guess or ends it.
TEST(GuessedText, IsDrawnAsOften) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16), other = tiny("llama", at::kCPU, at::kFloat, 16);
  other->init_weights(4);
  const GenerationConfig config = {.max_new_tokens = 3, .do_sample = true, .temperature = 0.4, .top_k = 4};
  const auto draws = [&](bool lookup, CausalLM* assistant, uint64_t seed) {
    Ids first, last;
    for (uint64_t run = 0; run < 600; ++run) {
      GenerationConfig one = config;
      one.seed = seed + run;
      one.assistant_confidence_threshold = 0;
      if (lookup) one.prompt_lookup_num_tokens = 2;
      const auto result = generated(*model, one, assistant);
      for (const int64_t id : result.new_ids[0]) last.push_back(id % 8);
    }
    return at::tensor(last, at::kLong);
  };
  const Tensor plain = draws(false, nullptr, 1);
  EXPECT_LT(test_support::apart(plain, draws(true, nullptr, 10001)), 1);
  EXPECT_LT(test_support::apart(plain, draws(false, model.get(), 20001)), 1);
  EXPECT_LT(test_support::apart(plain, draws(false, other.get(), 30001)), 1);
}

// transformers' PromptLookupCandidateGenerator on the same texts.
TEST(PromptLookups, TakeTheFirstPlaceOfTheLongestRun) {
  const auto guess = [](const Ids& tokens, int64_t limit, int64_t count = 10, int64_t ngram = 2, Ids eos = {}) {
    return generation::PromptLookup(
               {.eos_token_id = eos, .prompt_lookup_num_tokens = count, .max_matching_ngram_size = ngram})
        .guess(tokens, limit);
  };
  EXPECT_EQ(guess({1, 2, 3, 9, 1, 2, 4, 1, 2}, 9), (Ids{3, 9, 1, 2, 4, 1, 2}));
  EXPECT_EQ(guess({1, 2, 3, 9, 1, 2, 4, 1, 2}, 2), (Ids{3, 9}));
  EXPECT_EQ(guess({1, 2, 3, 9, 1, 2, 4, 1, 2}, 9, 1), (Ids{3}));
  EXPECT_EQ(guess({2, 7, 5, 2}, 9), (Ids{7, 5, 2})) << "one token where two are not found";
  EXPECT_EQ(guess({2, 7, 5, 2}, 0), Ids());
  EXPECT_EQ(guess({1, 2, 3}, 9), Ids());
  EXPECT_EQ(guess({1}, 9), Ids());
  EXPECT_EQ(guess({4, 4}, 9), (Ids{4}));
  EXPECT_EQ(guess({1, 2, 3, 9, 8, 1, 2}, 9, 10, 2, {9}), (Ids{3})) << "up to an end";
  EXPECT_EQ(guess({1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 3, 4, 2, 3, 4}, 1, 10, 3), (Ids{5}));
}

TEST(GuessedText, RefusesWhatItCannotDo) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16), mamba = tiny("mamba", at::kCPU, at::kFloat, 16);
  const auto refused = [&](const GenerationConfig& config, CausalLM* assistant) {
    return message_of([&] { generated(*model, config, assistant); });
  };
  expect_has(refused({.prompt_lookup_num_tokens = 0}, nullptr), {"prompt_lookup_num_tokens", "0"});
  expect_has(refused({.prompt_lookup_num_tokens = 2, .max_matching_ngram_size = 0}, nullptr),
             {"max_matching_ngram_size"});
  expect_has(refused({.prompt_lookup_num_tokens = 2}, model.get()), {"both"});
  expect_has(refused({.num_assistant_tokens = 0}, model.get()), {"num_assistant_tokens"});
  expect_has(refused({.num_assistant_tokens_schedule = "fast"}, model.get()), {"heuristic_transient", "fast"});
  expect_has(refused({}, mamba.get()), {"mamba", "recurrent"});
  const Tensor two = at::tensor(kPrompt, at::kLong).view({2, 4});
  expect_has(message_of([&] { generate(*model, {.input_ids = two, .config = {.prompt_lookup_num_tokens = 2}}); }),
             {"a batch of 2", "one prompt"});
}

TEST(GuessedText, AnAssistantsScheduleFollowsItsGuesses) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  const auto assistant = tiny("llama", at::kCPU, at::kFloat, 16);
  const GenerationConfig config = {
      .num_assistant_tokens = 2, .num_assistant_tokens_schedule = "heuristic", .assistant_confidence_threshold = 0};
  const auto result = generated(*model, config, assistant.get());
  EXPECT_GT(result.accepted.back() + result.accepted[result.accepted.size() - 2], 6) << "it became longer";
  EXPECT_GT(assistant->generation_config().num_assistant_tokens.value_or(0), 2);
}

}  // namespace
}  // namespace hotswap
