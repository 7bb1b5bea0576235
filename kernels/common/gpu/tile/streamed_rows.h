// How rows are streamed through blocks or clusters (streamed_rows.cuh): a pure function of the shape, so that a layout
// can be tested where no GPU is.
#pragma once

#include "kernels/common/gpu/launch.h"

namespace kernels {

struct StreamPlan {
  int cluster;  // blocks of a row; 0: the rows are too long
  int threads;  // of a block
};

struct StreamLimits {
  int vectors;          // 16-byte vectors of a thread in a row
  int max_threads;      // of a block
  int cluster_threads;  // of the blocks of a cluster, where max_cluster of them hold a row
  int max_cluster;      // 1 where the GPU has no clusters
};

// As few blocks a row as hold it, and more of them while that gives work to multiprocessors that would have none.
inline StreamPlan plan_stream(int64_t rows, int64_t vectors, const StreamLimits& limits, int sms) {
  constexpr int kWarp = 32, kLeastThreads = 128;
  const auto threads_of = [&](int cluster) {
    return divide_up(divide_up(vectors, int64_t{cluster} * limits.vectors), kWarp) * kWarp;
  };
  const bool small = threads_of(limits.max_cluster) <= limits.cluster_threads;
  StreamPlan found{};
  for (int cluster = 1; cluster <= limits.max_cluster; cluster *= 2) {
    const int64_t threads = threads_of(cluster);
    if (threads > (small && cluster > 1 ? limits.cluster_threads : limits.max_threads)) continue;
    if (found.cluster > 0 && (threads < kLeastThreads || rows * found.cluster >= sms)) break;
    found = {.cluster = cluster, .threads = int(threads)};
  }
  return found;
}

}  // namespace kernels
