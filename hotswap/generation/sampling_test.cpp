// The sampler draws each token as often as it is likely.
#include <ATen/TensorOperators.h>
#include <ATen/core/Formatting.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/generation/generate.h"
#include "hotswap/generation/test_sampling.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace test_support {

Tensor sampling_logits() { return at::tensor({0.5, 0.25, 0.125, 0.0625, 0.0625}).log().to(at::kFloat).unsqueeze(0); }

std::vector<SamplingCase> sampling_cases() {
  const auto over = [](std::vector<double> parts) {
    double all = 0;
    for (const double part : parts) all += part;
    for (double& part : parts) part /= all;
    return parts;
  };
  std::vector<SamplingCase> cases = {
      {{.top_k = 0}, {0.5, 0.25, 0.125, 0.0625, 0.0625}},
      {{.temperature = 0.5, .top_k = 0}, over({256, 64, 16, 4, 4})},
      {{.top_k = 2}, over({2, 1, 0, 0, 0})},
      {{.top_k = 0, .top_p = 0.7}, over({2, 1, 0, 0, 0})},
      {{.top_k = 0, .min_p = 0.3}, over({2, 1, 0, 0, 0})},
      {{.temperature = 2.0, .top_k = 3, .top_p = 0.99}, over({2, std::sqrt(2), 1, 0, 0})},
  };
  for (SamplingCase& c : cases) c.config.do_sample = true;
  return cases;
}

void expect_drawn(const Tensor& ids, const std::vector<double>& want, const std::string& what) {
  const Tensor counts = at::bincount(ids.to(at::kCPU).flatten(), {}, static_cast<int64_t>(want.size())).to(at::kDouble);
  const auto all = static_cast<double>(ids.numel());
  double statistic = 0;
  int freedom = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    const double got = counts[static_cast<int64_t>(i)].item<double>(), expected = want[i] * all;
    if (want[i] == 0) {
      EXPECT_EQ(got, 0) << what << ": id " << i << " was cut off";
      continue;
    }
    statistic += (got - expected) * (got - expected) / expected;
    ++freedom;
  }
  constexpr double kOneInAMillion[] = {0, 23.9, 27.6, 30.7, 33.4};  // of chi-square, by degrees of freedom
  EXPECT_LT(statistic, kOneInAMillion[freedom]) << what << ": " << counts;
}

double apart(const Tensor& some, const Tensor& others) {
  constexpr int64_t kIds = 8;
  const auto counts = [](const Tensor& ids) {
    return at::bincount(ids.to(at::kCPU).flatten(), {}, kIds).to(at::kDouble);
  };
  const Tensor mine = counts(some), theirs = counts(others);
  double statistic = 0, rare[2] = {};
  int freedom = -1;
  const auto count = [&](double a, double b) {
    statistic += a + b > 0 ? (a - b) * (a - b) / (a + b) : 0;
    freedom += a + b > 0;
  };
  for (int64_t i = 0; i < kIds; ++i) {
    const double a = mine[i].item<double>(), b = theirs[i].item<double>();
    if (a + b < 10) {  // too few for the statistic's distribution
      rare[0] += a, rare[1] += b;
    } else {
      count(a, b);
    }
  }
  count(rare[0], rare[1]);
  constexpr double kOneInAMillion[] = {1, 23.9, 27.6, 30.7, 33.4, 35.9, 38.3, 40.5};
  return statistic / kOneInAMillion[std::max(freedom, 0)];
}

Tensor sampled_runs(CausalLM& model, const char* cache, uint64_t seed, double temperature) {
  constexpr int64_t kRows = 32, kTokens = 4, kWorthCapturing = 16;
  const Tensor prompt = at::tensor({1, 2, 3}, at::kLong).expand({kRows, 3});
  std::vector<Tensor> runs;
  for (uint64_t run = 0; run < 64; ++run) {
    const bool captured = model.device().is_cuda() && cache == std::string("static");
    const GenerateResult got = generate(model, {.input_ids = prompt,
                                                .config = {.max_new_tokens = captured ? kWorthCapturing : kTokens,
                                                           .do_sample = true,
                                                           .temperature = temperature,
                                                           .top_k = 7,
                                                           .seed = 1000 * seed + run,
                                                           .eos_token_id = std::vector<int64_t>(),
                                                           .cache_implementation = cache}});
    EXPECT_EQ(got.captured, captured) << got.why_not_captured;
    runs.push_back(got.ids.narrow(1, 3, kTokens).to(at::kCPU));
  }
  return at::cat(runs);
}

}  // namespace test_support

namespace {

TEST(Sampler, DrawsEachTokenAsOftenAsItIsLikely) {
  int number = 0;
  for (auto& [config, want] : test_support::sampling_cases()) {
    GenerationConfig seeded = config;
    seeded.seed = 7;
    Sampler sampler(seeded, at::kCPU);
    const Tensor logits = test_support::sampling_logits().expand({20000, 5});
    test_support::expect_drawn(sampler.next(logits, logits), want, cat("case ", number++));
  }
}

// Whole runs, by kernels and with a cache of a fixed size, beside those of stock layers; another temperature is seen.
TEST(Sampler, RunsByKernelsAreDrawnAsThoseOfStockLayers) {
  const nlohmann::ordered_json config = {{"model_type", "qwen3"},
                                         {"vocab_size", 8},
                                         {"hidden_size", 16},
                                         {"num_hidden_layers", 2},
                                         {"num_attention_heads", 2},
                                         {"num_key_value_heads", 1},
                                         {"intermediate_size", 24},
                                         {"rms_norm_eps", 1e-5},
                                         {"max_position_embeddings", 16},
                                         {"initializer_range", 0.4},
                                         {"head_dim", 8}};
  const auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3);
  model->eval();
  const Tensor stock = test_support::sampled_runs(*model, "dynamic", 1);
  EXPECT_GT(model->kernelize(Mode::of_training(false)).bound(), 0);
  const Tensor ours = test_support::sampled_runs(*model, "static", 2);
  const Tensor hotter = test_support::sampled_runs(*model, "static", 3, 1.8);
  double seen = 0;
  for (int64_t token = 0; token < stock.size(1); ++token) {
    EXPECT_LT(test_support::apart(ours.select(1, token), stock.select(1, token)), 1) << "token " << token;
    seen = std::max(seen, test_support::apart(hotter.select(1, token), stock.select(1, token)));
  }
  EXPECT_GT(seen, 1);
}

}  // namespace
}  // namespace hotswap
