// Checkpoints both ways between transformers' Trainer and ours, of eight families: a run that is interrupted by one and
// resumed by the other has the curve of transformers' uninterrupted run.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "hotswap/base/test_data.h"
#include "hotswap/models/auto.h"
#include "hotswap/training/checkpoint/optimizer_file.h"
#include "hotswap/training/resume.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::TempFolder;

constexpr const char* kScript = "training/resume_oracle.py";
constexpr const char* kFamilies[] = {"llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "granite", "mixtral"};

class Resumed : public test_support::WithTransformers<> {
 protected:
  static const fs::path& theirs() { return test_support::made_data(kScript); }
  static Json run_of(const std::string& family) { return Json::read(theirs() / family / "run.json"); }
  static std::shared_ptr<CausalLM> model_of(const std::string& family) {
    return AutoModelForCausalLM::from_pretrained(theirs() / family / "model", {.attn_implementation = "eager"});
  }
  static TrainingArguments arguments_of(const std::string& family, const fs::path& output) {
    TrainingArguments arguments = training_arguments_from(run_of(family).child("arguments"));
    arguments.output_dir = output.string();
    return arguments;
  }
  static std::shared_ptr<const Dataset> data_of(const std::string& family) {
    std::vector<Example> examples;
    for (const Json& row : run_of(family).child("train").elements()) {
      examples.push_back({row.at<std::vector<int64_t>>("input_ids"), row.at<std::vector<int64_t>>("labels")});
    }
    return std::make_shared<ExampleDataset>(std::move(examples), /*pad_id=*/0);
  }
  static void script(const std::string& arguments) {
    const auto run = test_support::run_script(test_support::source_folder() / "hotswap" / kScript, arguments);
    ASSERT_EQ(run.status, 0) << run.output;
  }
};

// Rates to the bit; of losses what rounding makes of them in a dozen updates.
void expect_log(const std::string& family, const std::vector<Json>& log, const std::vector<Json>& theirs) {
  ASSERT_EQ(log.size(), theirs.size()) << family;
  for (size_t i = 0; i + 1 < log.size(); ++i) {
    SCOPED_TRACE(cat(family, " entry ", i));
    EXPECT_EQ(log[i].at<int64_t>("step"), theirs[i].at<int64_t>("step"));
    EXPECT_EQ(log[i].at<double>("learning_rate"), theirs[i].at<double>("learning_rate"));
    EXPECT_EQ(log[i].at<double>("epoch"), theirs[i].at<double>("epoch"));
    const auto loss = theirs[i].at<double>("loss"), norm = theirs[i].at<double>("grad_norm");
    EXPECT_NEAR(log[i].at<double>("loss"), loss, 1e-4 * loss);
    EXPECT_NEAR(log[i].at<double>("grad_norm"), norm, 1e-3 * norm);
  }
}

TEST_F(Resumed, OursGoesOnFromTransformersCheckpoint) {
  const TempFolder folder;
  for (const std::string family : kFamilies) {
    Trainer trainer(model_of(family), arguments_of(family, folder / family), data_of(family));
    trainer.train((theirs() / family / "trainer" / "checkpoint-5").string());
    const Json log = Json::parse(nlohmann::json(trainer.state().log_history).dump(), family);
    expect_log(family, log.elements(), run_of(family).child("log").elements());
  }
}

TEST_F(Resumed, TransformersGoesOnFromOurCheckpoint) {
  const TempFolder folder;
  for (const std::string family : kFamilies) {
    Trainer trainer(model_of(family), arguments_of(family, folder / family), data_of(family));
    trainer.train();
    fs::remove_all(folder / family / "checkpoint-10");
    fs::remove_all(folder / family / "checkpoint-12");
  }
  script(cat(theirs().string(), " ", folder.path().string()));
  for (const std::string family : kFamilies) {
    // Mixtral's experts are lost when transformers resumes, from a checkpoint of its own, too: the same curve as then.
    const Json run = run_of(family);
    const char* expected = run.has("resumed_log") ? "resumed_log" : "log";
    expect_log(family, Json::read(folder / family / "state.json").elements(), run.child(expected).elements());
  }
}

// Phi-3's projections are joined in transformers, and so are their states.
TEST_F(Resumed, StatesOfJoinedProjectionsAreRefused) {
  const TempFolder folder;
  const auto trainer = [&](const std::string& name) {
    return Trainer(model_of("phi3"), arguments_of("phi3", folder / name), data_of("phi3"));
  };
  const fs::path foreign = theirs() / "phi3" / "trainer" / "checkpoint-5", own = folder / "out" / "checkpoint-5";
  test_support::expect_has(test_support::message_of([&] { trainer("none").train(foreign.string()); }),
                           {"the states of 21 parameters", "those of 15", "optimizer.pt"});
  Trainer whole = trainer("out"), again = trainer("again");
  whole.train();
  again.train(own.string());
  EXPECT_EQ(again.state().log_history.at(11), whole.state().log_history.at(11)) << "ours go on from ours";
  script(cat("--refused ", (own / "optimizer.pt").string()));
}

// Every tensor and setting of theirs that ours reads and writes again.
TEST_F(Resumed, OptimizerStatesAreTheSameToTheBit) {
  const TempFolder folder;
  std::string files = "--same";
  for (const std::string family : kFamilies) {
    const fs::path checkpoint = theirs() / family / "trainer" / "checkpoint-5";
    const auto model = model_of(family);
    const auto arguments = arguments_of(family, folder / family);
    const auto optimizer = make_optimizer(*model, arguments);
    const auto names = names_of(*model, optimizer->parameters());
    load_optimizer(checkpoint / "optimizer.pt", *optimizer, {names}, arguments.learning_rate);
    const auto data = data_of(family);
    const double next = run_of(family).child("log").elements()[5].at<double>("learning_rate");
    save_optimizer(folder / (family + ".pt"), *optimizer, {names}, {.peak = arguments.learning_rate, .next = next});
    files += cat(" ", (checkpoint / "optimizer.pt").string(), " ", (folder / (family + ".pt")).string());
  }
  script(files);
}

}  // namespace
}  // namespace hotswap
