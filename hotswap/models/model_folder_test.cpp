#include "hotswap/models/model_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <optional>

#include "hotswap/hub/serve/server.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::ScopedEnv;
using test_support::TempFolder;

// serve-hub with one model, and the environment that points at it.
class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors",
                             "model.safetensors.index.json", "pytorch_model.bin", "onnx/model.onnx", "w.gguf"}) {
      const fs::path path = served_.path() / "models/acme/tiny/main" / file;
      fs::create_directories(path.parent_path());
      write_file(path, cat("content of ", file));
    }
    server_ = std::make_unique<HubServer>(
        HubServerOptions{.folder = served_.path(), .on_request = [this](const std::string&) {
                           const std::lock_guard lock(mutex_);
                           ++requests_;
                         }});
    server_->start();
    set_[0].emplace("HF_ENDPOINT", server_->url());
    set_[1].emplace("HF_HOME", cache_.path());
    set_[2].emplace("HF_HUB_CACHE", std::nullopt);
    set_[3].emplace("HF_HUB_OFFLINE", std::nullopt);
  }
  int requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  TempFolder served_, cache_;
  std::unique_ptr<HubServer> server_;
  std::mutex mutex_;
  int requests_ = 0;
  std::array<std::optional<ScopedEnv>, 4> set_;
};

TEST_F(ModelFolder, ANameOfTheHubBringsWhatIsReadAndNothingElse) {
  const fs::path folder = model_folder("acme/tiny");
  EXPECT_EQ(read_file(folder / "config.json"), "content of config.json");
  EXPECT_TRUE(fs::exists(folder / "model-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "model.safetensors.index.json"));
  for (const char* file : {"pytorch_model.bin", "onnx", "w.gguf"}) EXPECT_FALSE(fs::exists(folder / file)) << file;
}

// transformers would load it over another model; of a folder open_checkpoint() refuses it, so of the Hub too.
TEST_F(ModelFolder, AnAdapterBesideAModelIsSeen) {
  write_file(served_.path() / "models/acme/tiny/main/adapter_config.json", "{}");
  const fs::path folder = model_folder("acme/tiny");
  EXPECT_NE(test_support::message_of([&] { open_checkpoint(folder); }).find("adapter_config.json"), std::string::npos);
}

TEST_F(ModelFolder, AGgufFileComesInsteadOfTheWeights) {
  const fs::path folder = model_folder("acme/tiny", "main", "w.gguf");
  EXPECT_TRUE(fs::exists(folder / "w.gguf"));
  EXPECT_FALSE(fs::exists(folder / "model-00001-of-00002.safetensors"));
}

// Of a folder, of a name on the Hub, and by the same name afterwards without asking; no weights come.
TEST_F(ModelFolder, ATokenizerByItsName) {
  const char* json = R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})";
  const fs::path served = served_.path() / "models/acme/words/main";
  fs::create_directories(served);
  write_file(served / "tokenizer.json", json);
  write_file(served / "tokenizer_config.json", R"({"bos_token": "b"})");
  write_file(served / "model.safetensors", "weights");
  EXPECT_EQ(Tokenizer::from_pretrained(served).ids("ab"), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(requests(), 0);
  const Tokenizer tokenizer = Tokenizer::from_pretrained("acme/words", {.revision = "main"});
  EXPECT_EQ(tokenizer.ids("ba"), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(tokenizer.special_ids().bos, 1);
  EXPECT_FALSE(fs::exists(tokenizer_folder("acme/words") / "model.safetensors"));
  EXPECT_THROW(Tokenizer::from_pretrained("acme/words", {.revision = "none"}), Error);
  EXPECT_THROW(Tokenizer::from_pretrained("acme/none"), Error);
  EXPECT_NE(test_support::message_of([] { Tokenizer::from_pretrained("no_such"); }).find("gguf_file"),
            std::string::npos);
}

TEST_F(ModelFolder, TheSecondTimeAndOfflineNothingIsAsked) {
  const fs::path folder = model_folder("acme/tiny");
  const int before = requests();
  EXPECT_EQ(model_folder("acme/tiny"), folder);
  const ScopedEnv offline("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(model_folder("acme/tiny"), folder);
  EXPECT_EQ(requests(), before);
}

TEST_F(ModelFolder, WhatIsHereOrIsAPathIsNeverLookedUp) {
  const fs::path here = served_.path() / "models";
  EXPECT_EQ(model_folder(here), here);
  for (const char* path : {"/no/such", "./no/such", "~/no", "name", "a/b/c", "x/y.gguf"}) {
    EXPECT_EQ(model_folder(path), fs::path(path));
  }
  EXPECT_EQ(requests(), 0);
}

TEST_F(ModelFolder, AnUnknownNameIsAnError) {
  EXPECT_THROW(model_folder("acme/none"), Error);
  EXPECT_GT(requests(), 0);
}

}  // namespace
}  // namespace hotswap
