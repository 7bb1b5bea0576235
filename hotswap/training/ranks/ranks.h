// The processes that train one model, each on its share of the data: torch's c10d, with Gloo on CPUs and NCCL on GPUs.
//
//   if (const auto environment = rank_environment()) {
//     Ranks ranks(*environment, {.device = model->device()});
//     ranks.broadcast(tensors);
//   }
//
// Every rank makes the same calls in the same order. A call that fails because another rank has ended, or does not
// come, throws an Error that names this rank, its machine and its step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/training/ranks/environment.h"
#include "hotswap/training/ranks/gradient_sync.h"

namespace hotswap {

struct RanksOptions {
  at::Device device = at::kCPU;  // of the model
  double timeout = 1800;         // seconds in which a rank that is silent counts as lost
};

class Ranks {
 public:
  // Waits for all the others. Error where they do not come within the time-out.
  Ranks(const RankEnvironment& environment, const RanksOptions& options);
  ~Ranks();

  int rank() const;
  int size() const;
  bool is_first() const { return rank() == 0; }
  int restarts() const;  // by the launcher

  // Of each element over the ranks. On the CPU, whatever the model's device is.
  std::vector<double> sum(const std::vector<double>& values);
  std::vector<double> max(const std::vector<double>& values);
  void barrier() { sum({0}); }
  std::string from_first(const std::string& text);              // rank 0's, on each rank
  std::vector<std::string> to_first(const std::string& bytes);  // on rank 0 each rank's, elsewhere none

  // Rank 0's values become each rank's. Error where shapes or types differ.
  void broadcast(const std::vector<Tensor>& tensors);
  // Rank `from`'s values become each rank's, of tensors whose shapes and types are known to be the same.
  void broadcast_from(int from, const std::vector<Tensor>& tensors);
  // One tensor to rank 0, which waits for it with receive() at the same time. On the CPU, contiguous, of the same shape
  // and type on both.
  void send_to_first(const Tensor& tensor);
  void receive(int from, const Tensor& into);
  std::unique_ptr<GradientSync> gradient_sync(const TrainedTensors& trained, const GradientSyncOptions& options);

  // What the others learn of this rank where it fails: the update that it is in.
  void at_step(int64_t step);
  // Runs work that has collectives in it. Where these fail, the Error names the rank that is lost; an Error of this
  // rank's own is left for the others to name.
  void watched(const std::function<void()>& work);

 private:
  struct Parts;  // ranks_impl.h
  [[noreturn]] void explain(const std::exception& error);

  std::unique_ptr<Parts> parts_;
};

}  // namespace hotswap
