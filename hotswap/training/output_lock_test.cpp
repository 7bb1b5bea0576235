// One training run a folder, also after a process died.
#include "hotswap/training/output_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hotswap/base/file.h"
#include "hotswap/base/test_support.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

class OutputLockTest : public testing::Test {
 protected:
  fs::path folder() const { return temp_.path() / "out"; }
  TempFolder temp_;
};

TEST_F(OutputLockTest, HoldsAFolderUntilItEnds) {
  {
    const auto lock = OutputLock::take(folder());
    expect_has(message_of([&] { OutputLock::take(folder()); }),
               {"no other run", folder().string(), cat("process ", getpid())});
    OutputLock::take(temp_.path() / "other");
  }
  EXPECT_FALSE(fs::exists(folder())) << "nothing was written to it";
  {
    const auto lock = OutputLock::take(folder());
    write_file(folder() / "model", "m");
  }
  EXPECT_TRUE(fs::exists(folder() / "model"));
  EXPECT_FALSE(fs::exists(folder() / OutputLock::kFile));
  OutputLock::take(folder());
  EXPECT_TRUE(fs::exists(folder() / "model"));
}

TEST_F(OutputLockTest, IsFreeWhenItsProcessDies) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = OutputLock::take(folder());
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  expect_has(message_of([&] { OutputLock::take(folder()); }), {cat("process ", child)});
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder() / OutputLock::kFile)) << "it is left there";
  OutputLock::take(folder());
  EXPECT_FALSE(fs::exists(folder() / OutputLock::kFile));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(OutputLockTest, ATrainersRunHoldsItsOwn) {
  const auto model = test_support::tiny_llama();
  const auto data = std::make_shared<PackedDataset>(std::vector<int64_t>(64, 3), 16);
  Trainer trainer(model, {.output_dir = folder().string(), .max_steps = 1, .save_strategy = "no"}, data);
  {
    const auto lock = OutputLock::take(folder());
    expect_has(message_of([&] { trainer.train(); }), {"no other run"});
  }
  trainer.train();
  OutputLock::take(folder());
}

}  // namespace
}  // namespace hotswap
