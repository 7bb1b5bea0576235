// hotswap train as a script runs it.
#include <cmath>
#include <cstring>

#include "hotswap/cli/test_program.h"
#include "hotswap/training/output_lock.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using namespace test_support;

class Train : public CliModel {
 protected:
  std::string out() const { return file("out").string(); }
  std::string data() const { return (model_data() / "text/license.txt").string(); }
  std::string call(const std::string& further) const {
    return "train " + model() + " --train-file " + data() + " --output-dir " + out() + " --max-length 64 " + further;
  }
};

TEST_F(Train, ArgumentsFromFileAndFlags) {
  write_file(file("args.json"),
             R"({"max_steps": 6, "learning_rate": 0.5, "per_device_train_batch_size": 2, "logging_steps": 2,
                 "save_steps": 3, "report_to": "none", "gradient_checkpointing": false, "warmup_steps": null})");
  const auto json = run_json(call("--arguments " + file("args.json").string() +
                                  " --learning_rate 1e-3 --weight-decay 0.1 --use-liger-kernel --eval-file " + data() +
                                  " --liger_kernel_config '{\"rope\": false}' --json"));
  EXPECT_EQ(keys(json), (Keys{"output_dir", "metrics", "eval", "tokens_per_second", "flops_per_second", "mfu",
                              "peak_memory", "memory_estimate", "optimizer_bytes", "kernels"}));
  EXPECT_GT(json["eval"]["eval_loss"], 0);
  std::set<std::string> bound;
  for (const auto& row : json["kernels"]) {
    if (!row["package"].is_null() && row["package"] != "") bound.insert(row["layer"].get<std::string>());
  }
  EXPECT_TRUE(bound.contains("SwiGLUMLP"));
  EXPECT_FALSE(bound.contains("rotary_pos_emb")) << "the option is off";
  EXPECT_FALSE(bound.contains("Linear")) << "Liger has none";

  const auto state = nlohmann::json::parse(read_file(file("out") / "trainer_state.json"));
  EXPECT_EQ(state["global_step"], 6);
  EXPECT_EQ(state["log_history"].size(), 3u + 1u + 1u) << "three logs, the end, the evaluation";
  EXPECT_EQ(keys(state["log_history"][0]), (Keys{"epoch", "grad_norm", "learning_rate", "loss", "step"}));
  EXPECT_LT(state["log_history"][0]["learning_rate"].get<double>(), 1e-3) << "the flag goes before the file";
  for (const char* folder : {"checkpoint-3", "checkpoint-6", "."}) {
    EXPECT_TRUE(fs::exists(file("out") / folder / "model.safetensors")) << folder;
    EXPECT_TRUE(fs::exists(file("out") / folder / "trainer_state.json")) << folder;
  }
  EXPECT_EQ(nlohmann::json::parse(read_file(file("out") / "training_arguments.json"))["weight_decay"], 0.1);
  // What was trained loads, and has learned.
  const auto before = run_json("score " + model() + " --json --text " + data());
  const auto after = run_json("score " + out() + " --json --text " + data());
  EXPECT_LT(after["loss"].get<double>(), before["loss"].get<double>());
}

TEST_F(Train, ChecksAStep) {
  const Outcome outcome = run(call("--max-steps 2 --save-strategy no --use-kernels --check-step 2 --json"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("update 2 with kernels: loss "), std::string::npos) << outcome.err;
  const auto check = nlohmann::json::parse(outcome.out)["check_step"];
  EXPECT_EQ(check["step"], 2);
  EXPECT_NEAR(check["loss"].get<double>(), check["stock_loss"].get<double>(), 1e-4);
  EXPECT_LT(check["gradients"][0]["difference"].get<double>(), 1e-2);
  const Outcome without = run("train " + model() + " --train-file " + data() + " --output-dir " +
                              file("stock").string() + " --max-steps 1 --check-step 1");
  EXPECT_NE(without.err.find("pass --use-kernels"), std::string::npos) << without.err;
  EXPECT_NE(without.status, 0);
}

TEST_F(Train, PrintsProgress) {
  const Outcome outcome = run(call("--max-steps 2 --logging-steps 1 --save-strategy no --use-kernels"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"license.txt: ", " examples", "2 updates", "1/2  loss ", "2/2  loss ",
                           "memory, estimated: weights ", "memory: peak ", " tokens/s  ", " TFLOP/s  peak "}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\n" << outcome.err;
  }
  for (const char* part : {"kernels: ", "2 updates, loss ", "tokens/s"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  EXPECT_FALSE(fs::exists(file("out") / "checkpoint-2"));
}

TEST_F(Train, SaysWhatIsWrong) {
  const auto fails = [&](const std::string& line, std::initializer_list<std::string> parts) {
    const Outcome outcome = run(line);
    EXPECT_NE(outcome.status, 0) << line;
    expect_has(outcome.out + outcome.err, parts);
    EXPECT_FALSE(fs::exists(file("out") / "model.safetensors")) << line;
  };
  fails(call("--learning_rat 1"), {"--learning_rate"});
  fails(call("--fp16"), {"fp16", "bfloat16"});
  fails(call("--deepspeed ds.json"), {"deepspeed", "each rank"});
  fails(call("--max_steps many"), {"expected an integer at the flag --max_steps; got"});
  fails(call("--resume_from_checkpoint o9"), {"o9, which does not exist; start a run without"});
  fails(call("--eval-strategy epoch"), {"eval_dataset"});
  fails(call("--use-kernels --use_liger_kernel"), {"use_liger_kernel"});
  fails(call("--use_liger_kernel --liger_kernel_config '{\"ropee\": true}'"), {"did you mean rope?"});
  write_file(file("args.json"), R"({"max_step": 3})");
  fails(call("--arguments " + file("args.json").string()), {"args.json", "did you mean max_steps?"});
  write_file(file("bad.jsonl"), "{\"text\": \"You may\"}\n{\"text\": 1}\n");
  fails("train " + model() + " --output-dir " + out() + " --train-file " + file("bad.jsonl").string(), {"bad.jsonl:2"});
  fails("train " + model() + " --train-file " + data(), {"--output-dir"});
  write_file(file("bad.jsonl"), "");
  fs::create_directories(file("out"));
  write_file(file("out") / "note", "mine");
  fails(call("--max-steps 1"), {"is empty", "out"});
}

// What a script that is killed and started again sees.
TEST_F(Train, Resumes) {
  const std::string line =
      call("--max-steps 6 --save-steps 2 --logging-steps 1 --per-device-train-batch-size 2 --use-cpu");
  ASSERT_EQ(run(line).status, 0);
  const auto bytes = [&](const char* name) { return read_file(file("out") / name); };
  const std::string weights = bytes("model.safetensors"), states = bytes("checkpoint-6/optimizer.pt");
  Outcome again = run(line);
  EXPECT_NE(again.status, 0);
  expect_has(again.err, {"--resume_from_checkpoint"});
  fs::remove_all(file("out") / "checkpoint-6");
  fs::resize_file(file("out") / "checkpoint-4" / "scheduler.pt", 100);
  again = run(line + " --resume_from_checkpoint true");
  ASSERT_EQ(again.status, 0) << again.err;
  expect_has(again.err, {"checkpoint-4 is left out", "scheduler.pt", "3/6  loss", "6/6  loss"});
  EXPECT_EQ(bytes("model.safetensors"), weights);
  EXPECT_EQ(bytes("checkpoint-6/optimizer.pt"), states);
  again = run(line + " --resume-from-checkpoint " + (file("out") / "checkpoint-6").string());
  ASSERT_EQ(again.status, 0) << again.err;
  expect_has(again.out, {"0 updates"});
  again = run(line + " --seed 3 --resume-from-checkpoint");
  EXPECT_NE(again.status, 0);
  expect_has(again.err, {"seed 42", "got 3"});
}

TEST_F(Train, PacksExamplesAndReadsTokenFiles) {
  write_file(file("a.jsonl"), "{\"text\": \"You may\"}\n{\"text\": \"the Work\"}\n{\"text\": \"this License\"}\n");
  const std::string rest = " --output-dir " + out() + " --max-steps 2 --save-strategy no --train-file ";
  const Outcome packed = run("train " + model() + rest + file("a.jsonl").string() + " --packing --max-length 64");
  ASSERT_EQ(packed.status, 0) << packed.err;
  expect_has(packed.err, {"a.jsonl: 1 examples", "packed from 3"});
  fs::remove_all(file("out"));
  std::string tokens(1024, '\0');
  const int32_t header[] = {20240520, 1, 40};
  std::memcpy(tokens.data(), header, sizeof header);
  for (int i = 0; i < 40; ++i) tokens += {static_cast<char>(3 + i), '\0'};
  write_file(file("a.bin"), tokens);
  const Outcome binary = run("train " + model() + rest + file("a.bin").string() + " --max-length 16");
  ASSERT_EQ(binary.status, 0) << binary.err;
  expect_has(binary.err, {"a.bin: 2 examples, 32 tokens", "8 dropped"});
  fs::remove_all(file("out"));
  const Outcome wrong = run("train " + model() + rest + file("a.bin").string() + " --packing");
  EXPECT_NE(wrong.status, 0);
  expect_has(wrong.err, {"examples to pack", "a.bin"});
}

// Another run writes there: neither a new one nor one that resumes begins, before the model is read.
TEST_F(Train, TwoRunsDoNotShareAFolder) {
  const auto lock = OutputLock::take(file("out"));
  for (const char* further : {"--max-steps 1", "--max-steps 1 --resume_from_checkpoint true"}) {
    const Outcome outcome = run(call(further));
    EXPECT_EQ(outcome.status, 75) << outcome.err;
    expect_has(outcome.err, {"no other run", out(), "process " + std::to_string(getpid())});
  }
}

// transformers runs beyond max_position_embeddings without a word.
TEST_F(Train, ExamplesBeyondTheModelsPositionsAreAWarning) {
  const auto config = nlohmann::json::parse(read_file(tiny_model() / "config.json"));
  const auto positions = config["max_position_embeddings"].get<int64_t>();
  const auto trained = [&](int64_t length) {
    fs::remove_all(file("out"));
    const Outcome outcome =
        run("train " + model() + " --train-file " + data() + " --output-dir " + out() +
            " --max-steps 1 --per-device-train-batch-size 1 --save-strategy no --max-length " + std::to_string(length));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.err;
  };
  expect_has(trained(positions + 8), {"license.txt", std::to_string(positions) + " positions", "--max-length"});
  EXPECT_EQ(trained(positions).find("positions"), std::string::npos);
}

// A loss that is no number ends the run; what was saved before is whole.
TEST_F(Train, StopsWhereTheLossIsNotFinite) {
  const Outcome outcome =
      run(call("--max-steps 40 --learning-rate 1e30 --max-grad-norm 0 --save-steps 1 --disable-tqdm"));
  EXPECT_EQ(outcome.status, 1);
  expect_has(outcome.err, {"finite", "at step "});
  EXPECT_TRUE(fs::exists(file("out") / "checkpoint-1" / "model.safetensors"));
}

}  // namespace
}  // namespace hotswap
