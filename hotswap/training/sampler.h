// The order in which a Trainer sees a dataset's examples.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace hotswap {

enum class SamplingStrategy { kRandom, kSequential };

// "random", "sequential"; Error for another name.
SamplingStrategy sampling_strategy_from(const std::string& name);

// Each epoch has every example once: in order, or shuffled anew. The seed alone decides; the order is not that of
// torch's sampler for the same seed.
class ExampleSampler {
 public:
  ExampleSampler(int64_t examples, SamplingStrategy strategy, uint64_t seed);
  // The next so many examples; fewer at the end of an epoch, never of two epochs.
  std::vector<int64_t> next(int64_t count);
  bool at_epoch_end() const { return at_ == order_.size(); }

 private:
  void begin_epoch();
  SamplingStrategy strategy_;
  std::mt19937_64 random_;
  std::vector<int64_t> order_;
  size_t at_ = 0;
};

}  // namespace hotswap
