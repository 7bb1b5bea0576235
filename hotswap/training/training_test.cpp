#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/memory.h"
#include "hotswap/base/test_support.h"
#include "hotswap/models/auto.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/optimizers/optimizer.h"
#include "hotswap/training/schedules/schedule.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

TEST(Schedule, WarmupAndErrors) {
  const Schedule linear("linear", {.warmup_steps = 10, .total_steps = 110});
  EXPECT_EQ(linear.factor(0), 0);
  EXPECT_EQ(linear.factor(5), 0.5);
  EXPECT_EQ(linear.factor(10), 1);
  EXPECT_NEAR(linear.factor(60), 0.5, 1e-12);
  EXPECT_EQ(warmup_count(12, 200), 12);
  EXPECT_EQ(warmup_count(0.03, 110), 4) << "below 1: a share, rounded up";
  const auto fails = [](const char* name, ScheduleSpan span, std::initializer_list<std::string> parts) {
    expect_has(message_of([&] { Schedule(name, span); }), parts);
  };
  fails("cosin", {}, {"did you mean cosine?"});
  fails("constant", {.warmup_steps = 2, .total_steps = 9}, {"constant_with_warmup"});
  fails("cosine", {.total_steps = 9, .kwargs = {{"num_cycle", 2}}}, {"did you mean num_cycles?"});
  fails("linear", {.total_steps = 9, .kwargs = {{"power", 2}}}, {"'power'", "none"});
  fails("cosine_with_min_lr", {.total_steps = 9}, {"min_lr_rate", "neither"});
  fails("warmup_stable_decay", {.total_steps = 9}, {"num_decay_steps"});
}

TEST(PackedDataset, ExamplesInTheOrderOfTheStream) {
  std::vector<int64_t> stream(25);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int64_t>(i);
  const PackedDataset dataset(stream, 4);
  EXPECT_EQ(dataset.size(), 6);
  const TrainingBatch batch = dataset.batch({5, 0});
  EXPECT_EQ(batch.input_ids[0][3].item<int64_t>(), 23);
  EXPECT_EQ(batch.labels[1][2].item<int64_t>(), 2);
  EXPECT_THROW(dataset.batch({6}), Error);
  EXPECT_THROW(PackedDataset(stream, 26), Error);
  EXPECT_THROW(PackedDataset(stream, 1), Error);
  EXPECT_EQ(rows_of(stream, 17, 2, 4)[1][3].item<int64_t>(), 24);
  EXPECT_THROW(rows_of(stream, 18, 2, 4), Error);
}

TEST(Order, EveryExampleOnceAnEpoch) {
  EXPECT_EQ(epoch_order(4, SamplingStrategy::kSequential, 9, 2), (std::vector<int64_t>{0, 1, 2, 3}));
  const auto first = epoch_order(50, SamplingStrategy::kRandom, 1, 0);
  EXPECT_EQ(epoch_order(50, SamplingStrategy::kRandom, 1, 0), first);
  EXPECT_EQ(epoch_order(50, SamplingStrategy::kRandom, 0, 1), first) << "seed + epoch decides";
  const auto second = epoch_order(50, SamplingStrategy::kRandom, 1, 1);
  EXPECT_NE(second, first) << "shuffled again";
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 50u);
  EXPECT_THROW(sampling_strategy_from("backwards"), Error);
  EXPECT_EQ(batches_of({5, 6, 7}, 2), (std::vector<std::vector<int64_t>>{{5, 6}, {7}}));
  EXPECT_EQ(batches_of({5, 6, 7}, 2, /*drop_last=*/true), (std::vector<std::vector<int64_t>>{{5, 6}}));
}

TEST(ExampleDataset, PadsOnTheRight) {
  const ExampleDataset dataset({{{5, 6, 7}, {-100, 6, 7}}, {{8}, {8}}, {{9, 4, 3}, {9, 4, 3}}}, /*pad_id=*/2);
  const TrainingBatch batch = dataset.batch({1, 0});
  EXPECT_TRUE(at::equal(batch.input_ids, at::tensor({8, 2, 2, 5, 6, 7}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({8, -100, -100, -100, 6, 7}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.attention_mask, at::tensor({1, 0, 0, 1, 1, 1}, at::kLong).view({2, 3})));
  EXPECT_EQ(label_count(batch), 2) << "the first position is predicted by none";
  EXPECT_FALSE(dataset.batch({0, 2}).attention_mask.defined()) << "nothing is padded";
  EXPECT_THROW(dataset.batch({3}), Error);
  EXPECT_THROW(ExampleDataset({{{}, {}}}, 0), Error);
  EXPECT_THROW(ExampleDataset({{{1}, {}}}, 0), Error);
}

// The next token is always the next number, modulo 8.
std::shared_ptr<PackedDataset> counting(int64_t tokens, int64_t length) {
  std::vector<int64_t> stream(static_cast<size_t>(tokens));
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int64_t>(i % 8);
  return std::make_shared<PackedDataset>(stream, length);
}

TEST(Trainer, LearnsAndReports) {
  const auto dataset = counting(20 * 16, 16);
  const auto model = test_support::tiny_llama();
  int64_t called = 0;
  Trainer trainer(
      model, {.per_device_train_batch_size = 4, .num_train_epochs = 8, .learning_rate = 0.02, .seed = 7}, dataset,
      {.eval_dataset = dataset, .on_step_end = [&](const TrainingStep& s) { EXPECT_EQ(s.step, called++); }});
  const double before = trainer.evaluate().eval_loss;
  const TrainOutput out = trainer.train();
  EXPECT_EQ(called, 8 * 5);
  EXPECT_EQ(out.steps.size(), 40u);
  EXPECT_EQ(out.steps[0].num_input_tokens, 4 * 16);
  EXPECT_EQ(out.steps[0].learning_rate, 0.02);
  EXPECT_NEAR(out.steps[39].learning_rate, 0.02 / 40, 1e-12);  // linear is the default
  EXPECT_LT(trainer.evaluate().eval_loss, 0.2 * before);
  EXPECT_TRUE(model->training()) << "evaluate() gives the mode back";
  EXPECT_GT(out.train_tokens_per_second(), 0);
  EXPECT_GT(out.peak_memory, 1 << 20);
}

// The mean over all labels of an update, however they are spread over forwards: 6 examples as 6, and as 4 and 2.
TEST(Trainer, AccumulationIsOneLargerBatch) {
  const auto steps = [&](int64_t batch, int64_t accumulation) {
    const auto model = test_support::tiny_llama();
    Trainer trainer(model,
                    {.per_device_train_batch_size = batch,
                     .gradient_accumulation_steps = accumulation,
                     .max_steps = 5,
                     .learning_rate = 0.01,
                     .weight_decay = 0.1},
                    counting(6 * 8, 8));
    return trainer.train().steps;
  };
  const auto whole = steps(6, 1), parts = steps(4, 2);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(parts[i].num_input_tokens, 6 * 8);
    EXPECT_NEAR(parts[i].loss, whole[i].loss, 1e-5) << i;
    EXPECT_NEAR(parts[i].grad_norm, whole[i].grad_norm, 1e-4) << i;
  }
}

struct NoLabels final : Dataset {
  int64_t size() const override { return 8; }
  TrainingBatch batch(const std::vector<int64_t>& examples) const override {
    const Tensor ids = at::ones({static_cast<int64_t>(examples.size()), 8}, at::kLong);
    return {ids, at::full_like(ids, -100)};
  }
};

// Padding alone, a cut prompt: nothing to learn, and nothing is unlearned.
TEST(Trainer, AnUpdateWithoutLabelsChangesNothing) {
  for (const int64_t accumulation : {1, 3}) {
    const auto model = test_support::tiny_llama();
    std::vector<Tensor> before;
    for (const Tensor& p : model->parameters()) before.push_back(p.detach().clone());
    Trainer trainer(model, {.gradient_accumulation_steps = accumulation, .max_steps = 2, .weight_decay = 0},
                    std::make_shared<NoLabels>());
    for (const TrainingStep& step : trainer.train().steps) {
      EXPECT_EQ(step.loss, 0);
      EXPECT_EQ(step.grad_norm, 0);
    }
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(model->parameters()[i], before[i])) << i;
  }
}

TEST(Trainer, RefusesWhatCannotBe) {
  const auto make = [](TrainingArguments arguments) {
    Trainer(test_support::tiny_llama(), std::move(arguments), counting(64, 8));
  };
  EXPECT_NO_THROW(make({}));
  EXPECT_THROW(make({.per_device_train_batch_size = 0}), Error);
  EXPECT_THROW(make({.gradient_accumulation_steps = 0}), Error);
  EXPECT_THROW(make({.num_train_epochs = 0}), Error);
  EXPECT_THROW(make({.lr_scheduler_type = "square"}), Error);
  EXPECT_THROW(make({.bf16 = true}), Error);
  EXPECT_THROW(make({.liger_kernel_config = {}, .eval_strategy = "steps"}), Error) << "no eval_dataset";
  EXPECT_THROW(make({.use_liger_kernel = true, .liger_kernel_config = {{"geglu", true}}}), Error);
  EXPECT_THROW(make({.metric_for_best_model = "accuracy"}), Error);
  EXPECT_THROW(make({.per_device_train_batch_size = 9, .dataloader_drop_last = true}), Error) << "8 examples";
  EXPECT_THROW(make({.lr_scheduler_type = "constant", .warmup_steps = 2}), Error);
  EXPECT_THROW(make({.train_sampling_strategy = "backwards"}), Error);
  const auto frozen = test_support::tiny_llama();
  frozen->requires_grad(false);
  EXPECT_THROW(Trainer(frozen, {}, counting(64, 8)), Error);
  EXPECT_THROW(Trainer(test_support::tiny_llama(), {}, counting(64, 8)).evaluate(), Error) << "no eval_dataset";
  const auto broken = test_support::tiny_llama();
  {
    const at::NoGradGuard no_grad;
    broken->parameters()[0].fill_(NAN);
  }
  EXPECT_THROW(Trainer(broken, {}, counting(64, 8)).train(), Error);
}

TEST(Trainer, GradientCheckpointingChangesNoBit) {
  std::vector<std::vector<Tensor>> trained;
  std::vector<double> losses;
  for (const bool checkpoints : {false, true}) {
    const auto model = test_support::tiny_llama({.layers = 3});
    TrainingArguments arguments{.per_device_train_batch_size = 2, .max_steps = 4, .learning_rate = 1e-2};
    arguments.gradient_checkpointing = checkpoints;
    arguments.gradient_checkpointing_kwargs = {{"every_n_layers", 2}, {"use_reentrant", false}};
    losses.push_back(Trainer(model, arguments, counting(64, 8)).train().training_loss);
    EXPECT_EQ(model->is_gradient_checkpointing(), checkpoints);
    trained.push_back(model->parameters());
  }
  EXPECT_EQ(losses[0], losses[1]);
  for (size_t i = 0; i < trained[0].size(); ++i) EXPECT_TRUE(at::equal(trained[0][i], trained[1][i])) << i;
  TrainingArguments wrong;
  wrong.gradient_checkpointing_kwargs = {{"context_fn", "x"}};
  EXPECT_THROW(Trainer(test_support::tiny_llama(), wrong, counting(64, 8)), Error);
}

// A callback that writes down what it hears, and stops the run where it is to.
struct Listener final : TrainerCallback {
  std::vector<std::string> heard;
  int64_t stop_at = -1;
  void on_train_begin(const TrainerEvent&) override { heard.emplace_back("begin"); }
  void on_train_end(const TrainerEvent&) override { heard.emplace_back("end"); }
  void on_epoch_end(const TrainerEvent& e) override { heard.push_back(cat("epoch ", e.state.epoch)); }
  void on_step_end(const TrainerEvent& e) override {
    heard.push_back(cat("step ", e.state.global_step));
    if (e.state.global_step == stop_at) e.control.should_training_stop = true;
  }
  void on_log(const TrainerEvent&, const nlohmann::json& entry) override {
    heard.push_back(cat("log ", entry["step"].get<int64_t>()));
  }
  void on_evaluate(const TrainerEvent&, const nlohmann::json&) override { heard.emplace_back("evaluate"); }
  void on_save(const TrainerEvent& e) override { heard.push_back(cat("save ", e.state.global_step)); }
};

TEST(Trainer, CallsBackAndStops) {
  const TempFolder folder;
  const auto listener = std::make_shared<Listener>();
  listener->stop_at = 5;
  const auto dataset = counting(12 * 8, 8);  // 3 batches of 4
  Trainer trainer(test_support::tiny_llama(),
                  {.output_dir = (folder / "out").string(),
                   .per_device_train_batch_size = 4,
                   .logging_steps = 2,
                   .eval_strategy = "epoch",
                   .save_strategy = "epoch"},
                  dataset, {.eval_dataset = dataset, .callbacks = {listener}});
  trainer.train();
  EXPECT_EQ(
      join(listener->heard),
      "begin, step 1, step 2, log 2, step 3, epoch 1, log 3, evaluate, save 3, step 4, log 4, step 5, epoch 1.66667, "
      "log 5, evaluate, save 5, log 5, end");
  EXPECT_EQ(checkpoint_steps(folder / "out"), (std::vector<int64_t>{3, 5}));
}

TEST(Trainer, KeepsTheBestModelAndDropsOldCheckpoints) {
  const TempFolder folder;
  const auto dataset = counting(16 * 8, 8);
  const auto model = test_support::tiny_llama();
  // A rate that first learns and then destroys: the best model is not the last one.
  Trainer trainer(model,
                  {.output_dir = (folder / "out").string(),
                   .per_device_train_batch_size = 4,
                   .max_steps = 12,
                   .learning_rate = 0.02,
                   .lr_scheduler_type = "polynomial",
                   .lr_scheduler_kwargs = {{"lr_end", 1e-3}, {"power", 0.1}},
                   .eval_strategy = "steps",
                   .eval_steps = 2,
                   .save_steps = 2,
                   .save_total_limit = 2,
                   .load_best_model_at_end = true},
                  dataset, {.eval_dataset = dataset});
  trainer.train();
  const TrainerState& state = trainer.state();
  ASSERT_TRUE(state.best_metric && state.best_model_checkpoint);
  double least = INFINITY;
  for (const auto& entry : state.log_history) {
    if (entry.contains("eval_loss")) least = std::min(least, entry["eval_loss"].get<double>());
  }
  EXPECT_EQ(*state.best_metric, least);
  EXPECT_NEAR(trainer.evaluate().eval_loss, least, 1e-6) << "its weights are back";
  const auto kept = checkpoint_steps(folder / "out");
  EXPECT_LE(kept.size(), 2u);
  EXPECT_EQ(kept.back(), 12);
  const auto read = Json::read(fs::path(*state.best_model_checkpoint) / "trainer_state.json");
  EXPECT_EQ(read.at<int64_t>("global_step"), *state.best_global_step);
}

TEST(CheckpointFolder, IsWholeOrNotThere) {
  const TempFolder folder;
  const fs::path target = checkpoint_folder(folder / "out", 7);
  EXPECT_THROW(write_checkpoint(target,
                                [](const fs::path& half) {
                                  write_file(half / "weights", "half");
                                  throw Error({.kind = ErrorKind::kUnavailable,
                                               .wanted = "a disk with room",
                                               .got = "a full one",
                                               .next = "free some"});
                                }),
               Error);
  EXPECT_TRUE(fs::is_empty(folder / "out")) << "nothing half-written remains";
  write_checkpoint(target, [](const fs::path& whole) { write_file(whole / "weights", "all"); });
  write_checkpoint(checkpoint_folder(folder / "out", 30), [](const fs::path&) {});
  fs::create_directories(folder / "out" / "checkpoint-8.0badcafe.incomplete");  // of a killed process
  fs::create_directories(folder / "out" / "checkpoint-best");
  EXPECT_EQ(checkpoint_steps(folder / "out"), (std::vector<int64_t>{7, 30}));
  drop_old_checkpoints(folder / "out", 1, target);
  EXPECT_EQ(checkpoint_steps(folder / "out"), (std::vector<int64_t>{7, 30})) << "the best and the newest stay";
  drop_old_checkpoints(folder / "out", 1, {});
  EXPECT_EQ(checkpoint_steps(folder / "out"), (std::vector<int64_t>{30}));
}

TEST(Memory, PeakIsResettableAndSeesLargeTensors) {
  if (!reset_peak_memory()) GTEST_SKIP() << "/proc/self/clear_refs is not writable here";
  const int64_t before = peak_memory();
  { const Tensor large = at::ones({64 << 20}); }  // 256 MiB
  EXPECT_GT(peak_memory() - before, 200 << 20);
  ASSERT_TRUE(reset_peak_memory());
  EXPECT_LT(peak_memory() - before, 100 << 20);
}

}  // namespace
}  // namespace hotswap
