// Steps of static shape, which a CUDA graph can run again: every row has the tokens of a batch of one, whatever stands
// in the other rows. On the CPU without a graph, which shows their arithmetic; on a GPU captured.
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/exact_steps.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/test_gpu.h"
#include "hotswap/engine/test_sequences.h"
#include "hotswap/layers/decoder_layer.h"

namespace hotswap {
namespace {

using test_support::batched;
using test_support::expect_same;
using test_support::greedy;
using test_support::Ids;
using test_support::kinds;
using test_support::kNew;
using test_support::kRounding;
using test_support::prepare;
using test_support::prompts;
using test_support::recurs;
using test_support::single;
using test_support::Steps;
using test_support::tiny;

// The prompts by KvStep, then one token of each in static steps, `whole` ones of all the pool's room. `idle`: a
// sequence that is left out of every third one.
std::vector<Ids> by_static_steps(CausalLM& model, std::optional<size_t> idle, bool whole = false) {
  const c10::InferenceMode inference;
  KvPool pool(at::kCPU, {.max_sequences = 6, .max_tokens = 40});
  std::vector<Ids> out(prompts().size());
  std::vector<int64_t> sequences;
  StepRunner runner(model, pool);
  for (size_t i = 0; i < out.size(); ++i) {
    sequences.push_back(pool.acquire());
    out[i].push_back(runner.run({{sequences[i], prompts()[i]}}).argmax().item<int64_t>());
  }
  std::optional<StaticStep> step;
  std::optional<StaticStep::Shape> shape;
  for (int turn = 0; out.back().size() < kNew; ++turn) {
    std::vector<StepRow> rows;
    std::vector<size_t> there;
    for (size_t i = 0; i < out.size(); ++i) {
      if (idle == i && turn % 3 == 1) continue;
      rows.push_back({sequences[i], {out[i].back()}});
      there.push_back(i);
    }
    const auto needed = StaticStep::shape_for(pool, rows, whole);
    if (needed && whole) {
      EXPECT_TRUE(*needed == (StaticStep::Shape{6, pool.page_tokens()}));
    }
    EXPECT_EQ(needed.has_value(), !(pool.recurs() && there.size() < out.size()));
    if (!needed) return out;
    if (!step || *needed != *shape) step.emplace(pool, *needed);
    shape = needed;
    step->set(rows);
    const Tensor logits =
        step->of_rows(model({.step = &step->batch(), .memory = &*step, .logits_to_keep = 1}).logits.select(1, 0));
    step->commit();
    for (size_t row = 0; row < there.size(); ++row)
      out[there[row]].push_back(logits[static_cast<int64_t>(row)].argmax().item<int64_t>());
  }
  return out;
}

// Leaves a whole layer's kernel only its op for the heads. -> how many layers have it
int64_t use_only_heads(CausalLM& model, int64_t& calls) {
  int64_t found = 0;
  model.each_slot([&](const std::string&, SlotBase& slot) {
    const auto inner = slot.op<WriteHeads>();
    if (!inner) return;
    ++found;
    slot.bind_op<ServedRows>([] { return int64_t{0}; });
    slot.bind_op<WriteHeads>([inner, &calls](const DecoderHeads& heads) { return ++calls, inner(heads); });
  });
  return found;
}

class EveryFamilyInStaticSteps : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyInStaticSteps, EachPromptHasTheTokensOfABatchOfOne) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  for (const std::string& kind : kinds()) {
    if (!prepare(*model, kind)) continue;
    std::vector<Steps> expected;
    for (const Ids& prompt : prompts()) expected.push_back(single(*model, prompt));
    for (const auto& [idle, whole] :
         {std::pair<std::optional<size_t>, bool>(std::nullopt, false), {1, false}, {std::nullopt, true}, {1, true}}) {
      const std::vector<Ids> got = by_static_steps(*model, idle, whole);
      for (size_t i = 0; i < got.size(); ++i) {
        Steps first = expected[i];
        first.ids[0].resize(got[i].size());
        expect_same({got[i]}, first, kRounding,
                    cat(kind, ", prompt ", i, idle ? ", one is idle at times" : "", whole ? ", whole steps" : ""));
      }
    }
  }
}

TEST_P(EveryFamilyInStaticSteps, EachPromptHasThemWithAKernelForTheHeads) {
  const auto model = tiny(GetParam()->model_type, at::kCPU, at::kFloat, 16);
  for (const std::string& kind : {kinds()[1], kinds()[2]}) {
    int64_t calls = 0;
    const int64_t layers = prepare(*model, kind) ? use_only_heads(*model, calls) : 0;
    if (layers == 0) continue;
    const std::vector<Ids> got = by_static_steps(*model, std::nullopt);
    EXPECT_GE(calls, layers * static_cast<int64_t>(kNew - 1));
    for (size_t i = 0; i < got.size(); ++i) {
      Steps expected = single(*model, prompts()[i]);
      expected.ids[0].resize(got[i].size());
      expect_same({got[i]}, expected, kRounding, cat(kind, ", prompt ", i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyInStaticSteps, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

class CapturedOnGpu : public test_support::OnGpu<testing::TestWithParam<const Family*>> {};

// Sequences of different length join, end and leave; the graphs are those of the few shapes.
TEST_P(CapturedOnGpu, EachPromptHasTheTokensOfABatchOfOne) {
  const bool is_recurrent = recurs(*GetParam());
  for (const auto& [dtype, head_dim, rounding] :
       {std::tuple(at::kFloat, int64_t{16}, 1e-4), std::tuple(at::kBFloat16, int64_t{64}, 3e-2)}) {
    const auto model = tiny(GetParam()->model_type, test_support::gpu(), dtype, head_dim);
    for (const std::string& kind : kinds()) {
      if (!prepare(*model, kind)) continue;
      if (kind == kinds()[2] && dtype == at::kFloat) continue;  // the kernel takes 16 bits
      Scheduler scheduler(*model, {.max_sequences = 4, .max_tokens = 40});
      const std::vector<Ids> got = batched(*model, scheduler);
      const StepRunner& runner = scheduler.runner();
      const std::string what = cat(kind, ", ", dtype, ", ", runner.why_not_captured());
      const bool is_mixture = !runner.why_not_captured().empty();
      EXPECT_TRUE(!is_mixture || kind == kinds()[0]) << what;
      if (!is_mixture) {
        EXPECT_LE(runner.captured_shapes(), 4) << what;  // one of them of prompts
        EXPECT_GE(runner.replays(), is_recurrent ? 4 : 10) << what;
      }
      for (size_t i = 0; i < got.size(); ++i) {
        Steps expected = single(*model, prompts()[i]);
        expected.ids[0].resize(got[i].size());
        expect_same({got[i]}, expected, rounding, cat(what, ", prompt ", i));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CapturedOnGpu, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

class GroupsOnGpu : public test_support::OnGpu<> {};

// Two forwards of one step may be of the same captured shape: what the later one writes must not be what the earlier
// one returned, also beyond 16 rows.
TEST_F(GroupsOnGpu, EachRowHasItsOwnLogits) {
  const c10::InferenceMode inference;
  const auto model = tiny("llama", test_support::gpu(), at::kFloat, 16);
  const auto logits_of = [&](int64_t count, int64_t decode_rows) {
    KvPool pool(model->device(), {.max_sequences = count, .max_tokens = 40});
    StepRunner runner(*model, pool, {.decode_rows = decode_rows});
    std::vector<StepRow> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back({.sequence = pool.acquire(), .tokens = {i + 1, i + 2}});
    runner.run(rows);
    std::vector<Tensor> steps;
    for (int64_t step = 0; step < 4; ++step) {
      for (int64_t i = 0; i < count; ++i) rows[i].tokens = {(7 * i + step) % 50};
      steps.push_back(runner.run(rows).to(at::kCPU));
    }
    EXPECT_GT(runner.replays(), 0) << runner.why_not_captured();
    return steps;
  };
  for (const auto& [count, decode_rows] : {std::pair<int64_t, int64_t>(4, 3), {20, 17}}) {
    const std::vector<Tensor> expected = logits_of(count, 0), got = logits_of(count, decode_rows);
    for (size_t step = 0; step < expected.size(); ++step) {
      for (int64_t row = 0; row < count; ++row) {
        const Tensor right = expected[step][row];
        EXPECT_LE((got[step][row] - right).norm().item<double>(), 1e-4 * right.norm().item<double>())
            << count << " rows, step " << step << ", row " << row;
      }
    }
  }
}

TEST(WholeSteps, AreRefusedWhereNothingIsCaptured) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  test_support::expect_has(probe_whole_steps(*model, 4).why_not, {"steps that are captured"});
}

class WholeStepsOnGpu : public test_support::OnGpu<> {};

// Tokens and log-probabilities, bit for bit: by itself, among others that join and end at any time, with a beginning
// that was kept, and in a second run, in which every step is a replay.
TEST_F(WholeStepsOnGpu, ATextHasTheSameBitsInAnyCompany) {
  const c10::InferenceMode inference;
  for (const char* family : {"llama", "qwen3", "gemma2", "phi3"}) {
    const auto model = tiny(family, test_support::gpu(), at::kBFloat16, 64);
    for (const std::string& kind : kinds()) {
      if (!prepare(*model, kind)) continue;
      const WholeSteps found = probe_whole_steps(*model, 20);
      ASSERT_EQ(found.why_not, "") << family << ", " << kind;
      std::printf("%s, %s: a whole step %.3f ms, one row %.3f ms\n", family, kind.c_str(), found.ms, found.single_ms);
      Scheduler scheduler(*model, {.max_sequences = 20,
                                   .max_tokens = 200,
                                   .chunk = 16,
                                   .groups = {.single_prompts = true, .whole_steps = true},
                                   .prefix_tokens = 320,
                                   .exact = true});
      const auto argmax = greedy(*model);
      const auto sampler =
          std::make_shared<const RowSampler>(RowSampling{.temperature = 0, .logprobs = 1}, model->config().vocab_size);
      const auto text_of = [&](int64_t others) {
        const auto prompt = [&](int64_t seed, int64_t size) {
          Ids ids;
          for (int64_t i = 0; i < size; ++i) ids.push_back((seed * 31 + i * i * 7 + i) % 50);
          return ids;
        };
        for (int64_t i = 0; i < others; ++i) {
          scheduler.join(
              {.tokens = prompt(i + 1, 3 + i * 5 % 40), .sampler = argmax, .stop = {.max_new_tokens = 3 + i}});
        }
        const int64_t own =
            scheduler.join({.tokens = prompt(0, 37), .row_sampler = sampler, .stop = {.max_new_tokens = 24}});
        std::vector<std::pair<int64_t, double>> text;
        while (!scheduler.idle()) {
          for (const NewToken& token : scheduler.step()) {
            if (token.sequence == own) text.emplace_back(token.id, token.logprobs.value().logprob);
          }
        }
        return text;
      };
      const auto single = text_of(0);
      EXPECT_EQ(single.size(), 24u);
      for (const int64_t others : {3, 19, 40, 0})
        EXPECT_EQ(text_of(others), single) << family << ", " << kind << ", " << others;
    }
  }
}

}  // namespace
}  // namespace hotswap
