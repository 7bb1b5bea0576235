// The batches of an update, read in a thread of their own while the update before runs. For sources of this room.
#pragma once

#include <future>
#include <vector>

#include "hotswap/training/data/dataset.h"

namespace hotswap {

class BatchesAhead {
 public:
  using Batches = std::vector<std::vector<int64_t>>;  // the examples of each
  struct Update {
    Batches own;
    Batches others = {};  // what the other ranks read for the same update
  };
  struct Read {
    std::vector<TrainingBatch> batches;
    int64_t labels_of_others = 0;
  };

  BatchesAhead(const Dataset& dataset, std::vector<Update> updates) : dataset_(dataset), updates_(std::move(updates)) {
    start();
  }
  size_t left() const { return updates_.size() - at_; }
  // Of the next update. What the dataset threw while it read is thrown here.
  Read next() {
    Read read = coming_.get();
    ++at_;
    start();
    return read;
  }

 private:
  void start() {
    if (left() == 0) return;
    coming_ = std::async(std::launch::async, [this, update = at_] {
      Read read;
      for (const auto& examples : updates_[update].own) read.batches.push_back(dataset_.batch(examples));
      for (const auto& examples : updates_[update].others) read.labels_of_others += dataset_.labels_in(examples);
      return read;
    });
  }

  const Dataset& dataset_;
  std::vector<Update> updates_;
  size_t at_ = 0;
  std::future<Read> coming_;
};

}  // namespace hotswap
