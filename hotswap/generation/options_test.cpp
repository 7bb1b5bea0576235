// Every setting of a generation_config.json does what it does in transformers, or is refused by its name.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"
#include "hotswap/engine/sampler.h"
#include "hotswap/engine/stop_strings.h"
#include "hotswap/engine/test_gpu.h"
#include "hotswap/generation/generate.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/config.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

Tensor row_of_ids(const Ids& ids) { return at::tensor(ids, at::kLong).unsqueeze(0); }
using Options = test_support::WithTransformers<>;

std::filesystem::path made() { return test_support::made_data("models/golden_model.py") / "models/tiny"; }
GenerationConfig read(const std::string& text) {
  return read_generation_config(Json::parse(text, "generation_config.json"));
}

// The settings as a file would have them. The same seed draws the same tokens: see golden_model.py.
void expect_what_transformers_says(CausalLM& model, bool sampled) {
  const Json samples = Json::read(made() / "golden.json").child("samples");
  const Tokenizer tokenizer = Tokenizer::from_pretrained(made());
  size_t count = 0;
  for (const Json& item : samples.child("cases").elements()) {
    const Json settings = item.child("settings");
    if (!sampled && settings.at<bool>("do_sample")) continue;
    GenerationConfig config = read_generation_config(settings);
    if (!config.max_length) config.max_new_tokens = 24;
    config.eos_token_id = settings.at<Ids>("eos_token_id");
    config.seed = static_cast<uint64_t>(samples.at<int64_t>("seed"));
    const auto got = generate(
        model, {.input_ids = row_of_ids(samples.at<Ids>("input_ids")), .config = config, .tokenizer = &tokenizer});
    EXPECT_EQ(got.new_ids[0], item.at<Ids>("output_ids")) << settings.raw().dump();
    const bool can_be = model.device().is_cuda() && got.steps > 3;
    EXPECT_EQ(got.captured, can_be) << settings.raw().dump() << ": " << got.why_not_captured;
    ++count;
  }
  EXPECT_EQ(count, sampled ? 14U : 8U);
}

TEST_F(Options, EachIsWhatItIsInTransformers) {
  const auto model = AutoModelForCausalLM::from_pretrained(made());
  expect_what_transformers_says(*model, /*sampled=*/true);
}

// Greedy ones, whose ids are the same on every device; the counts and the history are the graph's.
using OptionsOnGpu = test_support::OnGpu<>;
TEST_F(OptionsOnGpu, EachIsCaptured) {
  if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
  const auto model = AutoModelForCausalLM::from_pretrained(made(), {.device_map = test_support::gpu().str()});
  expect_what_transformers_says(*model, /*sampled=*/false);
}

// What a row of its own says, beside a row that ends later.
TEST_F(Options, RowsEndByTheirOwnStopStrings) {
  const auto model = AutoModelForCausalLM::from_pretrained(made());
  const Tokenizer tokenizer = Tokenizer::from_pretrained(made());
  const Tensor ids = at::tensor(Ids{5, 6, 7, 8, 0, 11, 12, 13}, at::kLong).view({2, 4});
  const Tensor mask = at::tensor(Ids{1, 1, 1, 1, 0, 1, 1, 1}, at::kLong).view({2, 4});
  const auto run = [&](const GenerationConfig& config, const Tokenizer* given) {
    return generate(*model, {.input_ids = ids, .config = config, .attention_mask = mask, .tokenizer = given});
  };
  GenerationConfig config{.max_new_tokens = 24, .eos_token_id = Ids()};
  const auto free = run(config, nullptr).new_ids;
  // What the first row has said in five tokens and the second has not, whole and its last two characters.
  const std::string text = tokenizer.decode(std::span(free[0]).first(5));
  for (const std::string& stop : {text, text.substr(text.size() - std::min<size_t>(text.size(), 2))}) {
    config.stop_strings = {stop};
    config.pad_token_id = 33;
    const auto got = run(config, &tokenizer);
    for (size_t i = 0; i < 2; ++i) {
      size_t wanted = free[i].size();
      for (size_t n = free[i].size(); n > 0; --n) {
        if (tokenizer.decode(std::span(free[i]).first(n)).find(stop) != std::string::npos) wanted = n;
      }
      EXPECT_EQ(got.new_ids[i], Ids(free[i].begin(), free[i].begin() + static_cast<ptrdiff_t>(wanted))) << stop;
      for (int64_t t = 4 + static_cast<int64_t>(wanted); t < got.ids.size(1); ++t) {
        EXPECT_EQ(got.ids[static_cast<int64_t>(i)][t].item<int64_t>(), 33);
      }
    }
    EXPECT_LE(got.new_ids[0].size(), 5U);
  }
  expect_has(message_of([&] { run(config, nullptr); }), {"a tokenizer beside stop_strings"});
  model->set_generation_config({});  // whose pad_token_id would do
  config.pad_token_id = std::nullopt;
  expect_has(message_of([&] { run(config, &tokenizer); }), {"a pad_token_id"});
  config.stop_strings = {""};
  expect_has(message_of([&] { run(config, &tokenizer); }), {"stop_strings that are not empty"});
}

// As in models from before generation_config.json: settings stand in config.json then, and only then.
TEST_F(Options, AConfigSaysThemWhereThereIsNoFileOfTheirOwn) {
  const TempFolder folder;
  std::filesystem::copy(made(), folder.path(), std::filesystem::copy_options::recursive);
  const auto own = folder.path() / "generation_config.json";
  nlohmann::ordered_json config = Json::read(folder.path() / "config.json").raw();
  config.update({{"max_length", 9}, {"repetition_penalty", 1.3}, {"guidance_scale", 2}});
  write_file(folder.path() / "config.json", config.dump());
  write_file(own, "{}");
  const GenerationConfig of_file = AutoModelForCausalLM::from_pretrained(folder.path())->generation_config();
  EXPECT_FALSE(of_file.max_length || of_file.repetition_penalty);
  std::filesystem::remove(own);
  const auto model = AutoModelForCausalLM::from_pretrained(folder.path());
  EXPECT_EQ(model->generation_config().max_length, 9);
  EXPECT_EQ(model->generation_config().repetition_penalty, 1.3);
  expect_has(message_of([&] { generate(*model, {.input_ids = row_of_ids({7, 8, 9})}); }), {"guidance_scale = 2"});
}

TEST_F(Options, AModelsFileSaysHowManyUnlessTheCallerDoes) {
  const auto model = AutoModelForCausalLM::from_pretrained(made());
  const auto steps = [&](const std::string& file, const GenerationConfig& config) {
    GenerationConfig own = read(file);
    own.eos_token_id = Ids();
    model->set_generation_config(own);
    return generate(*model, {.input_ids = row_of_ids({7, 8, 9}), .config = config}).steps;
  };
  EXPECT_EQ(steps("{}", {}), 20);
  EXPECT_EQ(steps(R"({"max_new_tokens": 7})", {}), 7);
  EXPECT_EQ(steps(R"({"max_new_tokens": 7})", {.max_new_tokens = 5}), 5);
  EXPECT_EQ(steps(R"({"max_length": 9})", {}), 6) << "with the prompt";
  EXPECT_EQ(steps(R"({"max_length": 9})", {.max_new_tokens = 5}), 5);
  EXPECT_EQ(steps(R"({"max_length": 9, "max_new_tokens": 8})", {}), 8);
  expect_has(message_of([&] { steps(R"({"max_length": 3})", {}); }), {"at least one new token", "got 0", "max_length"});
}

TEST_F(Options, WhatIsMissingIsNamed) {
  const auto model = AutoModelForCausalLM::from_pretrained(made());
  const auto said = [&](const std::string& file, const GenerationConfig& config = {.max_new_tokens = 1}) {
    return message_of([&] {
      model->set_generation_config(read(file));
      generate(*model, {.input_ids = row_of_ids({7, 8, 9}), .config = config});
    });
  };
  for (const char* name : {"penalty_alpha", "max_time", "token_healing", "watermarking_config", "guidance_scale",
                           "force_words_ids", "constraints", "dola_layers"}) {
    expect_has(said(cat(R"({")", name, R"(": 3})")), {name, "= 3", "generation_config.json", "set_generation_config"});
  }
  expect_has(said(R"({"max_time": 2, "dola_layers": [4]})"), {"max_time = 2", "dola_layers = [4]"});
  expect_has(said(R"({"cache_implementation": "quantized"})"), {"cache_implementation"});
  // Values that change nothing, and what means something in sampling alone.
  EXPECT_EQ(
      said(R"({"typical_p": 1.0, "guidance_scale": 1, "bad_words_ids": [], "max_time": null, "use_cache": true})"),
      "no error");
  EXPECT_EQ(said(R"({"typical_p": 0.9})"), "no error");
  EXPECT_THROW(read(R"({"min_p": "0.1"})"), Error);
  for (const GenerationConfig& config :
       {GenerationConfig{.min_p = 1.5}, {.no_repeat_ngram_size = -1}, {.min_new_tokens = -1}}) {
    EXPECT_THROW(Sampler(config, at::kCPU), Error);
  }
}

TEST_F(Options, ASavedModelKeepsThem) {
  const auto model = AutoModelForCausalLM::from_pretrained(made());
  const std::string file = R"({"eos_token_id": [2, 5], "max_length": 90, "max_new_tokens": 7, "min_length": 3,
      "min_new_tokens": 2, "do_sample": true, "temperature": 0.5, "top_k": 9, "top_p": 0.75, "min_p": 0.25,
      "repetition_penalty": 1.5, "no_repeat_ngram_size": 4, "pad_token_id": 1, "stop_strings": ["a", "b"],
      "cache_implementation": "static", "typical_p": 0.5, "suppress_tokens": [4], "begin_suppress_tokens": [5, 6],
      "num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5, "early_stopping": "never", "bad_words_ids": [[3, 4], [8]],
      "sequence_bias": [[[5, 6], -1.5], [[7], 2.0]], "forced_bos_token_id": 4, "forced_eos_token_id": [2, 3],
      "exponential_decay_length_penalty": [4, 1.25], "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 3,
      "remove_invalid_values": true, "renormalize_logits": true, "epsilon_cutoff": 0.25, "eta_cutoff": 0.125, "top_h": 0.5,
      "prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3, "num_assistant_tokens": 4,
      "num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.25, "guidance_scale": 2.0})";
  model->set_generation_config(read(file));
  const TempFolder folder;
  model->save_pretrained(folder.path());
  auto saved = Json::read(folder / "generation_config.json").raw();
  saved.erase("bos_token_id");
  const auto want = Json::parse(file, "file").raw();
  EXPECT_EQ(saved.size(), want.size());
  for (const auto& [name, value] : want.items()) EXPECT_EQ(saved[name], value) << name;
  EXPECT_EQ(to_json(read(saved.dump())), to_json(read(file)));
}

}  // namespace
}  // namespace hotswap
