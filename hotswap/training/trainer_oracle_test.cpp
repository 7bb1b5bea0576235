// The C++ Trainer against transformers' own, whose runs trainer_oracle.py makes: names and defaults of the arguments,
// rates to the bit, the order of the data, and the log of whole runs of tiny models of nine families.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "hotswap/base/test_data.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/auto.h"
#include "hotswap/training/arguments/argument_row.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/schedules/schedule.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;

const fs::path& oracle() { return test_support::made_data("training/trainer_oracle.py"); }

using Oracle = test_support::WithTransformers<>;

TEST_F(Oracle, EveryArgumentIsKnownWithItsDefault) {
  const Json theirs = Json::read(oracle() / "arguments.json");
  std::set<std::string> here, there;
  for (const ArgumentRow& row : argument_rows()) {
    EXPECT_TRUE(here.insert(row.name).second) << row.name << " stands twice";
    EXPECT_EQ(row.why.empty(), row.kind == ArgumentKind::kHonoured) << row.name;
  }
  for (const auto& [name, value] : theirs.items()) there.insert(name);
  EXPECT_EQ(here, there);
  // What transformers writes of its defaults passes, and is the default here. use_cpu was set for the run.
  const TrainingArguments read = training_arguments_from(theirs);
  TrainingArguments expected{.output_dir = "trainer_output", .use_cpu = true};
  expected.disable_tqdm = read.disable_tqdm;  // by the level of transformers' log
  EXPECT_EQ(to_json(read).dump(2), to_json(expected).dump(2));
  const Json again = Json::parse(to_json(read).dump(), "again");
  EXPECT_EQ(to_json(training_arguments_from(again)), to_json(read));
}

// Of every refused name a value that is not its default is an Error that names it; any value of the others passes.
TEST(Arguments, AreHonouredOrRefusedByName) {
  for (const ArgumentRow& row : argument_rows()) {
    if (row.kind == ArgumentKind::kHonoured) continue;
    const nlohmann::ordered_json other = row.fallback.is_boolean() ? nlohmann::ordered_json(!row.fallback.get<bool>())
                                                                   : nlohmann::ordered_json("something else");
    const Json json = Json::parse(nlohmann::ordered_json{{row.name, other}}.dump(), "args.json");
    const std::string message = message_of([&] { training_arguments_from(json); });
    if (row.kind == ArgumentKind::kRefused) {
      expect_has(message, {row.name, row.why, "args.json"});
    } else {
      EXPECT_EQ(message, "no error") << row.name;
    }
  }
  const auto fails = [](const char* text, std::initializer_list<std::string> parts) {
    expect_has(message_of([&] { training_arguments_from(Json::parse(text, "args.json")); }), parts);
  };
  fails(R"({"learning_rat": 1})", {"did you mean learning_rate?"});
  fails(R"({"warmup_ratio": 0.1})", {"warmup_steps"});
  fails(R"({"learning_rate": "fast"})", {"args.json: learning_rate"});
  fails(R"({"max_steps": 1.5})", {"args.json: max_steps"});
  fails(R"({"eval_strategy": "step"})", {"did you mean steps?"});
  fails(R"({"load_best_model_at_end": true, "eval_strategy": "epoch"})", {"save_strategy"});
  fails(R"({"load_best_model_at_end": true, "eval_strategy": "steps", "eval_steps": 300})", {"multiple"});
}

TEST_F(Oracle, RatesAreEqualToTheBit) {
  int64_t compared = 0;
  std::set<std::string> names;
  for (const Json& run : Json::read(oracle() / "schedules.json").elements()) {
    const auto name = run.at<std::string>("name");
    const auto peak = run.at<double>("peak");
    names.insert(name);
    const Schedule schedule(name, {.warmup_steps = run.at<int64_t>("warmup"),
                                   .total_steps = run.at<int64_t>("total"),
                                   .learning_rate = peak,
                                   .kwargs = run.child("kwargs").raw()});
    const auto rates = run.at<std::vector<double>>("rates");
    for (size_t step = 0; step < rates.size(); ++step, ++compared) {
      ASSERT_EQ(peak * schedule.factor(static_cast<int64_t>(step)), rates[step])
          << name << ' ' << run.child("kwargs").raw() << " step " << step;
    }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_EQ(names, std::set<std::string>(Schedule::names().begin(), Schedule::names().end()));
}

TEST_F(Oracle, TheOrderOfTheDataIsTransformers) {
  for (const Json& run : Json::read(oracle() / "order.json").elements()) {
    const auto seed = run.get<int64_t>("data_seed", run.at<int64_t>("seed"));
    const auto epochs = run.child("epochs").elements();
    ASSERT_EQ(epochs.size(), 2u);
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      EXPECT_EQ(epoch_order(run.at<int64_t>("count"), SamplingStrategy::kRandom, seed, static_cast<int64_t>(epoch)),
                epochs[epoch].as<std::vector<int64_t>>())
          << seed << ' ' << epoch;
    }
  }
}

std::shared_ptr<const Dataset> dataset_of(const Json& rows) {
  std::vector<Example> examples;
  for (const Json& row : rows.elements()) {
    examples.push_back({row.at<std::vector<int64_t>>("input_ids"), row.at<std::vector<int64_t>>("labels")});
  }
  return std::make_shared<ExampleDataset>(std::move(examples), /*pad_id=*/0);
}

struct Case {
  std::string family;
  bool kernels;
};
class Curve : public test_support::WithTransformers<testing::TestWithParam<Case>> {};

// At 60 updates rounding has been amplified by as many; the first loss has one forward's.
void expect_close(const nlohmann::json& entry, const Json& theirs, const char* key, double relative) {
  const auto expected = theirs.at<double>(key);
  EXPECT_NEAR(entry.at(key).get<double>(), expected, relative * std::max(1.0, std::abs(expected)))
      << key << " at step " << entry.at("step");
}

TEST_P(Curve, IsTransformers) {
  const fs::path folder = oracle() / "runs" / GetParam().family;
  const Json run = Json::read(folder / "run.json");
  const auto model = AutoModelForCausalLM::from_pretrained(folder / "model", {.attn_implementation = "eager"});
  TrainingArguments arguments = training_arguments_from(run.child("arguments"));
  arguments.use_liger_kernel = GetParam().kernels;
  const int64_t before = op_calls("norm", "rms_norm_fwd") + op_calls("norm", "add_rms_norm_fwd");
  Trainer trainer(model, arguments, dataset_of(run.child("train")),
                  {.eval_dataset = dataset_of(run.child("held_out"))});
  trainer.train();
  const int64_t calls = op_calls("norm", "rms_norm_fwd") + op_calls("norm", "add_rms_norm_fwd") - before;
  EXPECT_EQ(calls > 0, GetParam().kernels);

  const auto& log = trainer.state().log_history;
  const auto theirs = run.child("state").child("log_history").elements();
  ASSERT_EQ(log.size(), theirs.size());
  std::set<std::string> own = {"eval_loss_per_token", "mfu", "peak_memory"};  // not transformers'
  for (size_t i = 0; i < log.size(); ++i) {
    for (const auto& [key, value] : theirs[i].items()) EXPECT_TRUE(log[i].contains(key)) << key << " in entry " << i;
    for (const auto& [key, value] : log[i].items()) EXPECT_TRUE(theirs[i].has(key) || own.contains(key)) << key;
    EXPECT_EQ(log[i].at("step"), theirs[i].at<int64_t>("step"));
    EXPECT_EQ(log[i].at("epoch"), theirs[i].at<double>("epoch"));
    EXPECT_EQ(log[i].at("num_input_tokens_seen"), theirs[i].at<int64_t>("num_input_tokens_seen"));
    const double relative = i == 0 ? 2e-6 : 1e-4;
    if (theirs[i].has("eval_loss")) expect_close(log[i], theirs[i], "eval_loss", relative);
    if (!theirs[i].has("loss")) continue;
    EXPECT_EQ(log[i].at("learning_rate"), theirs[i].at<double>("learning_rate")) << "to the bit";
    expect_close(log[i], theirs[i], "loss", relative);
    expect_close(log[i], theirs[i], "grad_norm", i == 0 ? 1e-5 : 1e-3);
  }
  expect_close(log.back(), theirs.back(), "train_loss", 1e-4);
  EXPECT_EQ(log.back().at("total_flos"), theirs.back().at<double>("total_flos"));
  const Json state = Json::parse(trainer.state().to_json({}).dump(), "trainer_state.json");
  std::set<std::string> here, there;
  for (const auto& [key, value] : state.items()) here.insert(key);
  for (const auto& [key, value] : run.child("state").items()) there.insert(key);
  EXPECT_EQ(here, there);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3", "granite", "mixtral"}) {
    for (const bool kernels : {false, true}) all.push_back({family, kernels});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Families, Curve, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.family + (info.param.kernels ? "_liger" : "_stock");
});

}  // namespace
}  // namespace hotswap
