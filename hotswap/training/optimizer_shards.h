// ZeRO's stage 1 (Rajbhandari et al., 2020) over the ranks of a run: each keeps AdamW's states of its own parameters
// and updates those, and then has the others' from their ranks. Whole parameters are shared out, as torch's
// ZeroRedundancyOptimizer does; gradients and weights stay whole on each rank. For sources of this room.
#pragma once

#include <cstdint>
#include <vector>

#include "hotswap/training/checkpoint/optimizer_file.h"
#include "hotswap/training/optimizers/optimizer.h"

namespace hotswap {

class Ranks;

// Of each parameter the rank that keeps its states: by size, descending, each goes to the rank that has the fewest
// bytes by then.
std::vector<int> balanced_owners(const std::vector<int64_t>& sizes, int ranks);

class OptimizerShards {
 public:
  // From here on the optimizer has only this rank's states (AdamW::keep_only).
  OptimizerShards(AdamW& optimizer, Ranks& ranks);

  // After an update, by all ranks: every parameter becomes what its rank made of it.
  void broadcast_parameters();

  // A checkpoint has the states of all, in one file as without shards. Rank 0 writes it with fetch() and the others
  // send theirs meanwhile, one tensor at a time, so that no rank ever has all of them.
  FetchState fetch();
  void send_states();

 private:
  AdamW& optimizer_;
  Ranks& ranks_;
  std::vector<int> owners_;
};

}  // namespace hotswap
