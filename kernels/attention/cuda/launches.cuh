// What launches share: a problem as the kernels see it, and the order of its tiles.
#pragma once

#include <algorithm>

#include "kernels/attention/cuda/attention.h"
#include "kernels/attention/cuda/sequences.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tensor_map.h"

namespace attention::gpu {

// Dimensions of a tensor map: 0 to 3 are dim, row, head, batch. Packed sequences are one batch.
inline TensorShape shape_of(const Problem& p, const void* data, const Strides& strides, int64_t rows, int64_t heads,
                            int64_t dim) {
  return {.data = data,
          .size = {dim, rows, heads, p.query_starts != nullptr ? 1 : p.batch},
          .stride = {1, strides.row, strides.head, strides.batch},
          .dtype = p.dtype};
}
inline Strides contiguous(int64_t rows, int64_t heads, int64_t dim) { return {rows * heads * dim, heads * dim, dim}; }

// Windows of more keys than there can be are none. (refused() keeps rows below 2^29.)
inline int limit_of(int64_t side) { return side == kNoLimit ? -1 : int(std::min<int64_t>(side, 1 << 30)); }

inline Sequences sequences_of(const Problem& p) {
  return {.query_starts = p.query_starts,
          .key_starts = p.key_starts,
          .keys_used = p.keys_used,
          .batch = int(p.batch),
          .query_rows = int(p.query_rows),
          .key_rows = int(p.key_rows),
          .left = limit_of(p.window_left),
          .right = limit_of(p.window_right)};
}

constexpr int64_t kSectionBytes = 32 << 20;  // of keys and values that are in L2 together: a good half of its 50 MB

// Heads whose keys and values are in L2 together. Rows of unequal length want many heads a section (longest first),
// rows of equal length only those that share keys.
inline int section_heads(const Problem& p, int64_t heads, bool unequal) {
  const int64_t group = p.heads / p.key_heads;
  if (!unequal) return int(group);
  const int64_t of_head = std::max<int64_t>(1, p.key_rows * (p.dim + p.value_dim) * 2);
  return int(std::min(heads, std::max<int64_t>(1, kSectionBytes / of_head) * group));
}

// Heads whose queries, gradients and sums of dq are in L2 together, as of forward.
constexpr int64_t kKeySectionBytes = 40 << 20;
// Of a query row, for all heads of a group.
inline int64_t bytes_of_row(const Problem& p) {
  return p.heads / p.key_heads * ((p.dim + p.value_dim) * 2 + p.dim * 4);
}
inline int section_key_heads(const Problem& p, bool unequal) {
  const int64_t all = p.query_starts != nullptr ? p.key_heads : p.batch * p.key_heads;
  if (!unequal) return 1;
  return int(std::clamp<int64_t>(kKeySectionBytes / std::max<int64_t>(1, p.query_rows * bytes_of_row(p)), 1,
                                 std::max<int64_t>(1, all)));
}

}  // namespace attention::gpu
