#include "hotswap/training/optimizer_shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "hotswap/training/ranks/ranks.h"

namespace hotswap {

std::vector<int> balanced_owners(const std::vector<int64_t>& sizes, int ranks) {
  std::vector<size_t> by_size(sizes.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int64_t> loads(static_cast<size_t>(ranks), 0);
  std::vector<int> owners(sizes.size());
  for (const size_t i : by_size) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += sizes[i];
    owners[i] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

OptimizerShards::OptimizerShards(AdamW& optimizer, Ranks& ranks) : optimizer_(optimizer), ranks_(ranks) {
  std::vector<int64_t> sizes;
  for (const Tensor& parameter : optimizer.parameters()) {
    sizes.push_back(state_bytes_of(parameter, optimizer.options().states));
  }
  owners_ = balanced_owners(sizes, ranks.size());
  std::vector<bool> own;
  for (const int owner : owners_) own.push_back(owner == ranks.rank());
  optimizer.keep_only(std::move(own));
}

void OptimizerShards::broadcast_parameters() {
  std::vector<std::vector<Tensor>> of_rank(static_cast<size_t>(ranks_.size()));
  for (size_t i = 0; i < owners_.size(); ++i) {
    of_rank[static_cast<size_t>(owners_[i])].push_back(optimizer_.parameters()[i]);
  }
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    ranks_.broadcast_from(static_cast<int>(rank), of_rank[rank]);
  }
}

FetchState OptimizerShards::fetch() {
  return [this](size_t parameter, at::ScalarType dtype) {
    const Tensor state = at::empty(optimizer_.parameters()[parameter].sizes(), at::TensorOptions(dtype));
    ranks_.receive(owners_[parameter], state);
    return state;
  };
}

// In the order in which save_optimizer() calls fetch().
void OptimizerShards::send_states() {
  for (size_t i = 0; i < owners_.size(); ++i) {
    const AdamWState& state = optimizer_.states()[i];
    if (!optimizer_.owns(i) || !state.steps.defined()) continue;
    for (const Tensor* part : {&state.average, &state.average_square, &state.master}) {
      if (part->defined()) ranks_.send_to_first(part->cpu().contiguous());
    }
  }
}

}  // namespace hotswap
