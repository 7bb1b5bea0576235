// A whole fine-tuning run, step by step against what transformers does in the same run: of the small model that
// models/golden_model.py makes, and of the recorded one where it is.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/auto.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

using test_support::golden_folders;
using test_support::golden_name;
using test_support::GoldenFolder;

constexpr double kTolerance = 1e-4;
constexpr int64_t kLayers = 5;  // of both models

// What one forward and its backward must call, by package and op: one stand-alone norm, all others fused with the
// addition before.
struct Calls {
  const char *package, *op;
  int64_t each_forward;
};
constexpr Calls kCalls[] = {
    {"norm", "rms_norm_fwd", 1},
    {"norm", "rms_norm_bwd", 1},
    {"norm", "add_rms_norm_fwd", 2 * kLayers},
    {"norm", "add_rms_norm_bwd", 2 * kLayers},
    {"mlp", "swiglu", kLayers},
    {"mlp", "swiglu_bwd_again_", kLayers},
    {"rotary", "rotary", kLayers},
    {"rotary", "rotary_bwd", kLayers},
    {"loss", "linear_cross_entropy_fwd", 1},  // its gradients are made in the forward
};

class TrainerGolden : public test_support::WithTransformers<testing::TestWithParam<GoldenFolder>> {};

// What was recorded: AdamW with weight decay on every parameter, at a constant rate.
Trainer recorded_trainer(const std::shared_ptr<CausalLM>& model, std::shared_ptr<const Dataset> dataset,
                         std::shared_ptr<const Dataset> held_out) {
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  return {model,
          {.max_steps = 36,
           .learning_rate = 1e-3,
           .lr_scheduler_type = "constant",
           .train_sampling_strategy = "sequential"},
          std::move(dataset),
          {.eval_dataset = std::move(held_out), .optimizer = std::make_shared<AdamW>(model->parameters(), options)}};
}

// What transformers' own Trainer did with the same arguments.
Trainer made_trainer(const std::shared_ptr<CausalLM>& model, const Json& arguments,
                     std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Dataset> held_out) {
  TrainingArguments own{.per_device_train_batch_size = arguments.at<int64_t>("per_device_train_batch_size"),
                        .gradient_accumulation_steps = arguments.at<int64_t>("gradient_accumulation_steps"),
                        .max_steps = arguments.at<int64_t>("max_steps"),
                        .learning_rate = arguments.at<double>("learning_rate"),
                        .weight_decay = arguments.at<double>("weight_decay"),
                        .adam_beta2 = arguments.at<double>("adam_beta2"),
                        .max_grad_norm = arguments.at<double>("max_grad_norm"),
                        .lr_scheduler_type = arguments.at<std::string>("lr_scheduler_type"),
                        .warmup_steps = arguments.at<double>("warmup_steps"),
                        .train_sampling_strategy = "sequential"};
  return {model, own, std::move(dataset), {.eval_dataset = std::move(held_out)}};
}

void expect_same_run(const GoldenFolder& data, bool kernels) {
  const fs::path folder = data.path();
  const Json golden = Json::read(folder / "finetune_golden.json"), batch = golden.child("batch");
  const auto file = golden.get<std::string>("text", "text/buster_bear.txt");  // the recorded run says both in words
  const auto eval_columns = golden.get<int64_t>("eval_columns", 512);
  const Tokenizer tokenizer = Tokenizer::from_pretrained(folder);
  std::vector<int64_t> stream{1};
  const auto text = tokenizer.ids(read_file(data.root() / file), /*add_special_tokens=*/false);
  stream.insert(stream.end(), text.begin(), text.end());
  ASSERT_EQ(static_cast<int64_t>(stream.size()), golden.at<int64_t>("token_count"));

  const bool made = golden.has("arguments");
  const auto columns = batch.at<int64_t>("columns"), rows = batch.at<int64_t>("rows");
  const auto held_out =
      std::make_shared<PackedDataset>(std::vector(stream.end() - 8 * eval_columns, stream.end()), eval_columns);
  const auto dataset = std::make_shared<PackedDataset>(
      std::vector(stream.begin(), made ? stream.begin() + rows * columns : stream.end()), columns);
  const auto model =
      AutoModelForCausalLM::from_pretrained(folder, {.use_kernels = kernels, .attn_implementation = "eager"});
  Trainer trainer = made ? made_trainer(model, golden.child("arguments"), dataset, held_out)
                         : recorded_trainer(model, dataset, held_out);
  EXPECT_NEAR(trainer.evaluate().eval_loss, golden.at<double>("eval_loss_before"), kTolerance);

  std::vector<int64_t> before;
  for (const Calls& row : kCalls) before.push_back(op_calls(row.package, row.op));
  const auto result = trainer.train();
  // Of the made run's seven updates the fifth, at the end of an epoch, has one forward, the others have two.
  const int64_t forwards = made ? 13 : 36;
  for (size_t i = 0; i < std::size(kCalls); ++i) {
    EXPECT_EQ(op_calls(kCalls[i].package, kCalls[i].op) - before[i], kernels ? forwards * kCalls[i].each_forward : 0)
        << kCalls[i].op;
  }
  const auto losses = golden.at<std::vector<double>>("train_loss");
  const auto norms = golden.at<std::vector<double>>("gradient_norm_before_clipping");
  ASSERT_EQ(result.steps.size(), losses.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(result.steps[step].loss, losses[step], kTolerance) << "step " << step;
    EXPECT_NEAR(result.steps[step].grad_norm, norms[step], kTolerance * std::max(1.0, norms[step])) << "step " << step;
  }
  EXPECT_NEAR(trainer.evaluate().eval_loss, golden.at<double>("eval_loss_after"), kTolerance);

  model->eval();
  const at::NoGradGuard no_grad;
  auto ids = golden.child("greedy_after").at<std::vector<int64_t>>("input_ids");
  for (const int64_t want : golden.child("greedy_after").at<std::vector<int64_t>>("output_ids")) {
    const Tensor input = rows_of(ids, 0, 1, static_cast<int64_t>(ids.size()));
    ASSERT_EQ((*model)({.input_ids = input, .logits_to_keep = 1}).logits.argmax().item<int64_t>(), want);
    ids.push_back(want);
  }
}

TEST_P(TrainerGolden, StockIsReproducedStepByStep) { expect_same_run(GetParam(), /*kernels=*/false); }
TEST_P(TrainerGolden, KernelizedIsReproducedStepByStep) { expect_same_run(GetParam(), /*kernels=*/true); }

INSTANTIATE_TEST_SUITE_P(Data, TrainerGolden,
                         testing::ValuesIn(golden_folders("models/golden_model.py", {"models/tiny"},
                                                          {"models/stories260k"})),
                         golden_name);

}  // namespace
}  // namespace hotswap
