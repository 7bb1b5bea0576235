// The order in which a Trainer sees a dataset's examples: transformers' own for the same seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hotswap {

enum class SamplingStrategy { kRandom, kSequential };

// "random", "sequential"; Error for another name.
SamplingStrategy sampling_strategy_from(const std::string& name);

// The examples of one epoch, each once. Shuffled as torch's randperm does with a CPU generator of seed + epoch, which
// is what accelerate's sampler draws: the order depends on nothing that was drawn before.
std::vector<int64_t> epoch_order(int64_t examples, SamplingStrategy strategy, int64_t seed, int64_t epoch);

// Cut into batches. The last one is short, or dropped with drop_last.
std::vector<std::vector<int64_t>> batches_of(const std::vector<int64_t>& order, int64_t batch_size,
                                             bool drop_last = false);

// The same for several ranks, of which rank k takes batches k, k + ranks, ...: as accelerate's BatchSamplerShard, all
// are of batch_size and there are as many for each rank. Those that lack at the end are filled from the beginning of
// the order, or with drop_last dropped. For one rank these are batches_of().
std::vector<std::vector<int64_t>> batches_of_ranks(const std::vector<int64_t>& order, int64_t batch_size,
                                                   bool drop_last, int64_t ranks);

}  // namespace hotswap
