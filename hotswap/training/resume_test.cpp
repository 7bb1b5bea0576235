// Runs that go on from a checkpoint: to the bit as one that was never interrupted, after a process was killed at any
// moment, and with named errors where a checkpoint is not what it should be.
#include "hotswap/training/resume.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/base/test_support.h"
#include "hotswap/models/auto.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/checkpoint/optimizer_file.h"
#include "hotswap/training/test_child.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::in_child;
using test_support::message_of;
using test_support::status_of;
using test_support::TempFolder;

// 11 rows of lengths of their own: the last batch of an epoch is short, and so is its last update.
std::shared_ptr<const Dataset> rows(int64_t first = 1) {
  std::vector<Example> examples;
  for (int64_t i = 0; i < 11; ++i) {
    Example example;
    for (int64_t at = 0; at < 5 + i % 4; ++at) example.ids.push_back((first + i * at) % 16);
    example.labels = example.ids;
    examples.push_back(example);
  }
  return std::make_shared<ExampleDataset>(std::move(examples), 0);
}

TrainingArguments arguments_in(const fs::path& output) {
  return {.output_dir = output.string(),
          .per_device_train_batch_size = 2,
          .num_train_epochs = 3,
          .learning_rate = 0.01,
          .weight_decay = 0.1,
          .lr_scheduler_type = "cosine",
          .warmup_steps = 2,
          .include_num_input_tokens_seen = "all",
          .save_steps = 1};
}

// The log without times, which no two runs share.
nlohmann::json log_of(const TrainerState& state) {
  nlohmann::json log = state.log_history;
  for (auto& entry : log) {
    for (const char* key :
         {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second",
          "peak_memory", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}) {
      entry.erase(key);
    }
  }
  return log;
}

struct Trained {
  std::shared_ptr<CausalLM> model;
  std::shared_ptr<AdamW> optimizer;
  TrainerState state;
};

Trained run(const TrainingArguments& arguments, const std::string& resume = {}, at::ScalarType dtype = at::kFloat) {
  Trained made{.model = test_support::tiny_llama({.dtype = dtype}), .optimizer = nullptr, .state = {}};
  made.optimizer = make_optimizer(*made.model, arguments);
  Trainer trainer(made.model, arguments, rows(), {.eval_dataset = rows(3), .optimizer = made.optimizer});
  trainer.train(resume);
  made.state = trainer.state();
  return made;
}

void expect_same(const Trained& a, const Trained& b) {
  const auto first = a.model->parameters(), second = b.model->parameters();
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], second[i])) << i;
    const AdamWState &one = a.optimizer->states()[i], &other = b.optimizer->states()[i];
    EXPECT_TRUE(at::equal(one.average, other.average)) << i;
    EXPECT_TRUE(at::equal(one.average_square, other.average_square)) << i;
    EXPECT_TRUE(at::equal(one.steps, other.steps)) << i;
    ASSERT_EQ(one.master.defined(), other.master.defined());
    if (one.master.defined()) {
      EXPECT_TRUE(at::equal(one.master, other.master)) << i;
    }
  }
  EXPECT_EQ(log_of(a.state), log_of(b.state));
  EXPECT_EQ(a.state.epoch, b.state.epoch);
  EXPECT_EQ(a.state.global_step, b.state.global_step);
  EXPECT_EQ(a.state.total_flos, b.state.total_flos);
  EXPECT_EQ(a.state.best_metric, b.state.best_metric);
}

struct Variant {
  const char* name;
  TrainingArguments more;
  at::ScalarType dtype = at::kFloat;
};

class Resume : public testing::TestWithParam<Variant> {};

// From every checkpoint of a run: in the middle of an epoch, at its end, between two entries of the log, at the end of
// all.
TEST_P(Resume, IsEqualToTheBit) {
  const TempFolder folder;
  TrainingArguments arguments = arguments_in(folder / "out");
  const TrainingArguments& more = GetParam().more;
  arguments.gradient_accumulation_steps = more.gradient_accumulation_steps;
  arguments.logging_steps = more.logging_steps;
  arguments.logging_strategy = more.logging_strategy;
  arguments.eval_strategy = more.eval_strategy;
  arguments.eval_steps = more.eval_steps;
  arguments.load_best_model_at_end = more.load_best_model_at_end;
  arguments.optimizer_states = more.optimizer_states;
  const Trained whole = run(arguments, {}, GetParam().dtype);
  const auto steps = checkpoint_steps(folder / "out");
  ASSERT_GE(steps.size(), 6u);
  for (const int64_t step : steps) {
    SCOPED_TRACE(cat("from checkpoint-", step));
    TrainingArguments again = arguments;
    again.output_dir = (folder / cat("again-", step)).string();
    if (!again.load_best_model_at_end) again.save_strategy = "no";  // each file that is written waits for the disk
    expect_same(run(again, checkpoint_folder(folder / "out", step).string(), GetParam().dtype), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Resume,
    testing::Values(Variant{"one", {.logging_steps = 1}}, Variant{"logs_of_four", {.logging_steps = 4}},
                    Variant{"accumulation", {.gradient_accumulation_steps = 2, .logging_steps = 3}},
                    Variant{"epochs", {.logging_strategy = "epoch", .eval_strategy = "epoch"}},
                    Variant{"best", {.logging_steps = 1, .eval_strategy = "steps", .load_best_model_at_end = true}},
                    Variant{"bfloat16", {.logging_steps = 1}, at::kBFloat16},
                    Variant{"master", {.optimizer_states = "float32_master", .logging_steps = 1}, at::kBFloat16},
                    Variant{"moments", {.optimizer_states = "bfloat16_moments", .logging_steps = 1}, at::kBFloat16},
                    Variant{"stochastic", {.optimizer_states = "stochastic", .logging_steps = 1}, at::kBFloat16}),
    [](const auto& info) { return std::string(info.param.name); });

// As transformers: the tokens before it are of another run's time.
TEST(ResumedRate, IsOfTheTokensSinceTheResume) {
  const TempFolder folder;
  TrainingArguments arguments = arguments_in(folder / "out");
  arguments.logging_steps = 1;
  run(arguments);
  const int64_t last = checkpoint_steps(folder / "out").back(), from = last - 2;
  const fs::path checkpoint = checkpoint_folder(folder / "out", from);
  const int64_t before = TrainerState::read(checkpoint / "trainer_state.json").num_input_tokens_seen;
  arguments.output_dir = (folder / "again").string();
  const TrainerState state = run(arguments, checkpoint.string()).state;
  const nlohmann::json& entry = state.log_history.at(state.log_history.size() - 2);  // of the last update
  ASSERT_EQ(entry.at("step"), last);
  const double counted = entry.at("train_tokens_per_second").get<double>() * entry.at("train_runtime").get<double>();
  const auto since = static_cast<double>(state.num_input_tokens_seen - before);
  EXPECT_NEAR(counted, since, 0.1 * since);  // the time has four digits
  EXPECT_GT(static_cast<double>(before), 2 * since);
}

class ResumeErrors : public testing::Test {
 protected:
  ResumeErrors() : arguments_(arguments_in(folder_ / "out")) {
    arguments_.max_steps = 4;
    run(arguments_);
  }
  fs::path checkpoint(int64_t step) const { return checkpoint_folder(folder_ / "out", step); }
  std::string failure(const TrainingArguments& arguments, const std::string& resume) const {
    return message_of([&] { run(arguments, resume); });
  }
  void shorten(const fs::path& file) const { fs::resize_file(file, fs::file_size(file) * 2 / 3); }

  TempFolder folder_;
  TrainingArguments arguments_;
};

TEST_F(ResumeErrors, TrueIsTheLastWholeOne) {
  shorten(checkpoint(4) / "optimizer.pt");
  shorten(checkpoint(3) / "model.safetensors");
  fs::create_directories(folder_ / "out" / "checkpoint-9.0badcafe.incomplete");  // of a process that was killed
  testing::internal::CaptureStderr();
  EXPECT_EQ(checkpoint_to_resume("true", folder_ / "out"), checkpoint(2));
  expect_has(testing::internal::GetCapturedStderr(), {"checkpoint-4 is left out", "optimizer.pt", "model.safetensors"});
  EXPECT_FALSE(fs::exists(folder_ / "out" / "checkpoint-9.0badcafe.incomplete"));
  EXPECT_EQ(run(arguments_, "true").state.global_step, 4);
  EXPECT_EQ(why_not_whole(checkpoint(4)), std::nullopt) << "written again";
  expect_has(failure(arguments_in(folder_ / "none"), "true"), {"a whole checkpoint in", "no checkpoint"});
  expect_has(failure({.max_steps = 4}, "true"), {"output_dir"});
}

TEST_F(ResumeErrors, AFileThatIsMissingOrCutOffIsNamed) {
  const auto from = checkpoint(2).string();
  for (const char* name : {"optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors", "trainer_state.json",
                           "hotswap_state.json"}) {
    SCOPED_TRACE(name);
    const fs::path file = checkpoint(2) / name;
    const std::string bytes = read_file(file);
    shorten(file);
    expect_has(failure(arguments_, from), {name});
    fs::remove(file);
    const bool needed = std::string(name) != "hotswap_state.json";  // transformers' checkpoints have none
    if (needed) expect_has(failure(arguments_, from), {fs::path(name).stem().c_str()});
    write_file(file, bytes);
  }
  EXPECT_EQ(failure(arguments_, from), "no error");
  expect_has(failure(arguments_, (folder_ / "out" / "checkpoint-7").string()), {"checkpoint-7"});
}

TEST_F(ResumeErrors, AnArgumentThatChangesTheDataIsNamed) {
  const auto from = checkpoint(2).string();
  const auto fails = [&](const auto& change, std::initializer_list<std::string> parts) {
    TrainingArguments other = arguments_;
    change(other);
    expect_has(failure(other, from), parts);
    other.ignore_data_skip = true;
    return failure(other, from);
  };
  EXPECT_EQ(fails([](auto& a) { a.per_device_train_batch_size = 3; }, {"per_device_train_batch_size 2", "got 3"}),
            "no error");
  EXPECT_EQ(fails([](auto& a) { a.gradient_accumulation_steps = 2; }, {"gradient_accumulation_steps 1"}), "no error");
  EXPECT_EQ(fails([](auto& a) { a.seed = 5; }, {"seed 42", "got 5"}), "no error");
  EXPECT_EQ(fails([](auto& a) { a.data_seed = 5; }, {"data_seed 42", "got 5"}), "no error");
  EXPECT_EQ(fails([](auto& a) { a.dataloader_drop_last = true; }, {"dataloader_drop_last"}), "no error");
  EXPECT_EQ(fails([](auto& a) { a.train_sampling_strategy = "sequential"; }, {"train_sampling_strategy random"}),
            "no error");
  // Those of the optimizer are its states'.
  fails([](auto& a) { a.learning_rate = 0.02; }, {"learning_rate 0.01", "got 0.02", "optimizer.pt"});
  fails([](auto& a) { a.adam_beta2 = 0.95; }, {"adam_beta2 0.999", "got 0.95"});
  fails([](auto& a) { a.adam_epsilon = 1e-6; }, {"adam_epsilon"});
  fails([](auto& a) { a.weight_decay = 0.2; }, {"weight_decay 0.1", "got 0.2", "model.embed_tokens.weight"});
  // Other steps of the log only warn, as in transformers.
  TrainingArguments other = arguments_;
  other.logging_steps = 7;
  testing::internal::CaptureStderr();
  EXPECT_EQ(failure(other, from), "no error");
  expect_has(testing::internal::GetCapturedStderr(), {"logging_steps is 7, and 500 in"});
}

TEST_F(ResumeErrors, OtherDataAndOtherModels) {
  const auto from = checkpoint(2).string();
  const auto train = [&](std::shared_ptr<CausalLM> model, std::shared_ptr<const Dataset> data) {
    return message_of([&] { Trainer(std::move(model), arguments_, std::move(data)).train(from); });
  };
  expect_has(train(test_support::tiny_llama(), rows(2)), {"the 11 training examples", "as many others"});
  const auto model = test_support::tiny_llama({.hidden = 32});
  const Tensor before = model->parameters()[0].detach().clone();
  expect_has(train(model, rows()), {"model.embed_tokens.weight of shape [16, 32]", "[16, 16]", "checkpoint-2"});
  EXPECT_TRUE(at::equal(model->parameters()[0], before)) << "nothing was read";
  expect_has(train(test_support::tiny_llama({.layers = 2}), rows()), {"a tensor model.layers.1.", "none"});
  const auto frozen = test_support::tiny_llama();
  frozen->parameters()[0].requires_grad_(false);
  expect_has(train(frozen, rows()), {"the states of", "optimizer.pt"});
}

TEST_F(ResumeErrors, ACheckpointOfTheModelOnlyIsNotResumed) {
  TrainingArguments arguments = arguments_;
  arguments.output_dir = (folder_ / "models").string();
  arguments.save_only_model = true;
  run(arguments);
  const fs::path saved = checkpoint_folder(folder_ / "models", 4);
  EXPECT_TRUE(fs::exists(saved / "model.safetensors"));
  EXPECT_FALSE(fs::exists(saved / "optimizer.pt"));
  expect_has(failure(arguments, saved.string()), {"save_only_model", "optimizer.pt"});
}

TEST_F(ResumeErrors, OldCheckpointsGoAndTheBestOneStays) {
  TrainingArguments arguments = arguments_in(folder_ / "few");
  arguments.max_steps = 8;
  arguments.logging_steps = 1;
  arguments.eval_strategy = "steps";
  arguments.save_total_limit = 2;
  arguments.load_best_model_at_end = true;
  const Trained whole = run(arguments);
  const auto kept = checkpoint_steps(folder_ / "few");
  EXPECT_LE(kept.size(), 2u);
  const Trained again = run(arguments, "true");
  expect_same(again, whole);
  EXPECT_EQ(checkpoint_steps(folder_ / "few"), kept);
}

void train_in_child(const TrainingArguments& arguments, const std::string& resume) {
  at::set_num_threads(1);
  const auto model = test_support::tiny_llama();
  Trainer trainer(model, arguments, rows());
  trainer.train(resume);
  trainer.save_model();
  trainer.save_state();
}

// 100 times at a random moment: what is there under a checkpoint's name is whole, and the run that went on from it ends
// as one that was left in peace.
TEST(Killed, AtAnyMomentLeavesTheLastWholeCheckpoint) {
  const TempFolder folder;
  TrainingArguments arguments = arguments_in(folder / "whole");
  arguments.max_steps = 30;
  arguments.logging_steps = 1;
  arguments.save_total_limit = 3;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(status_of(in_child([&] { train_in_child(arguments, {}); })), 0);
  const auto whole = std::chrono::steady_clock::now() - begin;
  const auto seed = std::random_device{}();
  SCOPED_TRACE(cat("seed ", seed));
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0, 0.6);
  arguments.output_dir = (folder / "killed").string();
  int64_t kills = 0, ended = 0, last = 0;
  while (kills < 100) {
    const auto steps = checkpoint_steps(folder / "killed");
    const pid_t child = in_child([&] { train_in_child(arguments, steps.empty() ? "" : "true"); });
    std::this_thread::sleep_for(whole * share(random));
    ::kill(child, SIGKILL);
    const int status = status_of(child);
    if (WIFSIGNALED(status)) {
      ++kills;
    } else {
      ASSERT_EQ(status, 0) << "after " << kills << " kills";
    }
    const auto left = checkpoint_steps(folder / "killed");
    if (!left.empty()) {
      ASSERT_GE(left.back(), last);
      last = left.back();
    }
    for (const int64_t step : left) {
      ASSERT_EQ(why_not_whole(checkpoint_folder(folder / "killed", step)), std::nullopt) << kills << " kills";
    }
    if (WIFSIGNALED(status)) continue;
    ++ended;
    last = 0;
    const auto same = [&](const fs::path& file) {
      EXPECT_EQ(read_file(folder / "killed" / file), read_file(folder / "whole" / file)) << file;
    };
    same("model.safetensors");
    same("checkpoint-30/optimizer.pt");
    const auto log = [&](const char* of) { return log_of(TrainerState::read(folder / of / "trainer_state.json")); };
    ASSERT_EQ(log("killed"), log("whole"));
    fs::remove_all(folder / "killed");
  }
  EXPECT_GT(ended, 0) << "no run came to its end: the test compared nothing";
}

// A disk without room, as a limit on the size of a file: the run ends with an Error that names the file, and the
// checkpoint before is whole.
TEST(Killed, AFullDiskEndsTheRunByItsName) {
  const TempFolder folder;
  TrainingArguments arguments = arguments_in(folder / "out");
  arguments.max_steps = 3;
  ASSERT_EQ(status_of(in_child([&] { train_in_child(arguments, {}); })), 0);
  const auto size = fs::file_size(folder / "out" / "checkpoint-3" / "optimizer.pt");
  fs::remove_all(folder / "out" / "checkpoint-3");
  const fs::path note = folder / "note";
  const pid_t child = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{size - 100, size - 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of([&] { train_in_child(arguments, "true"); });
    write_file(note, message);
  });
  ASSERT_EQ(status_of(child), 0);
  expect_has(read_file(note), {"optimizer.pt", "File too large", "free space"});
  EXPECT_EQ(checkpoint_steps(folder / "out"), (std::vector<int64_t>{1, 2}));
  for (const int64_t step : {1, 2}) EXPECT_EQ(why_not_whole(checkpoint_folder(folder / "out", step)), std::nullopt);
  for (const auto& entry : fs::directory_iterator(folder / "out")) {
    EXPECT_EQ(entry.path().string().find("incomplete"), std::string::npos) << entry.path();
  }
}

// Its checkpoints hold only the adapter; masks of dropout come of a generator whose state they have.
TEST(Resume, AnAdapterGoesOnToTheBit) {
  const TempFolder whole, cut;
  const auto train = [](const fs::path& output, int64_t steps, const std::string& resume, double alpha = 8) {
    const auto model = test_support::tiny_llama();
    model->add_adapter({.r = 2, .lora_alpha = alpha, .lora_dropout = 0.25}, /*seed=*/7);
    TrainingArguments arguments = arguments_in(output);
    arguments.max_steps = 8, arguments.save_steps = steps;
    Trainer trainer(model, arguments, rows());
    trainer.train(resume);
    return model;
  };
  const auto expected = train(whole.path(), 4, {});
  EXPECT_TRUE(fs::exists(whole.path() / "checkpoint-4/adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(whole.path() / "checkpoint-4/model.safetensors"));
  const auto resumed = train(cut.path(), 100, (whole.path() / "checkpoint-4").string());
  std::map<std::string, Tensor> trained;
  expected->each_trained([&](const std::string& name, Tensor& tensor) { trained[name] = tensor; });
  EXPECT_FALSE(trained.empty());
  resumed->each_trained([&](const std::string& name, Tensor& tensor) {
    ASSERT_TRUE(trained.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, trained[name])) << name;
  });
  const std::string changed =
      message_of([&] { train(cut.path(), 100, (whole.path() / "checkpoint-4").string(), /*alpha=*/99); });
  expect_has(changed, {"lora_alpha = 8", "got 99", "adapter_config.json"});
}

}  // namespace
}  // namespace hotswap
