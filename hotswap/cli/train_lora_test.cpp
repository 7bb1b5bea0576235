// hotswap train with --lora and --adapter: what a script gets, and uses in the other verbs.
#include <httplib.h>
#include <signal.h>

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

// A server in the background, ended by SIGTERM.
class RunningServer {
 public:
  RunningServer(const fs::path& program, const std::string& arguments, const fs::path& folder) : folder_(folder) {
    const std::string line = program.string() + " serve " + arguments + " --port 0 >" + (folder / "s.out").string() +
                             " 2>" + (folder / "s.err").string() + " & echo $! >" + (folder / "s.pid").string();
    EXPECT_EQ(std::system(line.c_str()), 0);
    for (int i = 0; i < 600 && url().empty(); ++i) usleep(100'000);
  }
  ~RunningServer() { kill(std::stoi(read_file(folder_ / "s.pid")), SIGTERM); }
  std::string url() const {
    const std::string out = read_file_if_there(folder_ / "s.out").value_or(""), before = "listening on ";
    const size_t at = out.find(before), end = out.find('\n', at);
    return at == std::string::npos || end == std::string::npos
               ? ""
               : out.substr(at + before.size(), end - at - before.size());
  }
  std::string err() const { return read_file(folder_ / "s.err"); }

 private:
  fs::path folder_;
};

TEST_F(TrainLora, ServeHasTheModelAndEachAdapter) {
  ASSERT_EQ(run(call("out", "--max-steps 6" + lora())).status, 0);
  const std::string out = file("out").string();
  fs::create_directories(file("server"));
  const RunningServer server(program(), "--adapter sql=" + out + " --adapter " + out + " " + model(), file("server"));
  ASSERT_NE(server.url(), "") << server.err();
  httplib::Client client(server.url());
  client.set_read_timeout(60);
  const auto scores = [&](const std::string& name) {
    const nlohmann::json body = {
        {"model", name}, {"prompt", "You may"}, {"temperature", 0}, {"max_tokens", 4}, {"logprobs", 1}};
    const auto answer = client.Post("/v1/completions", body.dump(), "application/json");
    EXPECT_TRUE(answer && answer->status == 200) << name;
    return answer ? nlohmann::json::parse(answer->body)["choices"] : nlohmann::json();
  };
  const auto base = scores(tiny_model().string()), sql = scores("sql");
  EXPECT_EQ(sql, scores("out"));
  EXPECT_NE(sql, base);
  std::set<std::string> names;
  const auto models = nlohmann::json::parse(client.Get("/v1/models")->body);
  for (const auto& one : models["data"]) names.insert(one["id"].get<std::string>());
  EXPECT_EQ(names, (std::set<std::string>{tiny_model().string(), "sql", "out"}));
  expect_has(server.err(), {"adapter sql: " + out + ", ", " MiB", "adapter out: "});
}

TEST_F(TrainLora, ServeNamesAdaptersThatItCannotTake) {
  const auto fails = [&](const std::string& flags, int status, std::initializer_list<std::string> parts) {
    const Outcome outcome = run("serve " + model() + " --port 0 " + flags);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    expect_has(outcome.err, parts);
  };
  fails("--adapter a=/x --adapter a=/y", 2, {"the name a is taken"});
  fails("--served-model-name a --adapter a=/x", 2, {"the name a is taken"});
  fails("--adapter =/x", 2, {"NAME=DIR"});
  fails("--adapter a=/nowhere", 1, {"/nowhere"});
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
  fails(flag, {"rank", "bad.json", "LoraConfig", "correct it there"});
  write_file(file("bad.json"), R"({"use_qalora": true})");
  fails(flag, {"use_qalora"});
  write_file(file("bad.json"), R"({"target_modules": ["none_such"]})");
  fails(flag, {"none_such in ", "bad.json"});
  write_file(file("bad.json"), R"({"target_modules": "all-linear", "modules_to_save": ["no_head"]})");
  fails(flag, {"no_head in ", "bad.json"});
  write_file(file("bad.json"), R"({"target_modules": ["embed_tokens", "q_proj"], "use_dora": true})");
  fails(flag, {"use_dora", "bad.json", "embed_tokens"});
  fails(lora() + " --adapter " + file("out").string(), {"--adapter", "--lora"});
  fails(" --adapter " + tiny_model().string(), {"adapter_config.json"});
}

// What is wrong with the adapter is an error before a file is read for it.
TEST_F(TrainLora, AdaptersAreCheckedBeforeData) {
  for (const char* json : {R"({"rank": 4})", R"({"r": 0})", R"({"target_modules": ["none_such"]})",
                           R"({"init_lora_weights": "pissa"})", R"({"lora_bias": true})"}) {
    write_file(file("bad.json"), json);
    const Outcome outcome = run("train " + model() + " --train-file /nowhere.txt --output-dir " + file("out").string() +
                                " --lora " + file("bad.json").string());
    EXPECT_EQ(outcome.status, 1) << json;
    EXPECT_EQ(outcome.err.find("nowhere"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("save_pretrained"), std::string::npos) << "no file of peft's is at fault\n"
                                                                      << outcome.err;
    expect_has(outcome.err, {"bad.json"});
    EXPECT_FALSE(fs::exists(file("out"))) << "nothing was written";
  }
  const Outcome outcome = run("train " + model() + " --train-file /nowhere.txt --output-dir " + file("out").string() +
                              " --adapter " + tiny_model().string());
  expect_has(outcome.err, {"adapter_config.json"});
  EXPECT_EQ(outcome.err.find("nowhere"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace hotswap
