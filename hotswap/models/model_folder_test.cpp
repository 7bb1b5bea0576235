#include "hotswap/models/model_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <mutex>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/server.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

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
    setenv("HF_ENDPOINT", server_->url().c_str(), 1);
    setenv("HF_HOME", cache_.path().c_str(), 1);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HUB_OFFLINE");
  }
  void TearDown() override {
    for (const char* name : {"HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE"}) unsetenv(name);
  }
  int requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  TempFolder served_, cache_;
  std::unique_ptr<HubServer> server_;
  std::mutex mutex_;
  int requests_ = 0;
};

TEST_F(ModelFolder, ANameOfTheHubBringsWhatIsReadAndNothingElse) {
  const fs::path folder = model_folder("acme/tiny");
  EXPECT_EQ(read_file(folder / "config.json"), "content of config.json");
  EXPECT_TRUE(fs::exists(folder / "model-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "model.safetensors.index.json"));
  for (const char* file : {"pytorch_model.bin", "onnx", "w.gguf"}) EXPECT_FALSE(fs::exists(folder / file)) << file;
}

TEST_F(ModelFolder, AGgufFileComesInsteadOfTheWeights) {
  const fs::path folder = model_folder("acme/tiny", "main", "w.gguf");
  EXPECT_TRUE(fs::exists(folder / "w.gguf"));
  EXPECT_FALSE(fs::exists(folder / "model-00001-of-00002.safetensors"));
}

TEST_F(ModelFolder, TheSecondTimeAndOfflineNothingIsAsked) {
  const fs::path folder = model_folder("acme/tiny");
  const int before = requests();
  EXPECT_EQ(model_folder("acme/tiny"), folder);
  setenv("HF_HUB_OFFLINE", "1", 1);
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
