// Ragged steps: chunks of several prompts as one row of tokens give each prompt what it has in a batch of one. On the
// CPU without a graph, which shows their arithmetic; on a GPU captured.
#include "hotswap/engine/ragged_step.h"

#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/test_gpu.h"
#include "hotswap/engine/test_sequences.h"
#include "hotswap/layers/decoder_layer.h"

namespace hotswap {
namespace {

using test_support::expect_same;
using test_support::greedy;
using test_support::Ids;
using test_support::kinds;
using test_support::kNew;
using test_support::kRounding;
using test_support::prepare;
using test_support::single;
using test_support::Steps;
using test_support::tiny;

Ids prompt_of(int64_t seed, int64_t size) {
  Ids ids;
  for (int64_t i = 0; i < size; ++i) ids.push_back((seed * 31 + i * i * 7 + i) % test_support::kVocabulary);
  return ids;
}

// A pool whose memory is there, and into which something was written that no prompt may see.
KvPool used_pool(CausalLM& model) {
  KvPool pool(model.device(), {.max_sequences = 6, .max_tokens = 63});
  std::vector<StepRow> rows;
  for (int64_t i = 0; i < 6; ++i) rows.push_back({.sequence = pool.acquire(), .tokens = prompt_of(9, 40)});
  KvStep step(pool, rows);
  model({.step = &step.batch(), .memory = &step, .logits_to_keep = 1});
  step.commit();
  for (const StepRow& row : rows) pool.release(row.sequence);
  return pool;
}

// What a prompt says, its first chunk and its second in ragged steps of all, and then token after token in these, too.
std::vector<Ids> by_ragged_steps(CausalLM& model, const std::vector<Ids>& prompts, int64_t chunk) {
  const c10::InferenceMode inference;
  KvPool pool = used_pool(model);
  std::vector<int64_t> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(pool.acquire());
  std::vector<Ids> texts = prompts;
  for (bool more = true; more;) {
    std::vector<StepRow> rows;
    std::vector<size_t> of;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto done = pool.length(sequences[i]), all = static_cast<int64_t>(texts[i].size());
      if (texts[i].size() - prompts[i].size() == kNew) continue;
      const int64_t count = std::min(chunk, all - done);
      rows.push_back({.sequence = sequences[i], .tokens = {texts[i].begin() + done, texts[i].begin() + done + count}});
      EXPECT_TRUE(RaggedStep::serves(pool, rows.back()));
      of.push_back(i);
    }
    more = !rows.empty();
    if (!more) break;
    RaggedStep step(pool, RaggedStep::shape_for(rows));
    step.set(rows);
    const Tensor logits =
        step.of_rows(model({.step = &step.batch(), .memory = &step, .logits_to_keep = 1}).logits.select(1, 0));
    step.commit();
    for (size_t row = 0; row < of.size(); ++row) {
      const bool is_last = pool.length(sequences[of[row]]) == static_cast<int64_t>(texts[of[row]].size());
      if (is_last) texts[of[row]].push_back(logits[static_cast<int64_t>(row)].argmax().item<int64_t>());
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) texts[i].erase(texts[i].begin(), texts[i].begin() + std::ssize(prompts[i]));
  return texts;
}

class EveryFamilyInRaggedSteps : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyInRaggedSteps, EachPromptHasTheTokensOfABatchOfOne) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  EXPECT_FALSE(RaggedStep::serves(*model)) << "stock";
  if (!prepare(*model, kinds()[2]) || !RaggedStep::serves(*model)) GTEST_SKIP() << "has no such steps";
  const std::vector<Ids> prompts = {prompt_of(1, 5), prompt_of(2, 23), prompt_of(3, 1), prompt_of(4, 12)};
  for (const int64_t chunk : {64, 7}) {
    const std::vector<Ids> got = by_ragged_steps(*model, prompts, chunk);
    for (size_t i = 0; i < got.size(); ++i)
      expect_same({got[i]}, single(*model, prompts[i]), kRounding, cat("chunks of ", chunk, ", prompt ", i));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyInRaggedSteps, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

TEST(RaggedSteps, ServeTheFamiliesThatAKernelMakesHeadsReadyFor) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "phi3"}) {
    const auto model = tiny(family, at::kCPU, at::kFloat, 16);
    prepare(*model, kinds()[2]);
    EXPECT_TRUE(RaggedStep::serves(*model)) << family;
  }
  for (const char* family : {"mamba", "jamba", "gpt2", "gemma2"}) {
    const auto model = tiny(family, at::kCPU, at::kFloat, 16);
    prepare(*model, kinds()[2]);
    EXPECT_FALSE(RaggedStep::serves(*model)) << family;
  }
}

TEST(RaggedSteps, ShapesAreAtMostAThirdPadding) {
  const auto tokens = [](std::initializer_list<int64_t> counts) {
    std::vector<StepRow> rows;
    for (const int64_t count : counts) rows.push_back({.sequence = 0, .tokens = Ids(count)});
    return RaggedStep::shape_for(rows).tokens;
  };
  EXPECT_EQ(tokens({1}), 16);
  EXPECT_EQ(tokens({8, 9}), 24);
  EXPECT_EQ(tokens({25}), 32);
  EXPECT_EQ(tokens({300, 1}), 384);
  EXPECT_EQ(tokens({512}), 512);
  EXPECT_EQ(tokens({1000}), 1024);
}

TEST(RaggedSteps, NeedRoomForTokensOfNoPrompt) {
  const c10::InferenceMode inference;
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  KvPool fresh(at::kCPU, {.max_sequences = 2, .max_tokens = 64});
  EXPECT_FALSE(RaggedStep::serves(fresh, {.sequence = fresh.acquire(), .tokens = {1}})) << "no memory yet";
  KvPool pool = used_pool(*model);
  const int64_t sequence = pool.acquire();
  EXPECT_TRUE(RaggedStep::serves(pool, {.sequence = sequence, .tokens = Ids(63)}));
  EXPECT_FALSE(RaggedStep::serves(pool, {.sequence = sequence, .tokens = Ids(64)}));
  EXPECT_FALSE(RaggedStep::serves(pool, {.sequence = sequence, .tokens = {1}, .adapter = 0}));
}

class RaggedOnGpu : public test_support::OnGpu<testing::TestWithParam<const char*>> {};

// Prompts that join at any time and share steps, most of which are replays; beside the host's order of forwards.
TEST_P(RaggedOnGpu, EachPromptHasTheTokensOfABatchOfOne) {
  const auto model = tiny(GetParam(), test_support::gpu(), at::kBFloat16, 64);
  prepare(*model, kinds()[2]);
  ASSERT_TRUE(RaggedStep::serves(*model));
  Scheduler scheduler(*model, {.max_sequences = 8, .max_tokens = 120, .chunk = 32});
  std::vector<Ids> prompts;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 40; ++i) prompts.push_back(prompt_of(i, 1 + i * 17 % 70));
  for (const Ids& prompt : prompts) {
    ids.push_back(scheduler.join({.tokens = prompt, .sampler = greedy(*model), .stop = {.max_new_tokens = kNew}}));
    scheduler.step();
  }
  while (!scheduler.idle()) scheduler.step();
  EXPECT_GE(scheduler.runner().ragged_steps(), 20);
  for (size_t i = 0; i < ids.size(); ++i) {
    const Sequence done = scheduler.take(ids[i]);
    expect_same({test_support::new_ids(done)}, single(*model, prompts[i]), 3e-2, cat(GetParam(), ", prompt ", i));
  }
}

// The first forward of a step makes the memory without which the others' rows had no ragged step.
TEST_P(RaggedOnGpu, ManyPromptsOfTheFirstStepHaveThemToo) {
  const auto model = tiny(GetParam(), test_support::gpu(), at::kBFloat16, 64);
  prepare(*model, kinds()[2]);
  Scheduler scheduler(*model, {.max_sequences = 48, .max_tokens = 120});
  std::vector<Ids> prompts;
  for (int64_t i = 0; i < 48; ++i) prompts.push_back(prompt_of(i, i % 2 == 0 ? 3 : 70));
  for (const Ids& prompt : prompts)
    scheduler.join({.tokens = prompt, .sampler = greedy(*model), .stop = {.max_new_tokens = kNew}});
  while (!scheduler.idle()) scheduler.step();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Sequence done = scheduler.take(static_cast<int64_t>(i));
    expect_same({test_support::new_ids(done)}, single(*model, prompts[i]), 3e-2, cat(GetParam(), ", prompt ", i));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RaggedOnGpu, testing::Values("llama", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hotswap
