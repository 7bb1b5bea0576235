// How rows are held in registers (held_rows.cuh): a pure function of the shape, so that a layout can be tested where no
// GPU is.
#pragma once

#include "kernels/common/gpu/launch.h"

namespace kernels {

struct HeldPlan {
  int vectors;  // 16-byte vectors in a thread; 0: the rows are too long, or do not begin at whole vectors
  int lanes;    // threads of a row in one block
  int groups;   // rows of a block; more than one only where a row has at most a warp
  int cluster;  // blocks of a row
  int64_t rows_per_launch;
  int threads() const { return lanes * groups; }
  int64_t blocks(int64_t rows) const { return divide_up(rows, groups) * cluster; }
};

struct HeldLimits {
  int max_cluster;   // 1 where the GPU has no clusters
  int vectors;       // of a thread where the rows of a block are shorter than `long_vectors`
  int long_vectors;  // of a thread in longer rows: what is in flight hides the barriers of a cluster
  int cluster_vectors;
};

inline HeldPlan plan_held(const RowShape& s, const HeldLimits& limits) {
  constexpr int kWarp = 32, kSmallBlock = 128, kGroupVectors = 4, kMaxLanes = 512;
  constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
  const int64_t per_vector = kVectorBytes / s.element_size, vectors = s.cols / per_vector;
  if (!s.aligned || s.cols % per_vector != 0 || s.cols == 0) return {};
  const auto plan = [&](int each, int64_t lanes, int groups, int cluster) {
    return HeldPlan{each, int(lanes), groups, cluster, kMaxBlocks / cluster * groups};
  };
  if (vectors <= kGroupVectors * kWarp) {
    int lanes = 1;
    while (lanes < vectors && lanes < kWarp) lanes *= 2;
    const int64_t each = divide_up(vectors, lanes);
    return plan(each > 2 ? kGroupVectors : int(each), lanes, kSmallBlock / lanes, 1);
  }
  for (int cluster = 1; cluster <= limits.max_cluster; cluster *= 2) {
    for (const int each : {cluster == 1 ? limits.vectors : limits.cluster_vectors,
                           cluster == 1 ? limits.long_vectors : limits.cluster_vectors}) {
      const int64_t lanes = divide_up(divide_up(vectors, int64_t{cluster} * each), kWarp) * kWarp;
      if (lanes <= kMaxLanes) return plan(each, lanes, 1, cluster);
    }
  }
  return {};
}

}  // namespace kernels
