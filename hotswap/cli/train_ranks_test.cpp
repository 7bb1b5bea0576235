// hotswap train under torchrun.
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/cli/test_program.h"
#include "hotswap/kernelize/package/device.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using namespace test_support;

class TrainRanks : public CliModel {
 protected:
  std::string call(const std::string& output, const std::string& further, const char* steps = "6") const {
    return "train " + model() + " --train-file " + (model_data() / "text/license.txt").string() + " --output-dir " +
           file(output).string() + " --max-length 64 --use-cpu --logging-steps 1 --max-steps " + steps + " " + further;
  }
  static std::string torchrun(const std::string& further = "") {
    return "env OMP_NUM_THREADS=1 " + (fs::path(test_python()).parent_path() / "torchrun").string() +
           " --no-python --standalone --nproc-per-node 2 " + further + " ";
  }
  nlohmann::json log(const std::string& output) const {
    return nlohmann::json::parse(read_file(file(output) / "trainer_state.json"))["log_history"];
  }
};

TEST_F(TrainRanks, AreOneRunOfTheJoinedBatch) {
  const Outcome two = run_with(torchrun(), call("two", "--per-device-train-batch-size 2 --save-steps 3"));
  ASSERT_EQ(two.status, 0) << two.err;
  const Outcome one = run_with("env OMP_NUM_THREADS=1 ", call("one", "--per-device-train-batch-size 4 --save-steps 3"));
  ASSERT_EQ(one.status, 0) << one.err;
  const auto ours = log("two"), whole = log("one");
  ASSERT_EQ(ours.size(), whole.size());
  for (size_t i = 0; i + 1 < ours.size(); ++i) {
    EXPECT_NEAR(ours[i]["loss"].get<double>(), whole[i]["loss"].get<double>(), 1e-5) << i;
    EXPECT_NEAR(ours[i]["grad_norm"].get<double>(), whole[i]["grad_norm"].get<double>(), 1e-4) << i;
  }
  for (const char* line : {" examples", "1/6  loss"}) {  // of one rank
    EXPECT_EQ(two.err.find(line), two.err.rfind(line)) << two.err;
  }
  for (const char* name : {"model.safetensors", "checkpoint-3/rng_state_1.pth", "training_arguments.json"}) {
    EXPECT_TRUE(fs::exists(file("two") / name)) << name;
  }
}

TEST_F(TrainRanks, ShareTheStatesOutInZeroStage1) {
  const Outcome plain = run_with(torchrun(), call("plain", "--json"));
  ASSERT_EQ(plain.status, 0) << plain.err;
  const Outcome zero = run_with(torchrun(), call("zero", "--zero-stage 1"));
  ASSERT_EQ(zero.status, 0) << zero.err;
  EXPECT_EQ(read_file(file("zero") / "model.safetensors"), read_file(file("plain") / "model.safetensors"));
  EXPECT_EQ(nlohmann::json::parse(read_file(file("zero") / "training_arguments.json"))["zero_stage"], 1);
  expect_has(zero.out, {" tokens/s, peak ", ", AdamW's states "});
  const auto json = nlohmann::json::parse(plain.out);
  ASSERT_EQ(json["optimizer_bytes"].size(), 2u);
  EXPECT_EQ(json["optimizer_bytes"][0], json["memory_estimate"]["optimizer"]);
  const Outcome refused = run_with(torchrun(), call("refused", "--zero-stage 3"));
  EXPECT_NE(refused.status, 0);
  expect_has(refused.err, {"zero_stage 0, or 1", "got 3, which shards gradients"});
}

TEST_F(TrainRanks, AnErrorIsInTorchrunsSummary) {
  const Outcome outcome = run_with(torchrun(), call("out", "--learning-rate 1e30 --max-grad-norm 0"));
  EXPECT_NE(outcome.status, 0);
  expect_has(outcome.err, {"Root Cause", ": expected a finite ", "at step "});
  const Outcome device = run_with(torchrun(), "train " + model() + " --train-file none.txt --output-dir " +
                                                  file("none").string() + " --device cuda:0");
  EXPECT_NE(device.status, 0);
  expect_has(device.err, {"LOCAL_RANK"});
}

// A rank that is killed in the middle: torchrun starts both again, and they end as if nothing had been.
TEST_F(TrainRanks, AreStartedAgainAndResume) {
  const std::string whole = call("whole", "--save-steps 1"), cut = call("cut", "--save-steps 1");
  ASSERT_EQ(run_with(torchrun(), whole).status, 0);
  write_file(file("rank.sh"),
             "\"$@\" &\n"
             "if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n"
             "  while ! [ -e " +
                 file("cut").string() +
                 "/checkpoint-2 ]; do sleep 0.02; done\n"
                 "  kill -9 $!\n"
                 "fi\n"
                 "wait $!\n");
  const Outcome outcome = run_with(torchrun("--max-restarts 1") + " sh " + file("rank.sh").string() + " ", cut);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(read_file(file("cut") / "model.safetensors"), read_file(file("whole") / "model.safetensors"));
}

TEST_F(TrainRanks, AHalfSetEnvironmentIsAnError) {
  const Outcome outcome = run_with("env RANK=0 WORLD_SIZE=2 ", call("out", ""));
  EXPECT_EQ(outcome.status, 1);
  expect_has(outcome.err, {"RANK, WORLD_SIZE without LOCAL_RANK, MASTER_ADDR, MASTER_PORT"});
}

// Of one process and of ranks: the update is finished, the checkpoint written.
TEST_F(TrainRanks, SigtermSavesAndExits143) {
  write_file(file("term.sh"),
             "\"$@\" &\n"
             "while ! ls -d " +
                 file("out").string() +
                 "/checkpoint-* 2>/dev/null; do sleep 0.02; done\n"
                 "kill -TERM $!\n"
                 "wait $!\n");
  const std::string line = call("out", "--save-steps 2", "100000");
  const Outcome outcome = run_with("sh " + file("term.sh").string() + " ", line);
  EXPECT_EQ(outcome.status, 143) << outcome.err;
  expect_has(outcome.err, {"stopped by SIGTERM after update ", "--resume_from_checkpoint true"});
  EXPECT_FALSE(fs::exists(file("out") / "model.safetensors"));
  int64_t last = 0;
  for (const auto& entry : fs::directory_iterator(file("out"))) {
    last = std::max<int64_t>(last, std::atoll(entry.path().filename().string().substr(11).c_str()));
  }
  expect_has(outcome.err, {"after update " + std::to_string(last) + " of"});
  EXPECT_TRUE(fs::exists(file("out") / ("checkpoint-" + std::to_string(last)) / "optimizer.pt"));
}

// NCCL: the curve of one GPU on the joined batch, and a rank that is killed without torchrun, which would end the
// others.
class TrainOnGpus : public TrainRanks {
 protected:
  void SetUp() override {
    const std::string why = message_of([] { device_named("cuda:1"); });
    if (why == "no error") return TrainRanks::SetUp();
    GTEST_SKIP() << why;
  }
  std::string on_gpu(const std::string& output, const std::string& further, const char* steps = "6") const {
    const std::string line = call(output, further, steps);
    return line.substr(0, line.find(" --use-cpu")) + line.substr(line.find(" --use-cpu") + 10) + " --device cuda";
  }
};

TEST_F(TrainOnGpus, AreOneRunOfTheJoinedBatch) {
  const Outcome two = run_with(torchrun(), on_gpu("two", "--per-device-train-batch-size 2 --save-steps 3"));
  ASSERT_EQ(two.status, 0) << two.err;
  const Outcome one = run(on_gpu("one", "--per-device-train-batch-size 4 --save-steps 3"));
  ASSERT_EQ(one.status, 0) << one.err;
  const auto ours = log("two"), whole = log("one");
  ASSERT_EQ(ours.size(), whole.size());
  for (size_t i = 0; i + 1 < ours.size(); ++i) {
    EXPECT_NEAR(ours[i]["loss"].get<double>(), whole[i]["loss"].get<double>(), 1e-4) << i;  // other sums, 6 updates
  }
}

TEST_F(TrainOnGpus, ALostRankIsNamedWithinTheTimeOut) {
  write_file(file("ranks.sh"),
             "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29533\n"
             "RANK=1 LOCAL_RANK=1 \"$@\" &\n"
             "(while ! ls -d " +
                 file("out").string() +
                 "/checkpoint-* 2>/dev/null; do sleep 0.1; done\n"
                 "kill -9 $!) &\n"
                 "RANK=0 LOCAL_RANK=0 exec \"$@\"\n");
  const Outcome outcome =
      run_with("sh " + file("ranks.sh").string() + " ", on_gpu("out", "--save-steps 2 --ddp-timeout 20", "100000"));
  EXPECT_EQ(outcome.status, 75) << outcome.err;
  expect_has(outcome.err, {"rank 1 on ", "last heard"});
}

}  // namespace
}  // namespace hotswap
