// Ranks that end before the others do: they are named within the time-out, and all go on from the last checkpoint.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "hotswap/base/json.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/resume.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/test_ranks.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::EndedRank;
using test_support::expect_all_well;
using test_support::expect_has;
using test_support::RanksRun;
using test_support::run_ranks;
using test_support::TempFolder;

std::shared_ptr<const Dataset> lost_rows() {
  std::vector<Example> examples;
  for (int64_t i = 0; i < 22; ++i) {
    Example example;
    for (int64_t at = 0; at < 5 + i % 4; ++at) example.ids.push_back((1 + i * at) % 16);
    example.labels = example.ids;
    examples.push_back(example);
  }
  return std::make_shared<ExampleDataset>(std::move(examples), 0);
}

// 6 updates an epoch of two ranks: the last one's end is filled.
TrainingArguments lost_arguments(const fs::path& output) {
  return {.output_dir = output.string(),
          .per_device_train_batch_size = 2,
          .num_train_epochs = 2,
          .learning_rate = 0.01,
          .weight_decay = 0.1,
          .ddp_timeout = 5,
          .logging_steps = 1,
          .save_steps = 1};
}

struct AtStep : TrainerCallback {
  AtStep(int64_t at, std::function<void(TrainerControl&)> then) : step(at), work(std::move(then)) {}
  void on_step_end(const TrainerEvent& event) override {
    if (event.state.global_step == step) work(event.control);
  }
  int64_t step;
  std::function<void(TrainerControl&)> work;
};

using Work = std::function<void(TrainerControl&)>;

// At the end of update `step` of this rank `work` is done.
std::vector<EndedRank> train_ranks(const RanksRun& run, const TrainingArguments& arguments, int which = -1,
                                   int64_t step = 0, const Work& work = {}, double dropout = 0) {
  return run_ranks(run, [&](int rank) {
    const auto model = test_support::tiny_llama();
    if (dropout > 0) model->add_adapter({.r = 2, .lora_alpha = 8, .lora_dropout = dropout}, 7);
    TrainerParts parts{.eval_dataset = lost_rows()};
    if (rank == which) parts.callbacks.push_back(std::make_shared<AtStep>(step, work));
    Trainer trainer(model, arguments, lost_rows(), std::move(parts));
    trainer.train();
    trainer.save_model();
    trainer.save_state();
  });
}

class LostRank : public testing::Test {
 protected:
  // The error of `witness` where rank `lost` does this after 3 updates.
  std::string seen_by(int witness, int lost, const Work& work, int64_t zero_stage = 0) {
    const auto begin = std::chrono::steady_clock::now();
    auto arguments = lost_arguments(folder_ / "out");
    arguments.zero_stage = zero_stage;
    const auto ended = train_ranks({.size = 2}, arguments, lost, 3, work);
    const auto& seen = ended[static_cast<size_t>(witness)];
    EXPECT_NE(seen.status, 0);
    EXPECT_TRUE(WIFEXITED(seen.status));
    // Of the time-out of 5 s; the rest is the start of the processes and three updates.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
    EXPECT_EQ(checkpoint_steps(folder_ / "out").back(), work ? 2 : 12);
    return seen.errors;
  }
  TempFolder folder_;
};

TEST_F(LostRank, IsNamedWhereItWasKilled) {
  const auto kill = [](TrainerControl&) {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // so that it is heard in this step
    ::kill(::getpid(), SIGKILL);
  };
  expect_has(seen_by(0, 1, kill), {"all 2 ranks", "rank 1 on ", "last heard", "in step 2", "torchrun --max-restarts"});
}

TEST_F(LostRank, IsNamedWhereItHasAShareOfTheStates) {
  const auto kill = [](TrainerControl&) { ::kill(::getpid(), SIGKILL); };
  expect_has(seen_by(0, 1, kill, /*zero_stage=*/1), {"all 2 ranks", "rank 1 on ", "last heard"});
}

TEST_F(LostRank, IsNamedByAllOthers) {
  const auto ended = train_ranks({.size = 4}, lost_arguments(folder_ / "out"), 2, 3,
                                 [](TrainerControl&) { ::kill(::getpid(), SIGKILL); });
  for (const size_t rank : {0, 1, 3}) expect_has(ended[rank].errors, {"rank 2 on ", cat("seen by rank ", rank)});
}

TEST_F(LostRank, IsNamedWhereItServedTheStore) {
  expect_has(seen_by(1, 0, [](TrainerControl&) { ::kill(::getpid(), SIGKILL); }),
             {"the store at 127.0.0.1:", "rank 0"});
}

TEST_F(LostRank, IsNamedWithItsOwnError) {
  const auto fail = [](TrainerControl&) {
    throw Error({.kind = ErrorKind::kUnavailable, .wanted = "a disk", .got = "a full one", .next = "free some of it"});
  };
  expect_has(seen_by(0, 1, fail), {"rank 1 on ", "ended in step 2", "expected a disk; got a full one"});
}

TEST_F(LostRank, IsNamedWhereItHangs) {
  expect_has(seen_by(0, 1, [](TrainerControl&) { std::this_thread::sleep_for(std::chrono::seconds(12)); }),
             {"rank 1 on ", "is alive in step 2, and rank 0 waited for it"});
}

TEST(RankStart, FailsWhereRanksDoNotCome) {
  const auto ended = run_ranks({.size = 2}, [&](int rank) {
    if (rank == 1) return;
    Trainer(test_support::tiny_llama(), {.max_steps = 1, .ddp_timeout = 2}, lost_rows());
  });
  EXPECT_NE(ended[0].status, 0);
  expect_has(ended[0].errors, {"all 2 ranks within 2 s", "no rank 1", "WORLD_SIZE"});
}

nlohmann::json losses_in(const fs::path& folder) {
  nlohmann::json losses = nlohmann::json::array();
  for (const auto& entry : TrainerState::read(folder / "trainer_state.json").log_history) {
    for (const char* key : {"loss", "grad_norm", "train_loss", "learning_rate", "epoch"}) {
      if (entry.contains(key)) losses.push_back(entry[key]);
    }
  }
  return losses;
}

// Dropout goes on, too: each rank has its own file of the generators.
class RestartedRanks : public testing::TestWithParam<int64_t> {};  // zero_stage

TEST_P(RestartedRanks, GoOnToTheBit) {
  const TempFolder folder;
  const auto kill = [](TrainerControl&) { ::kill(::getpid(), SIGKILL); };
  expect_all_well(train_ranks({}, lost_arguments(folder / "whole"), -1, 0, {}, 0.25));
  for (const char* name : {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"}) {
    EXPECT_TRUE(fs::exists(folder / "whole" / "checkpoint-3" / name)) << name;
  }
  auto arguments = lost_arguments(folder / "out");
  arguments.zero_stage = GetParam();
  train_ranks({}, arguments, 1, 5, kill, 0.25);
  train_ranks({.restarts = 1}, arguments, 0, 8, kill, 0.25);
  EXPECT_EQ(checkpoint_steps(folder / "out").back(), 7);
  expect_all_well(train_ranks({.restarts = 2}, arguments, -1, 0, {}, 0.25));
  EXPECT_EQ(read_file(folder / "out" / "adapter_model.safetensors"),
            read_file(folder / "whole" / "adapter_model.safetensors"));
  EXPECT_EQ(losses_in(folder / "out"), losses_in(folder / "whole"));
}

INSTANTIATE_TEST_SUITE_P(ZeroStages, RestartedRanks, testing::Values(0, 1));

TEST(RestartedRanksAlone, BeginWhereThereIsNoCheckpoint) {
  const TempFolder folder;
  expect_all_well(train_ranks({.restarts = 1}, lost_arguments(folder / "out")));
  EXPECT_EQ(checkpoint_steps(folder / "out").back(), 12);
}

// What a signal does in `hotswap train`: all ranks end after the same update.
TEST(RanksThatStop, StopAfterTheSameUpdate) {
  const TempFolder folder;
  auto arguments = lost_arguments(folder / "out");
  arguments.save_strategy = "no";
  const auto stop = [](TrainerControl& control) { control.should_training_stop = control.should_save = true; };
  expect_all_well(train_ranks({}, arguments, 1, 4, stop));
  EXPECT_EQ(checkpoint_steps(folder / "out"), std::vector<int64_t>{4});
}

// A callback that only one rank has: a checkpoint after an evaluation, and after that the end.
struct AfterEvaluation : TrainerCallback {
  void on_evaluate(const TrainerEvent& event, const nlohmann::json&) override { event.control.should_save = true; }
  void on_save(const TrainerEvent& event) override { event.control.should_training_stop = true; }
};

TEST(RanksThatStop, FollowACallbackOfOneRank) {
  const TempFolder folder;
  expect_all_well(run_ranks({}, [&](int rank) {
    TrainingArguments arguments = lost_arguments(folder / "out");
    arguments.save_strategy = "no";
    arguments.eval_strategy = "steps";
    arguments.eval_steps = 3;
    TrainerParts parts{.eval_dataset = lost_rows()};
    if (rank == 1) parts.callbacks.push_back(std::make_shared<AfterEvaluation>());
    Trainer trainer(test_support::tiny_llama(), arguments, lost_rows(), std::move(parts));
    trainer.train();
    if (trainer.state().global_step != 3) throw std::runtime_error(cat("step ", trainer.state().global_step));
  }));
  EXPECT_EQ(checkpoint_steps(folder / "out"), std::vector<int64_t>{3});
}

// 20 rows are whole updates of 4, in one rank and in two: the same examples in each.
class OtherRanks : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(OtherRanks, ResumeWithTheSameLosses) {
  const TempFolder folder;
  const auto [before, after] = GetParam();
  const auto run = [&](int ranks, const char* name, int64_t batch, const std::string& resume) {
    return run_ranks({.size = ranks}, [&](int) {
      TrainingArguments arguments = lost_arguments(folder / name);
      arguments.per_device_train_batch_size = batch;
      arguments.max_steps = 10;
      std::vector<Example> rows = static_cast<const ExampleDataset&>(*lost_rows()).examples();
      rows.resize(20);
      Trainer trainer(test_support::tiny_llama(), arguments, std::make_shared<ExampleDataset>(rows, 0));
      trainer.train(resume);
      trainer.save_state();
    });
  };
  expect_all_well(run(before, "whole", 4 / before, ""));
  const std::string checkpoint = (folder / "whole" / "checkpoint-3").string();
  expect_all_well(run(after, "resumed", 4 / after, checkpoint));
  const auto whole = losses_in(folder / "whole"), resumed = losses_in(folder / "resumed");
  ASSERT_EQ(whole.size(), resumed.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(resumed[i].get<double>(), whole[i].get<double>(), 1e-6 * std::max(1.0, whole[i].get<double>())) << i;
  }
  const auto refused = run(after, "refused", 4 / before, checkpoint);  // an update would have other examples
  EXPECT_NE(refused[0].status, 0);
  expect_has(refused[0].errors, {"gradient_accumulation_steps * ranks of 4", "ignore_data_skip"});
}

INSTANTIATE_TEST_SUITE_P(Counts, OtherRanks, testing::Values(std::pair{2, 1}, std::pair{1, 2}),
                         [](const auto& info) { return cat("from_", info.param.first, "_to_", info.param.second); });

}  // namespace
}  // namespace hotswap
