// Trainer binds AdamW's kernel where the mapping has one for the model's device, and its updates are that kernel's.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "hotswap/base/env.h"
#include "hotswap/base/test_support.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/training/optimizers/optimizer.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

// Calls of adamw_ in the packages for that backend that this process has loaded.
int64_t updates_by_kernel(const std::string& backend) {
  int64_t calls = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("_optimizer_" + backend) || !name.name.ends_with("::call_count")) continue;
    std::vector<c10::IValue> stack = {"adamw_"};
    c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), "").callBoxed(&stack);
    calls += stack[0].toInt();
  }
  return calls;
}

// The report's row of the update, after a run of three steps.
KernelRow row_after_training(at::Device device, const KernelOptions& options = {}) {
  const auto model = test_support::tiny_llama();
  model->init_weights(3, at::kFloat, device);
  model->kernelize(Mode::TRAINING, options);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 64; ++i) ids.push_back(i % 8);
  Trainer trainer(model, {.per_device_train_batch_size = 2, .max_steps = 3}, std::make_shared<PackedDataset>(ids, 8));
  trainer.train();
  for (const KernelRow& row : trainer.kernel_report().rows) {
    if (row.name == "optimizer") return row;
  }
  ADD_FAILURE() << "no row `optimizer` in the report";
  return {};
}

const bool gpu_is_there = cuda_available();  // before main: torch remembers the first answer

TEST(UpdateKernel, IsBoundOnAGpu) {
  if (!gpu_is_there && env_is_set(EnvVar::kRequireCuda)) FAIL() << "HOTSWAP_REQUIRE_CUDA is set: no GPU";
  if (!gpu_is_there) GTEST_SKIP() << "no GPU that torch can use";
  const int64_t before = updates_by_kernel("cuda");
  const KernelRow row = row_after_training(at::Device("cuda:0"));
  if (!row.package && !env_is_set(EnvVar::kRequireCuda)) GTEST_SKIP() << "stock: " << row.reason;
  EXPECT_EQ(row.package, "optimizer") << row.reason;
  EXPECT_EQ(row.device, "cuda:0");
  EXPECT_EQ(updates_by_kernel("cuda") - before, 3);
}

TEST(UpdateKernel, IsBoundOnACpu) {
  const int64_t before = updates_by_kernel("cpu");
  const KernelRow row = row_after_training(at::kCPU);
  EXPECT_EQ(row.package, "optimizer") << row.reason;
  EXPECT_EQ(row.device, "cpu");
  EXPECT_EQ(updates_by_kernel("cpu") - before, 3);
}

// The model's own mapping keeps the update stock, and has no row for it among the model's.
TEST(UpdateKernel, IsSwitchedOffByTheModelsMapping) {
  const int64_t before = updates_by_kernel("cpu");
  const KernelRow row = row_after_training(at::kCPU, {.config = {.kernel_mapping = {{"AdamW", KernelRef()}}}});
  EXPECT_FALSE(row.package);
  EXPECT_NE(row.reason.find("mapping"), std::string::npos) << row.reason;
  EXPECT_EQ(updates_by_kernel("cpu"), before);
}

// A mapping for GPUs leaves torch's update on a CPU, and the row has the reason.
TEST(UpdateKernel, OfAnotherDeviceIsNotBound) {
  AdamW optimizer({at::ones({4})}, {});
  const KernelReport report = kernelize(
      optimizer.update(), Mode::INFERENCE,
      {.config = {.kernel_mapping = {{"AdamW", {{"cuda", "hotswap/optimizer:AdamW"}}}}, .inherit_mapping = false}});
  ASSERT_EQ(report.rows.size(), 1u);
  EXPECT_FALSE(report.rows[0].package);
  EXPECT_EQ(report.rows[0].device, "cpu");
  test_support::expect_has(report.rows[0].reason, {"AdamW", "on cpu, only on cuda"});
}

}  // namespace
}  // namespace hotswap
