// Two ranks beside transformers' Trainer in two processes (ranks_oracle.py): the same curve.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "hotswap/base/test_data.h"
#include "hotswap/models/auto.h"
#include "hotswap/training/test_ranks.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_all_well;
using test_support::run_ranks;
using test_support::TempFolder;

class RanksCurve : public test_support::WithTransformers<testing::TestWithParam<std::string>> {};

std::shared_ptr<const Dataset> rows_in(const Json& rows) {
  std::vector<Example> examples;
  for (const Json& row : rows.elements()) {
    examples.push_back({row.at<std::vector<int64_t>>("input_ids"), row.at<std::vector<int64_t>>("labels")});
  }
  return std::make_shared<ExampleDataset>(std::move(examples), /*pad_id=*/0);
}

TEST_P(RanksCurve, IsThatOfTrainerUnderTorchrun) {
  const fs::path folder = test_support::made_data("training/ranks_oracle.py") / GetParam();
  const Json run = Json::read(folder / "run.json");
  const TempFolder out;
  expect_all_well(run_ranks({.size = 2}, [&](int rank) {
    const auto model = AutoModelForCausalLM::from_pretrained(folder / "model", {.attn_implementation = "eager"});
    Trainer trainer(model, training_arguments_from(run.child("arguments")), rows_in(run.child("train")),
                    {.eval_dataset = rows_in(run.child("held_out"))});
    trainer.train();
    trainer.state().save(out / cat(rank, ".json"), {});
  }));
  const bool over_ranks = run.child("arguments").get<bool>("average_tokens_across_devices", true);
  const auto theirs = run.child("log").elements();
  const auto ours = Json::read(out / "0.json").child("log_history").elements();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].at<int64_t>("step"), theirs[i].at<int64_t>("step"));
    for (const char* key : {"loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "num_input_tokens_seen",
                            "train_loss", "total_flos"}) {
      ASSERT_EQ(ours[i].has(key), theirs[i].has(key)) << key << " in entry " << i;
      if (!ours[i].has(key)) continue;
      // Here each batch has its mean, in one process and in several. Trainer's with average_tokens_across_devices has
      // that of the batches which its processes evaluate at once.
      if (std::string(key) == "eval_loss" && over_ranks) continue;
      const double expected = theirs[i].at<double>(key), relative = std::string(key) == "grad_norm" ? 1e-3 : 1e-4;
      EXPECT_NEAR(ours[i].at<double>(key), expected, relative * std::max(1.0, std::abs(expected))) << key << ' ' << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RanksCurve, testing::Values("llama", "qwen3", "mixtral", "gemma"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hotswap
