// A step that is compared with stock layers: agrees where kernels do, names the layer where one does not, and leaves
// the run as it was.
#include "hotswap/training/step_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/norm.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

std::shared_ptr<PackedDataset> count_to_eight() {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 64; ++i) ids.push_back(i % 8);
  return std::make_shared<PackedDataset>(ids, 8);
}

struct Ran {
  std::vector<Tensor> parameters;
  std::vector<StepCheck> checks;
};
Ran run_checked(std::optional<int64_t> check_step) {
  Ran ran;
  const auto model = test_support::tiny_llama({.layers = 2});
  model->kernelize();
  Trainer trainer(model, {.per_device_train_batch_size = 2, .max_steps = 4, .learning_rate = 1e-2}, count_to_eight(),
                  {.check_step = check_step, .on_step_check = [&](const StepCheck& c) { ran.checks.push_back(c); }});
  trainer.train();
  ran.parameters = model->parameters();
  return ran;
}

TEST(StepCheck, AgreesAndLeavesNoTrace) {
  const Ran checked = run_checked(3), plain = run_checked(std::nullopt);
  ASSERT_EQ(checked.checks.size(), 1u);
  const StepCheck& check = checked.checks[0];
  EXPECT_EQ(check.step, 3);
  EXPECT_NEAR(check.loss, check.stock_loss, 1e-5 * check.stock_loss);
  EXPECT_EQ(check.rows.size(), checked.parameters.size());
  EXPECT_LT(check.rows.front().difference, 1e-4) << check.rows.front().name;
  EXPECT_GT(check.rows.front().norm, 0);
  EXPECT_TRUE(plain.checks.empty());
  for (size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(checked.parameters[i], plain.parameters[i])) << i;
  }
}

// The norm of layer 1 loses its weight's gradient.
TEST(StepCheck, NamesTheLayerWhoseKernelIsWrong) {
  const auto model = test_support::tiny_llama({.layers = 2});
  model->kernelize();
  model->each_slot([](const std::string& name, SlotBase& slot) {
    if (name.find("layers.1.post_attention_layernorm") == std::string::npos || slot.layer() != "AddRMSNorm") return;
    slot.as<AddRmsNormForward>()->bind([](const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                          double offset, const std::string& casting) {
      const Tensor h = x + residual;
      return std::tuple(stock::rms_norm(h, weight.detach(), eps, offset, casting), h);
    });
  });
  const Tensor ids = count_to_eight()->batch({0, 1}).input_ids;
  const StepCheck check = check_step(*model, [&] {
    const Tensor loss = (*model)({.input_ids = ids, .labels = ids}).loss;
    loss.backward();
    return loss.detach();
  });
  EXPECT_EQ(check.rows.front().name, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(check.rows.front().difference, 1) << "it has no gradient";
  EXPECT_GT(model->kernel_report().bound(), 0) << "kernels are bound again";
}

TEST(StepCheck, NeedsKernels) {
  const auto model = test_support::tiny_llama();
  Trainer trainer(model, {.max_steps = 1}, count_to_eight(), {.check_step = 1});
  EXPECT_NE(test_support::message_of([&] { trainer.train(); }).find("a model with kernels"), std::string::npos);
}

}  // namespace
}  // namespace hotswap
