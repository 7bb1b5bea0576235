// download: exits 0 only where what it promises is there.
#include "hotswap/cli/test_program.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Cli;
using test_support::Outcome;

class CliDownload : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    model("good", {"config.json", "model.safetensors"});
    model("pickled", {"config.json", "pytorch_model.bin"});
    model("ggufs", {"config.json", "small.gguf", "large.gguf"});
    for (const char* name : {"sharded", "cut"}) {
      model(name, {"config.json", "model-00001-of-00002.safetensors"});
      write(name, "model.safetensors.index.json",
            R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
    }
    write("sharded", "model-00002-of-00002.safetensors", "b");
    write("../../datasets/acme/texts", "data/train.csv", "a,b\n");
    write("../../datasets/acme/texts", "README.md", "# texts\n");
    server = std::make_unique<HubServer>(HubServerOptions{.folder = file("served"), .rescan_s = 0});
    server->start();
  }
  void write(const std::string& name, const std::string& path, const std::string& bytes) const {
    const fs::path place = (file("served/models/acme") / name / "main" / path).lexically_normal();
    fs::create_directories(place.parent_path());
    write_file(place, bytes);
  }
  void model(const std::string& name, const std::vector<std::string>& files) const {
    for (const std::string& path : files) write(name, path, "{}");
  }
  Outcome download(const std::string& arguments, const std::string& more = "HF_HUB_OFFLINE=0") const {
    return call("download " + arguments, more);
  }
  Outcome call(const std::string& line, const std::string& more = "HF_HUB_OFFLINE=0") const {
    return run_with("env -u HF_TOKEN HF_HUB_DISABLE_PROGRESS_BARS=1 HF_ENDPOINT=" + server->url() +
                        " HF_HUB_CACHE=" + file("cache").string() + " " + more + " ",
                    line);
  }
  // The folder that it printed.
  fs::path fetched(const std::string& arguments) const {
    const Outcome outcome = download(arguments);
    EXPECT_EQ(outcome.status, 0) << arguments << outcome.err;
    return outcome.out.substr(0, outcome.out.find('\n'));
  }
  void expect_refused(const std::string& arguments, std::initializer_list<std::string> parts) const {
    const Outcome outcome = download(arguments);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << part << outcome.err;
  }
  std::unique_ptr<HubServer> server;
};

TEST_F(CliDownload, AModelHasItsWeights) {
  EXPECT_TRUE(fs::exists(fetched("acme/good") / "model.safetensors"));
  EXPECT_TRUE(fs::exists(fetched("acme/sharded") / "model-00002-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(fetched("acme/ggufs --gguf-file small.gguf") / "small.gguf"));
  EXPECT_EQ(download("acme/good", "HF_HUB_OFFLINE=1").status, 0);
  expect_refused("acme/pickled", {"model.safetensors", "pytorch_model.bin", "--include"});
  expect_refused("acme/ggufs", {"model.safetensors", "small.gguf", "--gguf-file"});
  expect_refused("acme/ggufs --gguf-file middle.gguf", {"middle.gguf", "large.gguf, small.gguf"});
  expect_refused("acme/cut", {"model-00002-of-00002.safetensors in acme/cut@main"});
}

TEST_F(CliDownload, PullLsAndRmOfModels) {
  EXPECT_EQ(call("pull acme/good").status, 0);
  EXPECT_EQ(download("acme/texts --type dataset").status, 0);
  const Outcome models = call("ls");
  EXPECT_NE(models.out.find("acme/good"), std::string::npos) << models.out;
  EXPECT_EQ(models.out.find("acme/texts"), std::string::npos) << "a dataset: " << models.out;
  EXPECT_EQ(call("rm acme/texts").status, 1) << "no model of this name";
  EXPECT_EQ(call("rm acme/good").status, 0);
  EXPECT_EQ(call("ls").out.find("acme/good"), std::string::npos);
}

TEST_F(CliDownload, WhatPatternsChoose) {
  const fs::path folder = fetched("acme/ggufs --include '*.gguf' --include '*.json' --exclude 'large*'");
  EXPECT_TRUE(fs::exists(folder / "small.gguf") && fs::exists(folder / "config.json"));
  EXPECT_FALSE(fs::exists(folder / "large.gguf"));
  EXPECT_TRUE(fs::exists(fetched("acme/pickled --include '*.bin'") / "pytorch_model.bin"));
  EXPECT_TRUE(fs::exists(fetched("acme/cut --exclude '*.md'") / "config.json"));
  expect_refused("acme/good --include '*.json' --include '*.onnx'", {"'*.onnx'", "config.json"});
  expect_refused("acme/good --exclude '*'", {"'*'", "config.json"});
  EXPECT_EQ(download("acme/ggufs --gguf-file small.gguf --include x").status, 2);
}

TEST_F(CliDownload, Datasets) {
  EXPECT_EQ(read_file(fetched("acme/texts --type dataset") / "data/train.csv"), "a,b\n");
  EXPECT_TRUE(fs::exists(fetched("acme/texts --type dataset --include '*.md'") / "README.md"));
  expect_refused("acme/texts", {"acme/texts"});
  expect_refused("acme/none --type dataset", {"acme/none"});
  EXPECT_EQ(download("acme/texts --type table").status, 2);
}

TEST_F(CliDownload, AListThatCameCutOffIsAskedAgain) {
  const fs::path good = fetched("acme/sharded");
  const fs::path list = file("cache/models--acme--sharded/trees") / (good.filename().string() + ".json");
  fs::remove(good / "model-00002-of-00002.safetensors");
  const std::string whole = read_file(list);
  const size_t begin = whole.find("  \"model-00002"), end = whole.find("  \"model.safetensors.index");
  ASSERT_LT(begin, end);
  write_file(list, whole.substr(0, begin) + whole.substr(end));
  EXPECT_TRUE(fs::exists(fetched("acme/sharded") / "model-00002-of-00002.safetensors"));
  EXPECT_EQ(read_file(list), whole);
}

TEST_F(CliDownload, VerifyOnlineFindsAListThatIsNotTheHubs) {
  const fs::path folder = fetched("acme/good");
  EXPECT_EQ(call("cache verify --online").status, 0);
  const fs::path list = file("cache/models--acme--good/trees") / (folder.filename().string() + ".json");
  std::string text = read_file(list);
  text.replace(text.find("model.safetensors"), 5, "nodel");
  write_file(list, text);
  EXPECT_EQ(call("cache verify").status, 0) << "no hash on this disk can tell";
  const Outcome found = call("cache verify --online --remove");
  EXPECT_EQ(found.status, 1);
  EXPECT_NE(found.out.find(list.string() + ": lacks model.safetensors"), std::string::npos) << found.out;
  EXPECT_FALSE(fs::exists(list));
  EXPECT_EQ(fetched("acme/good"), folder);
  EXPECT_EQ(call("cache verify --online").status, 0);
  EXPECT_NE(call("cache verify --online", "HF_HUB_OFFLINE=1").status, 0);
}

}  // namespace
}  // namespace hotswap
