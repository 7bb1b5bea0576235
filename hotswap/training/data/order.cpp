#include "hotswap/training/data/order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <numeric>

#include "hotswap/base/error.h"

namespace hotswap {

SamplingStrategy sampling_strategy_from(const std::string& name) {
  if (name == "random") return SamplingStrategy::kRandom;
  if (name == "sequential") return SamplingStrategy::kSequential;
  throw Error({.kind = name == "group_by_length" ? ErrorKind::kUnsupported : ErrorKind::kInvalidArgument,
               .wanted = "a train_sampling_strategy: random or sequential",
               .got = cat("'", name, "'"),
               .next = "name one of these"});
}

std::vector<int64_t> epoch_order(int64_t examples, SamplingStrategy strategy, int64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(examples));
  if (strategy == SamplingStrategy::kSequential) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed + epoch));
  const at::Tensor drawn = at::randperm(examples, generator, at::TensorOptions(at::kLong));
  std::copy_n(drawn.const_data_ptr<int64_t>(), examples, order.begin());
  return order;
}

std::vector<std::vector<int64_t>> batches_of(const std::vector<int64_t>& order, int64_t batch_size, bool drop_last) {
  std::vector<std::vector<int64_t>> batches;
  const auto size = static_cast<size_t>(batch_size);
  for (size_t at = 0; at < order.size(); at += size) {
    const size_t count = std::min(size, order.size() - at);
    if (count < size && drop_last) break;
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(at);
    batches.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  return batches;
}

std::vector<std::vector<int64_t>> batches_of_ranks(const std::vector<int64_t>& order, int64_t batch_size,
                                                   bool drop_last, int64_t ranks) {
  auto batches = batches_of(order, batch_size, drop_last);
  const auto count = static_cast<size_t>(ranks), size = static_cast<size_t>(batch_size);
  if (ranks == 1 || batches.empty()) return batches;
  if (drop_last) {
    batches.resize(batches.size() / count * count);
    return batches;
  }
  // What fills: the examples of the first batch of each rank, again from their first one where they are used up.
  const size_t filling = std::min(order.size(), count * size);
  size_t next = 0;
  const auto fill = [&](std::vector<int64_t>& batch) {
    while (batch.size() < size) batch.push_back(order[next++ % filling]);
  };
  fill(batches.back());
  while (batches.size() % count != 0) fill(batches.emplace_back());
  return batches;
}

}  // namespace hotswap
