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

TEST_F(ModelFolder, ATagChoosesTheGgufFile) {
  const fs::path served = served_.path() / "models/acme/many/main";
  for (const char* file :
       {"m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "UD/m-UD-Q8_0-00001-of-00002.gguf", "UD/m-UD-Q8_0-00002-of-00002.gguf",
        "m-F16.gguf", "mmproj-F16.gguf", "a-IQ4_XS.gguf", "b-IQ4_XS.gguf", "README.md"}) {
    fs::create_directories((served / file).parent_path());
    write_file(served / file, cat("content of ", file));
  }
  for (const std::string name : {std::string("acme/many"), served.string()}) {
    const auto file = [&](const char* tag) { return model_folder(cat(name, ":", tag)); };
    EXPECT_EQ(read_file(file("Q4_K_M")), "content of m-Q4_K_M.gguf");
    EXPECT_EQ(read_file(file("q4_k_s")), "content of m-Q4_K_S.gguf");
    EXPECT_EQ(read_file(file("F16")), "content of m-F16.gguf");
    const fs::path first = file("Q8_0");
    EXPECT_EQ(first.filename(), "m-UD-Q8_0-00001-of-00002.gguf");
    EXPECT_TRUE(fs::exists(first.parent_path() / "m-UD-Q8_0-00002-of-00002.gguf"));
    EXPECT_EQ(tokenizer_folder(cat(name, ":Q4_K_M")), file("Q4_K_M"));
    const auto message = [&](const char* tag) { return test_support::message_of([&] { file(tag); }); };
    EXPECT_NE(message("IQ4_XS").find("a-IQ4_XS.gguf, b-IQ4_XS.gguf"), std::string::npos) << message("IQ4_XS");
    for (const char* tag : {"Q4_K", "4_K_M", "Q2_K"}) {  // the choices are listed
      EXPECT_NE(message(tag).find("m-F16.gguf, m-Q4_K_M.gguf, m-Q4_K_S.gguf"), std::string::npos) << message(tag);
      EXPECT_EQ(message(tag).find("mmproj"), std::string::npos);
    }
    const std::string both =
        test_support::message_of([&] { model_folder(cat(name, ":Q4_K_M"), "main", "m-F16.gguf"); });
    EXPECT_NE(both.find("gguf_file"), std::string::npos) << both;
  }
  EXPECT_EQ(model_folder("./no/such:Q4_K_M"), fs::path("./no/such:Q4_K_M"));
}

TEST_F(ModelFolder, OfASetOfGgufFilesAllPartsCome) {
  const fs::path served = served_.path() / "models/acme/set/main";
  fs::create_directories(served);
  for (const char* file : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-00001-of-00003.gguf"}) {
    write_file(served / file, file);
  }
  const fs::path folder = model_folder("acme/set", "main", "m-00001-of-00002.gguf");
  EXPECT_TRUE(fs::exists(folder / "m-00002-of-00002.gguf"));
  EXPECT_FALSE(fs::exists(folder / "m-00001-of-00003.gguf"));
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
