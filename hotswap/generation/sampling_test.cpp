// The sampler draws each token as often as it is likely.
#include <ATen/TensorOperators.h>
#include <ATen/core/Formatting.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/generation/test_sampling.h"

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

}  // namespace
}  // namespace hotswap
