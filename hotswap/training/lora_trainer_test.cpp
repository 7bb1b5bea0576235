// The Trainer over adapters: the same losses and the same adapter as transformers' Trainer over peft's
// (lora_trainer_oracle.py), from the same adapter on.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "hotswap/base/test_data.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::TempFolder;

struct LoraRun {
  std::string name;
  bool kernels;
};

class LoraCurve : public testing::TestWithParam<LoraRun> {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports("peft, transformers")) GTEST_SKIP() << *why;
    folder_ = test_support::made_data("training/lora_trainer_oracle.py") / GetParam().name;
  }
  std::shared_ptr<const Dataset> dataset(const Json& run) const {
    std::vector<Example> examples;
    for (const Json& row : run.child("train").elements()) {
      examples.push_back({row.at<std::vector<int64_t>>("input_ids"), row.at<std::vector<int64_t>>("labels")});
    }
    return std::make_shared<ExampleDataset>(std::move(examples), /*pad_id=*/0);
  }
  fs::path folder_;
};

TEST_P(LoraCurve, IsTransformersAndPefts) {
  const Json run = Json::read(folder_ / "run.json");
  const auto model = AutoModelForCausalLM::from_pretrained(
      folder_ / "model", {.attn_implementation = "eager", .adapter = folder_ / "adapter", .is_trainable = true});
  TrainingArguments arguments = training_arguments_from(run.child("arguments"));
  arguments.use_liger_kernel = GetParam().kernels;
  Trainer trainer(model, arguments, dataset(run));
  const TrainOutput out = trainer.train();

  const auto theirs = run.child("state").child("log_history").elements();
  ASSERT_EQ(out.steps.size(), 24u);
  for (size_t i = 0; i < out.steps.size(); ++i) {
    const auto loss = theirs[i].at<double>("loss"), norm = theirs[i].at<double>("grad_norm");
    EXPECT_NEAR(out.steps[i].loss, loss, 1e-4 * std::abs(loss)) << "step " << i;
    EXPECT_NEAR(out.steps[i].grad_norm, norm, 1e-3 * norm) << "step " << i;
    EXPECT_EQ(out.steps[i].learning_rate, theirs[i].at<double>("learning_rate"));
  }

  const TempFolder saved;
  trainer.save_model(saved.path());
  EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
  const SafetensorsFile ours(saved / "adapter_model.safetensors"),
      trained(folder_ / "trained/adapter_model.safetensors"), before(folder_ / "adapter/adapter_model.safetensors");
  EXPECT_EQ(ours.names(), trained.names());
  for (const std::string& name : trained.names()) {
    const Tensor expected = trained.tensor(name), moved = expected - before.tensor(name);
    // Of what a tensor has moved in 24 updates: Adam's first steps are signs, so that noise in a gradient near 0 moves
    // an element as far as any other.
    const double off = (ours.tensor(name) - expected).abs().mean().item<double>();
    EXPECT_LE(off, 2e-3 * moved.abs().mean().item<double>()) << name;
  }
}

std::vector<LoraRun> lora_runs() {
  std::vector<LoraRun> all;
  for (const char* name : {"all_linear", "dora", "whole", "joined", "bias"}) {
    for (const bool kernels : {false, true}) all.push_back({name, kernels});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, LoraCurve, testing::ValuesIn(lora_runs()),
                         [](const auto& info) { return info.param.name + (info.param.kernels ? "_liger" : "_stock"); });

}  // namespace
}  // namespace hotswap
