// A step whose activations are made again has the bits of one that keeps them: every family, by kernels too, with an
// adapter and its dropout; and keeps less.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "hotswap/base/test_support.h"
#include "hotswap/models/family.h"
#include "hotswap/models/test_families.h"

namespace hotswap {
namespace {

using test_support::message_of;
using test_support::tiny;

Tensor some_ids() { return at::randint(1, 40, {2, 11}, at::kLong); }

// The loss, then the gradients of all that learns, by name.
std::map<std::string, Tensor> loss_and_gradients(CausalLM& model, const Tensor& ids) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(7);  // of dropout
  model.each_trained([](const std::string&, Tensor& t) { t.mutable_grad() = Tensor(); });
  const CausalLMOutput out = model({.input_ids = ids, .labels = ids});
  out.loss.backward();
  std::map<std::string, Tensor> made{{"", out.loss.detach()}};
  model.each_trained([&](const std::string& name, Tensor& t) { made[name] = t.grad(); });
  return made;
}

void expect_same_step(const std::map<std::string, Tensor>& got, const std::map<std::string, Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(got.at(name).defined(), tensor.defined()) << name;
    if (tensor.defined()) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
  }
}

struct Way {
  int64_t every_n_layers;
  bool offload;
};

class Checkpointed : public testing::TestWithParam<std::string> {};

TEST_P(Checkpointed, AStepHasTheSameBits) {
  const auto model = tiny(GetParam());
  model->train();
  model->requires_grad(true);
  const Tensor ids = some_ids();
  for (const bool kernels : {false, true}) {
    if (kernels) model->kernelize();
    const auto expected = loss_and_gradients(*model, ids);
    for (const Way& way : {Way{1, false}, Way{2, false}, Way{1, true}}) {
      SCOPED_TRACE(cat("kernels ", kernels, ", every ", way.every_n_layers));
      model->gradient_checkpointing_enable(way.every_n_layers, way.offload);
      EXPECT_TRUE(model->is_gradient_checkpointing());
      expect_same_step(loss_and_gradients(*model, ids), expected);
      model->gradient_checkpointing_disable();
    }
  }
}

std::vector<std::string> every_family() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->model_type);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Families, Checkpointed, testing::ValuesIn(every_family()),
                         [](const auto& info) { return info.param; });

TEST(CheckpointedSteps, AnAdaptersDropoutIsDrawnAgain) {
  const auto model = tiny("llama");
  model->add_adapter({.r = 4, .lora_dropout = 0.4, .target_modules = "all-linear"});
  model->each_trained([](const std::string&, Tensor& t) { t.data().normal_(0, 0.1); });
  model->train();
  const Tensor ids = some_ids();
  const auto expected = loss_and_gradients(*model, ids);
  model->gradient_checkpointing_enable();
  const auto generator_after = [&] {
    const auto made = loss_and_gradients(*model, ids);
    return std::pair(made, at::globalContext().defaultGenerator(at::kCPU).get_state());
  };
  const auto [made, state] = generator_after();
  expect_same_step(made, expected);
  model->gradient_checkpointing_disable();
  loss_and_gradients(*model, ids);
  EXPECT_TRUE(at::equal(state, at::globalContext().defaultGenerator(at::kCPU).get_state()))
      << "drawing again leaves no trace";
}

TEST(CheckpointedSteps, RouterLogitsHaveTheirGradients) {
  const auto model = tiny("mixtral");
  model->train();
  model->requires_grad(true);
  const Tensor ids = some_ids();
  const auto loss = [&] {
    const auto out = (*model)({.input_ids = ids, .labels = ids, .output_router_logits = true});
    EXPECT_EQ(out.router_logits.size(), 3u);
    Tensor sum = out.loss;
    for (const Tensor& logits : out.router_logits) sum = sum + logits.square().mean();
    model->each_trained([](const std::string&, Tensor& t) { t.mutable_grad() = Tensor(); });
    sum.backward();
    std::map<std::string, Tensor> made{{"", sum.detach()}};
    model->each_trained([&](const std::string& name, Tensor& t) { made[name] = t.grad(); });
    return made;
  };
  const auto expected = loss();
  model->gradient_checkpointing_enable();
  expect_same_step(loss(), expected);
}

// Bytes that torch's allocators report as they come and go in this thread.
class Reporter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { held += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held = 0;
};

// After the forward what is kept for backward is there, and nothing else that was made.
int64_t bytes_kept(CausalLM& model, const Tensor& ids) {
  const auto reporter = std::make_shared<Reporter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reporter);
  const Tensor loss = model({.input_ids = ids, .labels = ids}).loss;
  return reporter->held;
}

TEST(CheckpointedSteps, KeepOneInputALayer) {
  const auto model = tiny("llama");
  model->train();
  model->requires_grad(true);
  const Tensor ids = at::randint(1, 40, {4, 50}, at::kLong);
  const int64_t all = bytes_kept(*model, ids);
  if (all == 0) GTEST_SKIP() << "the allocator reports nothing";
  model->gradient_checkpointing_enable();
  const int64_t inputs = bytes_kept(*model, ids);
  EXPECT_LT(inputs, all / 2) << all;
}

TEST(CheckpointedSteps, EvaluationAndCachesAreAsEver) {
  const auto model = tiny("llama");
  model->gradient_checkpointing_enable();
  const Tensor ids = some_ids();
  const at::NoGradGuard no_grad;
  const Tensor whole = (*model)({.input_ids = ids}).logits;
  const auto cache = model->make_cache();
  const Tensor cached = (*model)({.input_ids = ids, .cache = cache.get()}).logits;
  EXPECT_LT((whole - cached).abs().max().item<double>(), 1e-5);
}

TEST(CheckpointedSteps, RefuseWhatTheyCannotDo) {
  const auto model = tiny("llama");
  EXPECT_NE(message_of([&] { model->gradient_checkpointing_enable(0); }).find("every_n_layers of at least 1"),
            std::string::npos);
  model->train();
  model->requires_grad(true);
  model->gradient_checkpointing_enable();
  const Tensor ids = some_ids();
  const Tensor loss = (*model)({.input_ids = ids, .labels = ids}).loss;
  EXPECT_NE(message_of([&] { loss.backward({}, true, /*create_graph=*/true); }).find("a gradient of the gradient"),
            std::string::npos);
}

}  // namespace
}  // namespace hotswap
