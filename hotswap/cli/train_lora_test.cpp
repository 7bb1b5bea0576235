// hotswap train with --lora and --adapter: what a script gets, and uses in the other verbs.
#include "hotswap/cli/test_program.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using namespace test_support;

class TrainLora : public CliModel {
 protected:
  void SetUp() override {
    CliModel::SetUp();
    write_file(file("lora.json"), R"({"r": 4, "lora_alpha": 8, "lora_dropout": 0.05, "target_modules": "all-linear"})");
  }
  std::string data() const { return (model_data() / "text/license.txt").string(); }
  std::string call(const std::string& out, const std::string& further) const {
    return "train " + model() + " --train-file " + data() + " --output-dir " + file(out).string() +
           " --max-length 64 --learning-rate 1e-2 --logging-steps 1 " +
           (further.find("--save-strategy") == std::string::npos ? "--save-strategy no " : "") + further;
  }
  std::string lora() const { return " --lora " + file("lora.json").string(); }
  double loss(const std::string& further) const {
    return run_json("score " + model() + " --json --text " + data() + further)["loss"].get<double>();
  }
};

TEST_F(TrainLora, TrainsAnAdapterThatTheOtherVerbsLoad) {
  const Outcome outcome = run(call("out", "--max-steps 6 --save-strategy steps --save-steps 3 --use-kernels" + lora()));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* folder : {"out", "out/checkpoint-3", "out/checkpoint-6"}) {
    for (const char* name :
         {"adapter_config.json", "adapter_model.safetensors", "trainer_state.json", "tokenizer.json"})
      EXPECT_TRUE(fs::exists(file(folder) / name)) << folder << "/" << name;
    EXPECT_FALSE(fs::exists(file(folder) / "model.safetensors")) << folder;
  }
  const auto config = nlohmann::json::parse(read_file(file("out/adapter_config.json")));
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_dropout"], 0.05);
  EXPECT_EQ(config["base_model_name_or_path"], tiny_model().string());
  const double before = loss(""), after = loss(" --adapter " + file("out").string());
  EXPECT_LT(after, before - 0.01);
  EXPECT_EQ(run("merge " + model() + " --adapter " + file("out").string() + " " + file("merged").string()).status, 0);

  // Trained further, it begins where it was.
  const Outcome further = run(call("more", "--max-steps 2 --adapter " + file("out").string()));
  ASSERT_EQ(further.status, 0) << further.err;
  const auto first = nlohmann::json::parse(read_file(file("more/trainer_state.json")))["log_history"][0]["loss"];
  EXPECT_LT(first.get<double>(), before - 0.01);
  EXPECT_EQ(nlohmann::json::parse(read_file(file("more/adapter_config.json")))["lora_alpha"], 8);
}

TEST_F(TrainLora, ARunIsOfItsSeed) {
  const auto log = [&](const std::string& out, const std::string& seed) {
    EXPECT_EQ(run(call(out, "--max-steps 2 --seed " + seed + lora())).status, 0);
    return nlohmann::json::parse(read_file(file(out) / "trainer_state.json"))["log_history"][1]["loss"].get<double>();
  };
  const double first = log("a", "1");
  EXPECT_EQ(log("b", "1"), first);
  EXPECT_NE(log("c", "2"), first);
}

TEST_F(TrainLora, SaysWhatIsWrong) {
  const auto fails = [&](const std::string& further, std::initializer_list<std::string> parts) {
    const Outcome outcome = run(call("out", further));
    EXPECT_NE(outcome.status, 0) << further;
    expect_has(outcome.out + outcome.err, parts);
    EXPECT_FALSE(fs::exists(file("out/adapter_config.json"))) << further;
  };
  const std::string flag = " --lora " + file("bad.json").string();
  write_file(file("bad.json"), R"({"rank": 4})");
  fails(flag, {"rank", "bad.json"});
  write_file(file("bad.json"), R"({"use_qalora": true})");
  fails(flag, {"use_qalora"});
  write_file(file("bad.json"), R"({"target_modules": ["none_such"]})");
  fails(flag, {"none_such"});
  fails(lora() + " --adapter " + file("out").string(), {"--adapter", "--lora"});
  fails(" --adapter " + tiny_model().string(), {"adapter_config.json"});
}

}  // namespace
}  // namespace hotswap
