// What the loop over tokens promises: batches, ends, seeds, streaming, settings.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "hotswap/base/error.h"
#include "hotswap/engine/sampler.h"
#include "hotswap/generation/generate.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/layers/cache.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;

Tensor row(const Ids& ids) { return at::tensor(ids, at::kLong).unsqueeze(0); }

std::shared_ptr<CausalLM> tiny_model(const char* rope = nullptr) {
  nlohmann::ordered_json config = {
      {"model_type", "llama"},         {"vocab_size", 50},         {"hidden_size", 24},       {"num_hidden_layers", 2},
      {"num_attention_heads", 4},      {"num_key_value_heads", 2}, {"intermediate_size", 40}, {"rms_norm_eps", 1e-5},
      {"max_position_embeddings", 16}, {"initializer_range", 0.5}};
  if (rope != nullptr) config["rope_scaling"] = {{"rope_type", rope}, {"factor", 2.0}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->requires_grad(true);
  model->init_weights(3);
  model->eval();
  return model;
}

TEST(Generate, CachedStepsEqualWholeForwards) {
  const auto model = tiny_model();
  const Tensor ids = model->generate(row({7, 8, 9}), {.max_new_tokens = 10});
  ASSERT_EQ(ids.size(1), 13);
  const Tensor logits = (*model)({.input_ids = ids}).logits;  // [1, 13, vocab]
  EXPECT_TRUE(at::equal(logits.argmax(-1).narrow(1, 2, 10), ids.narrow(1, 3, 10)));
}

// From its original length on all of a text turns by the long factors, the keys in the cache too.
TEST(Generate, LongropeAcrossItsOriginalLengthEqualsWholeForwards) {
  const nlohmann::ordered_json rope = {{"rope_type", "longrope"},
                                       {"rope_theta", 1e4},
                                       {"short_factor", {1.0, 1.1, 1.2}},
                                       {"long_factor", {2.0, 3.0, 9.0}}};
  const nlohmann::ordered_json config = {{"model_type", "phi3"},
                                         {"vocab_size", 50},
                                         {"hidden_size", 24},
                                         {"num_hidden_layers", 2},
                                         {"num_attention_heads", 4},
                                         {"num_key_value_heads", 2},
                                         {"intermediate_size", 40},
                                         {"rms_norm_eps", 1e-5},
                                         {"max_position_embeddings", 32},
                                         {"initializer_range", 0.5},
                                         {"rope_parameters", rope},
                                         {"pad_token_id", 0},
                                         {"original_max_position_embeddings", 8}};
  const auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3);
  model->eval();
  for (const char* cache : {"dynamic", "static"}) {
    for (const int64_t length : {3, 7, 8, 9}) {
      const Tensor prompt = at::arange(5, 5 + length, at::kLong).unsqueeze(0);
      Tensor ids = prompt;
      for (int i = 0; i < 12; ++i) {
        const Tensor last = (*model)({.input_ids = ids}).logits.select(1, -1);
        ids = at::cat({ids, last.argmax(-1, true)}, 1);
      }
      const Tensor got = model->generate(prompt, {.max_new_tokens = 12, .cache_implementation = cache});
      EXPECT_TRUE(at::equal(got, ids)) << cache << " behind " << length;
    }
  }
}

TEST(Generate, GeneratedIdsCanBeTrainedOn) {
  const auto model = tiny_model();
  const Tensor ids = model->generate(row({7, 8, 9}), {.max_new_tokens = 4});
  model->train();
  (*model)({.input_ids = ids, .labels = ids}).loss.backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

TEST(Generate, PaddedRowsEqualSingleOnes) {
  for (const char* attention : {"sdpa", "eager"}) {
    const auto model = tiny_model();
    model->set_attn_implementation(attention);
    const Ids a = {5, 6, 7, 8, 9}, b = {11}, c = {12, 13};
    const Tensor batch = at::tensor(Ids{5, 6, 7, 8, 9, 0, 0, 0, 0, 11, 0, 0, 0, 12, 13}, at::kLong).view({3, 5});
    const Tensor mask = at::tensor(Ids{1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1}, at::kLong).view({3, 5});
    const auto together =
        generate(*model, {.input_ids = batch, .config = {.max_new_tokens = 8}, .attention_mask = mask});
    const Ids* prompts[] = {&a, &b, &c};
    for (size_t i = 0; i < 3; ++i) {
      const auto alone = generate(*model, {.input_ids = row(*prompts[i]), .config = {.max_new_tokens = 8}});
      EXPECT_EQ(together.new_ids[i], alone.new_ids[0]) << attention << " row " << i;
    }
  }
}

TEST(Generate, AStaticCacheSaysTheSame) {
  const auto model = tiny_model();
  const Tensor batch = at::tensor(Ids{5, 6, 7, 8, 0, 11, 12, 13}, at::kLong).view({2, 4});
  const Tensor padded = at::tensor(Ids{1, 1, 1, 1, 0, 1, 1, 1}, at::kLong).view({2, 4});
  for (const Tensor& mask : {Tensor(), padded}) {
    const auto run = [&](const char* cache) {
      return model->generate(batch, {.max_new_tokens = 9, .cache_implementation = cache}, mask);
    };
    EXPECT_TRUE(at::equal(run("static"), run("dynamic")));
  }
  EXPECT_THROW(model->generate(batch, {.cache_implementation = "offloaded"}), Error);
}

// With a cache the mask is longer than what the routers saw: the loss over both, which transformers tries, is none.
TEST(Generate, AConfigThatAsksForRouterLogitsIsNoHindrance) {
  const auto mixture = [](bool asks) {
    const nlohmann::ordered_json config = {
        {"model_type", "mixtral"},      {"vocab_size", 50},          {"hidden_size", 24},
        {"num_hidden_layers", 2},       {"num_attention_heads", 4},  {"num_key_value_heads", 2},
        {"intermediate_size", 40},      {"rms_norm_eps", 1e-5},      {"max_position_embeddings", 64},
        {"initializer_range", 0.5},     {"num_local_experts", 4},    {"num_experts_per_tok", 2},
        {"router_aux_loss_coef", 0.02}, {"sliding_window", nullptr}, {"output_router_logits", asks}};
    auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
    model->init_weights(3);
    model->eval();
    return model;
  };
  const auto model = mixture(true), plain = mixture(false);
  const Tensor batch = at::tensor(Ids{5, 6, 7, 8, 0, 11, 12, 13}, at::kLong).view({2, 4});
  const Tensor mask = at::tensor(Ids{1, 1, 1, 1, 0, 1, 1, 1}, at::kLong).view({2, 4});
  for (const char* cache : {"dynamic", "static"}) {
    const GenerationConfig config{.max_new_tokens = 6, .cache_implementation = cache};
    EXPECT_TRUE(at::equal(model->generate(batch, config, mask), plain->generate(batch, config, mask))) << cache;
  }
  const at::NoGradGuard no_grad;
  const auto cache = model->make_cache();
  const auto step = (*model)({.input_ids = batch, .attention_mask = mask, .cache = cache.get()});
  EXPECT_EQ(step.router_logits.size(), 2U);
  EXPECT_FALSE(step.aux_loss.defined());
  EXPECT_TRUE((*model)({.input_ids = batch, .attention_mask = mask}).aux_loss.defined());
}

// The kernel of a whole layer is for few rows, as the report says; more are the business of the layer's parts.
TEST(Generate, BatchesBeyondALayersKernelGoByItsParts) {
  const Tensor ids = at::arange(51, at::kLong).remainder(50).view({17, 3});
  const int64_t bfloat16_rows = __builtin_cpu_supports("avx512bf16") ? 4 : 16;  // kernels/decode/CARD.md
  for (const auto& [dtype, most] : {std::pair(at::kFloat, int64_t{16}), {at::kBFloat16, bfloat16_rows}}) {
    const auto model = tiny_model();
    model->init_weights(3, dtype);
    const auto steps_of = [&](int64_t rows) {
      const int64_t before = op_calls("decode", "decoder_layer");
      const auto got = generate(*model, {.input_ids = ids.narrow(0, 0, rows), .config = {.max_new_tokens = 6}});
      return std::pair(got.new_ids, op_calls("decode", "decoder_layer") - before);
    };
    const auto want = steps_of(most + 1).first;
    std::stringstream report;
    report << model->kernelize(Mode::INFERENCE);
    EXPECT_NE(report.str().find(cat("up to ", most, " rows, more by its parts")), std::string::npos) << report.str();
    for (const int64_t rows : {most, most + 1}) {
      const auto [said, calls] = steps_of(rows);
      EXPECT_EQ(calls, rows == most ? 5 * 2 : 0) << rows << " rows: five steps of two layers, or none";
      if (dtype != at::kFloat) continue;  // two logits of bfloat16 may be equal
      for (size_t i = 0; i < said.size(); ++i) EXPECT_EQ(said[i], want[i]) << "row " << i << " of " << rows;
    }
  }
}

TEST(Generate, AGreedyChoiceIsMadeByTheHeadsKernel) {
  const auto model = tiny_model();
  const auto check = [&](const GenerationConfig& config, int64_t calls) {
    const int64_t before = op_calls("linear", "largest_");
    const Tensor ids = model->generate(row({7, 8, 9}), config);
    EXPECT_EQ(op_calls("linear", "largest_") - before, calls);
    return ids;
  };
  const GenerationConfig greedy{.max_new_tokens = 6}, penalised{.max_new_tokens = 6, .repetition_penalty = 1.5};
  const Tensor want = check(greedy, 0), other = check(penalised, 0);
  model->kernelize(Mode::INFERENCE);
  EXPECT_TRUE(at::equal(check(greedy, 6), want));
  EXPECT_TRUE(at::equal(check(penalised, 6), other));
  check({.max_new_tokens = 6, .do_sample = true}, 0);
  model->unkernelize();
  EXPECT_TRUE(at::equal(check(greedy, 0), want));
}

TEST(Generate, RowsEndAtTheirOwnEos) {
  const auto model = tiny_model();
  const Tensor prompts = at::tensor(Ids{5, 6, 20, 21}, at::kLong).view({2, 2});
  const auto free = generate(*model, {.input_ids = prompts, .config = {.max_new_tokens = 8}});
  // An id that only the first row says early becomes an end; it stays as the last id of its row.
  const int64_t eos = free.new_ids[0][1];
  const auto ended = generate(
      *model,
      {.input_ids = prompts, .config = {.max_new_tokens = 8, .eos_token_id = Ids{eos, 49}, .pad_token_id = 33}});
  for (size_t i = 0; i < 2; ++i) {
    Ids want;
    for (const int64_t id : free.new_ids[i]) {
      want.push_back(id);
      if (id == eos || id == 49) break;
    }
    EXPECT_EQ(ended.new_ids[i], want);
    for (int64_t t = 2 + static_cast<int64_t>(want.size()); t < ended.ids.size(1); ++t) {
      EXPECT_EQ(ended.ids[static_cast<int64_t>(i)][t].item<int64_t>(), 33);
    }
  }
}

TEST(Generate, StreamsEveryStepAndStopsOnRequest) {
  const auto model = tiny_model();
  Ids seen;
  const auto on_tokens = [&](const Ids& tokens) {
    seen.push_back(tokens.at(0));
    return seen.size() < 5;
  };
  const auto result =
      generate(*model, {.input_ids = row({7, 8}), .config = {.max_new_tokens = 30}, .on_tokens = on_tokens});
  EXPECT_EQ(result.new_ids[0], seen);
  EXPECT_EQ(seen.size(), 5U);
  EXPECT_EQ(result.steps, 5);
  EXPECT_GT(result.prefill_ms, 0);
  EXPECT_GT(result.decode_ms, 0);
  EXPECT_EQ(result.prompt_tokens, 2);
  EXPECT_EQ(result.prefill_tokens_per_second(), 2000 / result.prefill_ms);
  EXPECT_EQ(result.decode_tokens_per_second(), 4000 / result.decode_ms);
}

TEST(Generate, SeedsReproduce) {
  const auto model = tiny_model();
  const auto sample = [&](uint64_t seed) {
    return model->generate(row({7, 8}), {.max_new_tokens = 20, .do_sample = true, .temperature = 2.0, .seed = seed});
  };
  EXPECT_TRUE(at::equal(sample(1), sample(1)));
  EXPECT_FALSE(at::equal(sample(1), sample(2)));
}

TEST(Generate, TheModelsOwnSettingsHoldUnlessOverridden) {
  const auto model = tiny_model();
  const auto free = generate(*model, {.input_ids = row({7, 8}), .config = {.max_new_tokens = 6}});
  model->set_generation_config({.eos_token_id = Ids{free.new_ids[0][2]}});
  EXPECT_LE(generate(*model, {.input_ids = row({7, 8}), .config = {.max_new_tokens = 6}}).steps, 3);
  const GenerationConfig endless{.max_new_tokens = 6, .eos_token_id = Ids()};
  EXPECT_EQ(generate(*model, {.input_ids = row({7, 8}), .config = endless}).steps, 6);
}

TEST(Generate, WrongArguments) {
  const auto model = tiny_model();
  const Tensor two = at::tensor(Ids{5, 6, 7, 8}, at::kLong).view({2, 2});
  EXPECT_THROW(model->generate(Tensor()), Error);
  EXPECT_THROW(model->generate(row({1}), {.max_new_tokens = 0}), Error);
  EXPECT_THROW(model->generate(two, {}, at::tensor(Ids{1, 1, 1, 0}, at::kLong).view({2, 2})), Error);  // right padding
  EXPECT_THROW(model->generate(two, {}, at::tensor(Ids{1, 1, 0, 0}, at::kLong).view({2, 2})), Error);  // nothing there
  EXPECT_THROW(model->generate(two, {}, row({1, 1})), Error);
  EXPECT_THROW(model->generate(two, {.do_sample = true, .temperature = 0.0}), Error);
  EXPECT_THROW(model->generate(two, {.do_sample = true, .top_p = 0.0}), Error);
  EXPECT_THROW(model->generate(two, {.do_sample = true, .top_k = -1}), Error);
  EXPECT_THROW(model->generate(two, {.repetition_penalty = -1.0}), Error);
}

TEST(Sampler, TopKAndTopPLimitTheChoice) {
  const Tensor logits = at::tensor({3.0F, 2.0F, 1.0F, 0.0F, -1.0F}).unsqueeze(0);
  const auto seen = [&](GenerationConfig config) {
    config.do_sample = true;
    config.seed = 5;
    Sampler sampler(config, at::kCPU);
    std::set<int64_t> ids;
    for (int i = 0; i < 400; ++i) ids.insert(sampler.next(logits, logits).item<int64_t>());
    return ids;
  };
  EXPECT_EQ(seen({.temperature = 5.0, .top_k = 2}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(seen({.temperature = 5.0, .top_k = 0}).size(), 5U);
  EXPECT_EQ(seen({.top_k = 0, .top_p = 0.8}), (std::set<int64_t>{0, 1}));  // 0.64 + 0.23
  EXPECT_EQ(seen({.top_k = 0, .top_p = 1e-6}), (std::set<int64_t>{0}));
}

TEST(Sampler, RepetitionPenaltyLooksAtWhatWasSaid) {
  Sampler sampler({.repetition_penalty = 2.0}, at::kCPU);
  const Tensor logits = at::tensor({3.0F, 2.0F, -1.0F}).unsqueeze(0);
  EXPECT_TRUE(sampler.needs_history());
  EXPECT_EQ(sampler.next(logits, row({2})).item<int64_t>(), 0);
  EXPECT_EQ(sampler.next(logits, row({0, 0})).item<int64_t>(), 1);
}

}  // namespace
}  // namespace hotswap
