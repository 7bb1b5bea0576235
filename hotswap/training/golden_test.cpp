// A whole fine-tuning run of a real model, step by step against the record that transformers left of the same run.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/auto.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/training/data.h"
#include "hotswap/training/finetune.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(HOTSWAP_SOURCE_DIR) / "../shared/data";
const fs::path kModel = kData / "models/stories260k";
constexpr double kTolerance = 1e-4;
constexpr int64_t kLayers = 5, kEvalIds = 4096;

// What one training step must call, by package and op: one stand-alone norm, all others fused with the addition before.
struct Calls {
  const char *package, *op;
  int64_t each_step;
};
constexpr Calls kCalls[] = {
    {"norm", "rms_norm_fwd", 1},
    {"norm", "rms_norm_bwd", 1},
    {"norm", "add_rms_norm_fwd", 2 * kLayers},
    {"norm", "add_rms_norm_bwd", 2 * kLayers},
    {"mlp", "swiglu", kLayers},
    {"mlp", "swiglu_bwd_", kLayers},
    {"rotary", "rotary", kLayers},
    {"rotary", "rotary_bwd", kLayers},
    {"loss", "linear_cross_entropy_fwd", 1},  // its gradients are made in the forward
};

class FinetuneGolden : public testing::TestWithParam<bool> {};

TEST_P(FinetuneGolden, IsReproducedStepByStep) {
  const bool kernels = GetParam();
  if (!fs::is_directory(kModel)) GTEST_SKIP() << "no " << kModel << " here";
  const Json golden = Json::read(kModel / "finetune_golden.json");
  const Tokenizer tokenizer = Tokenizer::from_pretrained(kModel);
  std::vector<int64_t> stream{1};
  const auto text = tokenizer.ids(read_file(kData / "text/buster_bear.txt"), /*add_special_tokens=*/false);
  stream.insert(stream.end(), text.begin(), text.end());
  ASSERT_EQ(static_cast<int64_t>(stream.size()), golden.at<int64_t>("token_count"));

  const auto model =
      AutoModelForCausalLM::from_pretrained(kModel, {.use_kernels = kernels, .attn_implementation = "eager"});
  const auto loss = [&](const Tensor& ids) { return (*model)({.input_ids = ids, .labels = ids}).loss; };
  const auto end = static_cast<int64_t>(stream.size());
  const std::vector<Tensor> held_out = {rows_of(stream, end - kEvalIds, 8, 512)};
  EXPECT_NEAR(evaluate(loss, held_out), golden.at<double>("eval_loss_before"), kTolerance);

  model->train();
  std::vector<int64_t> before;
  for (const Calls& row : kCalls) before.push_back(op_calls(row.package, row.op));
  const auto result =
      finetune(model->parameters(), loss, batches_of(stream, {.rows = 8, .columns = 128}, 36),
               {.optimizer = {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}});
  for (size_t i = 0; i < std::size(kCalls); ++i) {
    EXPECT_EQ(op_calls(kCalls[i].package, kCalls[i].op) - before[i], kernels ? 36 * kCalls[i].each_step : 0)
        << kCalls[i].op;
  }
  const auto losses = golden.at<std::vector<double>>("train_loss");
  const auto norms = golden.at<std::vector<double>>("gradient_norm_before_clipping");
  ASSERT_EQ(result.steps.size(), losses.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(result.steps[step].loss, losses[step], kTolerance) << "step " << step;
    EXPECT_NEAR(result.steps[step].gradient_norm, norms[step], kTolerance * std::max(1.0, norms[step]))
        << "step " << step;
  }

  model->eval();
  EXPECT_NEAR(evaluate(loss, held_out), golden.at<double>("eval_loss_after"), kTolerance);
  const at::NoGradGuard no_grad;
  auto ids = golden.child("greedy_after").at<std::vector<int64_t>>("input_ids");
  for (const int64_t want : golden.child("greedy_after").at<std::vector<int64_t>>("output_ids")) {
    const Tensor input = rows_of(ids, 0, 1, static_cast<int64_t>(ids.size()));
    ASSERT_EQ((*model)({.input_ids = input, .logits_to_keep = 1}).logits.argmax().item<int64_t>(), want);
    ids.push_back(want);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, FinetuneGolden, testing::Bool(),
                         [](const auto& info) { return info.param ? "kernels" : "stock"; });

}  // namespace
}  // namespace hotswap
