// Steps of static shape of sequences of one length: each has the tokens of a batch of one, and only the device counts.
#include "hotswap/engine/uniform_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/test_pool.h"
#include "hotswap/engine/test_sequences.h"
#include "hotswap/layers/decoder_layer.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::expect_same;
using test_support::Ids;
using test_support::kinds;
using test_support::kNew;
using test_support::kRounding;
using test_support::message_of;
using test_support::prepare;
using test_support::ran_prompts;
using test_support::RanPrompts;
using test_support::single;
using test_support::Steps;
using test_support::tiny;

const std::vector<Ids> kPrompts = {{5, 6, 7, 8, 9}, {30, 31, 32, 33, 34}};
Tensor batch() { return at::stack({at::tensor(kPrompts[0], at::kLong), at::tensor(kPrompts[1], at::kLong)}); }

// Each row's new tokens.
std::vector<Ids> greedy_steps(CausalLM& model) {
  RanPrompts ran = ran_prompts(model, batch(), 5 + kNew);
  UniformStep step(ran.pool, 5 + kNew);
  std::vector<Ids> all(2);
  for (Tensor logits = ran.logits; all[0].size() < kNew;) {
    const Tensor next = logits.argmax(-1);
    for (int64_t row = 0; row < 2; ++row) all[row].push_back(next[row].item<int64_t>());
    logits = step.forward(model, next);
    step.commit();
    EXPECT_EQ(step.position().item<int64_t>(), step.length());
  }
  return all;
}

class EveryFamilyInUniformSteps : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyInUniformSteps, EachPromptHasTheTokensOfABatchOfOne) {
  const c10::InferenceMode inference;
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  for (const std::string& kind : kinds()) {
    if (!prepare(*model, kind)) continue;
    const std::vector<Ids> got = greedy_steps(*model);
    for (size_t i = 0; i < 2; ++i) {
      expect_same({got[i]}, single(*model, kPrompts[i]), kRounding, cat(kind, ", prompt ", i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyInUniformSteps, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

// A step that is not committed is run again by another one, as after a capture, which launches nothing.
TEST(UniformStep, CountsOnTheDeviceAndOnTheHost) {
  const c10::InferenceMode inference;
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  RanPrompts ran = ran_prompts(*model, batch(), 7);
  const Tensor token = at::tensor({9, 10}, at::kLong);
  UniformStep first(ran.pool, 7), second(ran.pool, 7);
  const Tensor logits = first.forward(*model, token);
  EXPECT_EQ(first.length(), 5);
  EXPECT_EQ(first.position().item<int64_t>(), 6);
  EXPECT_TRUE(at::equal(second.forward(*model, token), logits));
  second.commit();
  EXPECT_EQ(second.kv_bucket(), 7);
  second.forward(*model, token);
  second.commit();
  EXPECT_EQ(ran.pool.length(0), 7);
  expect_has(message_of([&] { second.forward(*model, token); }), {"at most 7 tokens", "larger capacity"});
  expect_has(message_of([&] { second.commit(); }), {"at most 7 tokens"});
}

// By torch's operations what a kernel's op would do.
DecoderInputs inputs_of(const Tensor& ids, const Tensor& embedding, const Tensor& rope, const Tensor& position) {
  DecoderInputs made{embedding.index_select(0, ids.flatten()).unsqueeze(1), rope.index_select(0, position).unsqueeze(0),
                     position.clone()};
  position.add_(1);
  return made;
}

TEST(UniformStep, BeginsByTheFusedStepOfTheModel) {
  const c10::InferenceMode inference;
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  model->kernelize(Mode::INFERENCE);
  ASSERT_NE(model->fused_step(), nullptr);
  EXPECT_EQ(tiny("gemma2", at::kCPU, at::kFloat, 16)->fused_step(), nullptr);
  int64_t calls = 0, slots = 0;
  model->each_slot([&](const std::string&, SlotBase& slot) {
    auto* layer = slot.as<DecoderLayerForward>();
    if (layer == nullptr || slots++ > 0) return;  // the first layer's is the one that is asked
    ASSERT_TRUE(takes_rows(*layer, 2));
    layer->bind_op<BeginStep>([&calls](const auto&... arguments) { return ++calls, inputs_of(arguments...); });
  });
  const std::vector<Ids> got = greedy_steps(*model);
  EXPECT_EQ(calls, kNew);
  model->unkernelize();
  for (size_t i = 0; i < 2; ++i) expect_same({got[i]}, single(*model, kPrompts[i]), kRounding, cat("prompt ", i));
}

TEST(UniformStep, ReadsKeysInBucketsOf512) {
  KvPool pool(at::kCPU, {.max_sequences = 1});
  pool.acquire();
  const auto bucket = [&](int64_t length) {
    pool.append(0, length - pool.length(0), {});
    return UniformStep(pool, 1500).kv_bucket();
  };
  EXPECT_EQ(bucket(1), 512);
  EXPECT_EQ(bucket(511), 512);
  EXPECT_EQ(bucket(512), 1024);
  EXPECT_EQ(bucket(1499), 1500);
}

TEST(UniformStep, TakesSequencesOfOneLengthOnly) {
  const auto refused = [](const KvPoolOptions& options, const std::vector<int64_t>& lengths) {
    KvPool pool(at::kCPU, options);
    for (const int64_t length : lengths) {
      const int64_t sequence = pool.acquire();
      if (length > 0) pool.append(sequence, length, {});
    }
    return message_of([&] { UniformStep(pool, 8); });
  };
  EXPECT_EQ(refused({.max_sequences = 2}, {3, 3}), "no error");
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{}, {0, 0}, {3, 4}}) {
    expect_has(refused({.max_sequences = 2}, lengths),
               {"the same number of tokens", cat(lengths.size(), " sequences")});
  }
  expect_has(refused({.max_sequences = 1, .max_tokens = 16, .page_size = 16}, {3}), {"with pages"});
}

}  // namespace
}  // namespace hotswap
