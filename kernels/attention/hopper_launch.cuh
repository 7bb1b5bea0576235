// What launches of the sm_90a kernels share: a problem as the kernels see it.
#pragma once

#include <algorithm>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/sequences.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/tensor_map.h"

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

}  // namespace attention::gpu
