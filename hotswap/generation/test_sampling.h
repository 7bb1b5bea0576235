// Whether ids were drawn as often as they should be.
#pragma once

#include <string>
#include <vector>

#include "hotswap/generation/sampler.h"

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

}  // namespace hotswap::test_support
