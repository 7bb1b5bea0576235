// Every family's greedy text with a cache of a fixed size, stock and by kernels, on a GPU captured in a CUDA graph, is
// the text of the stock path that is captured nowhere and whose cache grows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "hotswap/engine/test_families.h"
#include "hotswap/engine/test_gpu.h"
#include "hotswap/engine/test_pool.h"
#include "hotswap/engine/uniform_step.h"
#include "hotswap/generation/generate.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

using test_support::expect_same;
using test_support::Ids;
using test_support::kNewTokens;
using test_support::Steps;
using test_support::tiny;

bool is_mixture(const CausalLM& model) {
  const auto& sparse = model.config().mixture.sparse;
  return std::find(sparse.begin(), sparse.end(), true) != sparse.end();
}

struct Prompt {
  Tensor ids, mask;  // [2, 5]; the mask of unpadded ones is undefined
};
std::vector<Prompt> prompts() {
  const Tensor ids = at::tensor(Ids{5, 6, 7, 8, 9, 0, 11, 12, 13, 14}, at::kLong).view({2, 5});
  return {{ids, {}}, {ids, at::tensor(Ids{1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, at::kLong).view({2, 5})}};
}

// Greedy steps, or through these tokens. forward: ids on the model's device, [batch, time] -> logits, [batch, vocab]
Steps stepped(const Prompt& prompt, at::Device device, const std::function<Tensor(const Tensor& ids)>& forward,
              const std::vector<Ids>* tokens) {
  const c10::InferenceMode inference;
  const int64_t batch = prompt.ids.size(0);
  Steps out{std::vector<Ids>(batch), {}};
  Tensor ids = prompt.ids.to(device);
  for (int64_t step = 0; step < kNewTokens; ++step) {
    out.logits.push_back(forward(ids).to(at::kCPU, at::kFloat));
    const Tensor best = out.logits.back().argmax(-1);
    Ids next;
    for (int64_t row = 0; row < batch; ++row) {
      out.ids[row].push_back(best[row].item<int64_t>());
      next.push_back(tokens == nullptr ? out.ids[row].back() : (*tokens)[row][step]);
    }
    ids = at::tensor(next, at::kLong).unsqueeze(1).to(device);
  }
  return out;
}

// With a cache that grows.
Steps stepped(CausalLM& model, const Prompt& prompt) {
  const auto cache = model.make_cache();
  Tensor mask, positions;  // of all tokens that will come
  if (prompt.mask.defined()) {
    mask = at::constant_pad_nd(prompt.mask, {0, kNewTokens}, 1).to(model.device());
    positions = (mask.cumsum(1) - 1).clamp_min(0);
  }
  const auto forward = [&](const Tensor& ids) {
    const int64_t past = cache->length(), time = ids.size(1);
    return model({.input_ids = ids,
                  .attention_mask = mask.defined() ? mask.narrow(1, 0, past + time) : mask,
                  .position_ids = mask.defined() ? positions.narrow(1, past, time) : Tensor(),
                  .cache = cache.get(),
                  .logits_to_keep = 1})
        .logits.select(1, 0);
  };
  return stepped(prompt, model.device(), forward, nullptr);
}

// In steps of static shape, of a prompt without padding.
Steps static_steps(CausalLM& model, const Prompt& prompt, const std::vector<Ids>* tokens = nullptr) {
  const int64_t capacity = prompt.ids.size(1) + kNewTokens - 1;
  test_support::RanPrompts ran = test_support::ran_prompts(model, prompt.ids, capacity);
  UniformStep step(ran.pool, capacity);
  const auto forward = [&](const Tensor& ids) {
    if (ids.size(1) > 1) return ran.logits;  // the prompt
    Tensor logits = step.forward(model, ids.squeeze(1));
    step.commit();
    return logits;
  };
  return stepped(prompt, model.device(), forward, tokens);
}

double apart(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, (got[i] - want[i]).norm().item<double>() / want[i].norm().item<double>());
  }
  return worst;
}

// Sums of another order differ by this much of the largest logit, and logits of whole models by this much.
constexpr double kFloatRounding = 1e-5, kFloatError = 1e-4;

void expect_every_path(const std::string& family, at::Device device) {
  for (const bool kernels : {false, true}) {
    const auto model = tiny(family, device, at::kFloat, 16);
    for (const Prompt& prompt : prompts()) {
      const std::string what = cat(kernels ? "kernels" : "stock", prompt.mask.defined() ? ", padded" : "");
      model->unkernelize();
      const Steps want = stepped(*model, prompt);
      if (kernels) {
        EXPECT_GT(model->kernelize(Mode::of_training(false)).bound(), 0);
      }
      if (!prompt.mask.defined()) {
        EXPECT_LE(apart(static_steps(*model, prompt, &want.ids).logits, want.logits), kFloatError) << what;
      }
      for (const char* cache : {"static", "dynamic"}) {
        const GenerateResult got = generate(
            *model, {.input_ids = prompt.ids,
                     .config = {.max_new_tokens = kNewTokens, .eos_token_id = Ids(), .cache_implementation = cache},
                     .attention_mask = prompt.mask});
        // Stock experts ask the host how many tokens each of them has.
        const bool can_be = device.is_cuda() && cache == std::string("static") && (kernels || !is_mixture(*model));
        EXPECT_EQ(got.captured, can_be) << what << ", " << cache << ": " << got.why_not_captured;
        if (device.is_cuda() && cache == std::string("static") && !can_be) {
          EXPECT_NE(got.why_not_captured.find("runs the stock forward of"), std::string::npos) << got.why_not_captured;
        }
        const int64_t same = expect_same(got.new_ids, want, kFloatRounding, cat(what, ", ", cache));
        EXPECT_GE(same, 2 * kNewTokens * 3 / 4) << what << ": too many ties to say anything";
      }
    }
  }
}

class EveryFamilyGenerates : public testing::TestWithParam<const Family*> {};

TEST_P(EveryFamilyGenerates, WithEachCacheWhatTheStockLayersSay) {
  expect_every_path(GetParam()->model_type, at::kCPU);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyGenerates, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

const at::Device gpu = test_support::gpu();

class EveryFamilyOnGpu : public test_support::OnGpu<testing::TestWithParam<const Family*>> {};

TEST_P(EveryFamilyOnGpu, CapturedSaysWhatTheStockLayersSay) { expect_every_path(GetParam()->model_type, gpu); }

// In bfloat16, with heads that whole layers' kernels take: the same launches from a graph and one by one, so that the
// ids are the same at ties too.
TEST_P(EveryFamilyOnGpu, CapturedSaysWhatItsStepsSayInBfloat16) {
  for (const bool kernels : {false, true}) {
    const auto model = tiny(GetParam()->model_type, gpu, at::kBFloat16, 64);
    if (kernels) model->kernelize(Mode::of_training(false));
    for (const Prompt& prompt : prompts()) {
      const auto run = [&] {
        return generate(
            *model, {.input_ids = prompt.ids,
                     .config = {.max_new_tokens = kNewTokens, .eos_token_id = Ids(), .cache_implementation = "static"},
                     .attention_mask = prompt.mask});
      };
      const GenerateResult got = run();
      EXPECT_EQ(got.captured, kernels || !is_mixture(*model)) << got.why_not_captured;
      const std::string what = cat(kernels ? "kernels" : "stock", prompt.mask.defined() ? ", padded" : "");
      if (!prompt.mask.defined()) {
        EXPECT_EQ(got.new_ids, static_steps(*model, prompt).ids) << what;
      }
      EXPECT_EQ(got.new_ids, run().new_ids) << what << ", again";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamilyOnGpu, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

}  // namespace
}  // namespace hotswap
