// Every deterministic setting of a generation config gives the ids of transformers, from tiny random models of several
// families: rules for tokens, beams, and draws from one seed. settings_oracle.py makes models and ids.
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "hotswap/base/error.h"
#include "hotswap/base/test_data.h"
#include "hotswap/engine/score_rules.h"
#include "hotswap/engine/test_families.h"
#include "hotswap/generation/generate.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;
using test_support::expect_has;
using test_support::message_of;
using test_support::tiny;

std::filesystem::path oracle_folder() { return test_support::made_data("generation/settings_oracle.py"); }

Tensor matrix(const Json& rows) {
  std::vector<Tensor> parts;
  for (const Json& row : rows.elements()) parts.push_back(at::tensor(row.as<Ids>(), at::kLong));
  return at::stack(parts);
}

using Settings = test_support::WithTransformers<>;

// kernels: bound, where a few sums have another order. A text that parts there is counted.
void expect_transformers_ids(bool kernels) {
  const Json all = Json::read(oracle_folder() / "cases.json");
  int64_t cases = 0, other = 0;
  for (const auto& [family, rows] : all.child("families").items()) {
    const auto model = AutoModelForCausalLM::from_pretrained(oracle_folder() / family, {.use_kernels = kernels});
    for (const Json& item : rows.elements()) {
      GenerationConfig config = read_generation_config(item.child("settings"));
      config.max_new_tokens = 12;
      config.eos_token_id = all.at<Ids>("eos_token_id");
      config.pad_token_id = 3;
      config.seed = static_cast<uint64_t>(all.at<int64_t>("seed"));
      const Tensor prompt = matrix(item.child("input_ids")), expected = matrix(item.child("output_ids"));
      const Tensor got =
          generate(*model,
                   {.input_ids = prompt, .config = config, .attention_mask = matrix(item.child("attention_mask"))})
              .ids;
      const Tensor made = got.narrow(1, prompt.size(1), got.size(1) - prompt.size(1));
      ++cases;
      if (at::equal(made, expected)) continue;
      ++other;
      // After one token repeated all positions have one state: scores of beams tie but for rounding, which is the CPU's.
      if (kernels || (config.num_beams > 1 && prompt.size(1) == 1)) continue;
      std::ostringstream text;
      text << family << " " << item.child("settings").raw().dump() << " of\n"
           << prompt << "\n"
           << made << "\n"
           << expected;
      ADD_FAILURE() << text.str();
    }
  }
  EXPECT_GT(cases, 200);
  EXPECT_LE(other, cases / 50) << "of " << cases << ": more than ties explain";
}

TEST_F(Settings, GiveTransformersIds) { expect_transformers_ids(false); }
TEST_F(Settings, GiveTransformersIdsByKernels) { expect_transformers_ids(true); }

// A rule's text with guessed tokens is the one without.
TEST_F(Settings, HoldWhereTokensAreGuessed) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  const Tensor prompt = at::tensor(Ids{5, 6, 7, 5, 6}, at::kLong).unsqueeze(0);
  const GenerationConfig common = {.max_new_tokens = 30, .eos_token_id = Ids{2, 9}};
  for (const char* settings :
       {R"({"bad_words_ids": [[7], [5, 6]]})", R"({"suppress_tokens": [5, 9]})", R"({"forced_eos_token_id": 9})",
        R"({"exponential_decay_length_penalty": [4, 1.3]})", R"({"encoder_no_repeat_ngram_size": 2})",
        R"({"begin_suppress_tokens": [5, 6, 7, 8, 9, 10, 11, 12]})"}) {
    GenerationConfig config = merged(read_generation_config(Json::parse(settings, "settings")), common);
    const auto expected = generate(*model, {.input_ids = prompt, .config = config});
    config.prompt_lookup_num_tokens = 4;
    EXPECT_EQ(generate(*model, {.input_ids = prompt, .config = config}).new_ids, expected.new_ids) << settings;
  }
}

TEST(BeamSettings, RefuseWhatMakesNoSense) {
  const auto model = tiny("llama", at::kCPU, at::kFloat, 16);
  const auto refused = [&](const GenerationConfig& config) {
    return message_of([&] {
      generate(*model, {.input_ids = at::tensor(Ids{5, 6}, at::kLong).unsqueeze(0), .config = config});
    });
  };
  expect_has(refused({.num_beams = 0}), {"num_beams", "0"});
  expect_has(refused({.do_sample = true, .num_beams = 2}), {"num_beams = 2", "do_sample"});
  expect_has(refused({.num_beams = 2, .num_return_sequences = 3}), {"num_return_sequences = 3", "num_beams = 2"});
  expect_has(refused({.num_return_sequences = 2}), {"num_return_sequences = 2", "do_sample"});
  expect_has(refused({.prompt_lookup_num_tokens = 2, .num_beams = 2}), {"num_beams = 2", "guessed"});
  expect_has(refused({.stop_strings = std::vector<std::string>{"a"}, .num_beams = 2}), {"stop_strings"});
  expect_has(refused({.bad_words_ids = std::vector<Ids>{{}}}), {"bad_words_ids"});
  expect_has(refused({.suppress_tokens = Ids{50}}), {"50"});
  expect_has(refused({.forced_bos_token_id = -1}), {"forced_bos_token_id"});
  expect_has(refused({.do_sample = true, .typical_p = 1.5}), {"typical_p"});
  EXPECT_THROW(read_generation_config(Json::parse(R"({"early_stopping": "maybe"})", "file")), Error);
  EXPECT_THROW(read_generation_config(Json::parse(R"({"sequence_bias": [[[3]]]})", "file")), Error);
}

}  // namespace
}  // namespace hotswap
