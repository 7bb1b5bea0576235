// Whether ids were drawn as often as they should be.
#pragma once

#include <string>
#include <vector>

#include "hotswap/engine/sampler.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap::test_support {

struct SamplingCase {
  GenerationConfig config;
  std::vector<double> want;  // probabilities of the ids, by hand
};

// Logits whose probabilities are 0.5, 0.25, 0.125, 0.0625, 0.0625: [1, 5]
Tensor sampling_logits();
std::vector<SamplingCase> sampling_cases();
// ids: any shape. Pearson's statistic below what one run in a million exceeds; with the seeds given it is the same each
// time.
void expect_drawn(const Tensor& ids, const std::vector<double>& want, const std::string& what);

// Pearson's statistic of two draws of as many ids being of one distribution, over the largest that one pair in a
// million exceeds: less than 1 where they are. At most eight different ids.
double apart(const Tensor& some, const Tensor& others);
// 64 runs of one prompt, four tokens of each of 32 rows: [2048, 4]. A model of 8 ids.
Tensor sampled_runs(CausalLM& model, const char* cache, uint64_t seed, double temperature = 0.9);

}  // namespace hotswap::test_support
