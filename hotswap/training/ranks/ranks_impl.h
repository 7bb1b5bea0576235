// The c10d objects of Ranks. For sources of this room.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "hotswap/training/ranks/heartbeat_impl.h"
#include "hotswap/training/ranks/ranks.h"

namespace hotswap {

struct Ranks::Parts {
  RankEnvironment environment;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::unique_ptr<Heartbeat> heartbeat;
  bool broken = false;  // a rank is lost: nothing is waited for any more
};

// Where the ranks of this attempt find each other. Error where there is no store within the time-out.
c10::intrusive_ptr<c10d::Store> open_store(const RankEnvironment& environment, std::chrono::milliseconds timeout);

// gloo.cpp: it is what needs the stand-ins for gloo's headers.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout);

// reducer.cpp
std::unique_ptr<GradientSync> make_reducer(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                           const TrainedTensors& trained, const GradientSyncOptions& options,
                                           std::function<void()> on_reduce);
// Error where shapes or types differ.
void check_same_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::vector<Tensor>& tensors);
void broadcast_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int from,
                       const std::vector<Tensor>& tensors);

}  // namespace hotswap
