#include "hotswap/training/sampler.h"

#include <algorithm>
#include <numeric>

#include "hotswap/base/error.h"

namespace hotswap {

SamplingStrategy sampling_strategy_from(const std::string& name) {
  if (name == "random") return SamplingStrategy::kRandom;
  if (name == "sequential") return SamplingStrategy::kSequential;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a train_sampling_strategy: random or sequential",
               .got = cat("'", name, "'"),
               .next = "name one of these"});
}

ExampleSampler::ExampleSampler(int64_t examples, SamplingStrategy strategy, uint64_t seed)
    : strategy_(strategy), random_(seed), order_(static_cast<size_t>(examples)) {
  std::iota(order_.begin(), order_.end(), 0);
  begin_epoch();
}

std::vector<int64_t> ExampleSampler::next(int64_t count) {
  if (at_epoch_end()) begin_epoch();
  const size_t end = std::min(order_.size(), at_ + static_cast<size_t>(count));
  const std::vector<int64_t> examples(order_.begin() + static_cast<std::ptrdiff_t>(at_),
                                      order_.begin() + static_cast<std::ptrdiff_t>(end));
  at_ = end;
  return examples;
}

void ExampleSampler::begin_epoch() {
  at_ = 0;
  if (strategy_ == SamplingStrategy::kRandom) std::shuffle(order_.begin(), order_.end(), random_);
}

}  // namespace hotswap
