// The batches of an update, read in a thread of their own while the update before runs. For sources of this room.
#pragma once

#include <future>
#include <vector>

#include "hotswap/training/data/dataset.h"

namespace hotswap {

class BatchesAhead {
 public:
  using Update = std::vector<std::vector<int64_t>>;  // the examples of each of its batches

  BatchesAhead(const Dataset& dataset, std::vector<Update> updates) : dataset_(dataset), updates_(std::move(updates)) {
    start();
  }
  size_t left() const { return updates_.size() - at_; }
  // Of the next update. What the dataset threw while it read is thrown here.
  std::vector<TrainingBatch> next() {
    std::vector<TrainingBatch> batches = coming_.get();
    ++at_;
    start();
    return batches;
  }

 private:
  void start() {
    if (left() == 0) return;
    coming_ = std::async(std::launch::async, [this, update = at_] {
      std::vector<TrainingBatch> batches;
      for (const auto& examples : updates_[update]) batches.push_back(dataset_.batch(examples));
      return batches;
    });
  }

  const Dataset& dataset_;
  std::vector<Update> updates_;
  size_t at_ = 0;
  std::future<std::vector<TrainingBatch>> coming_;
};

}  // namespace hotswap
