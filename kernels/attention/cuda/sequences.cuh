// Where the sequences of a batch lie: of equal length, or packed one after the other (attention.h).
#pragma once

#include "kernels/attention/cuda/tiles.h"
#include "kernels/common/gpu/device.cuh"

namespace attention::gpu {

using namespace kernels;
using namespace kernels::gpu;

// The last i of [0, size) with at(i) <= value, where at grows and at(0) <= value. All lanes of a warp.
template <class At>
__device__ __forceinline__ int last_at_or_before(int size, int value, const At& at) {
  int low = 0, end = size;  // the answer is in [low, end)
  while (end - low > 1) {
    const int step = (end - low + 31) / 32, i = low + int(threadIdx.x % 32) * step;
    const bool before = i < end && at(i) <= value;
    low += (__popc(__ballot_sync(kAllLanes, before)) - 1) * step;
    end = min(end, low + step);
  }
  return low;
}

struct Sequence {
  int batch;  // index of the tensors' last dimension: 0 where packed
  int query_row, query_rows, key_row, key_rows;
  int first_query_slot;
  Band band;  // of its keys those that are used; -1: what lies behind the last sequence
};

struct Sequences {
  const int32_t *query_starts, *key_starts, *keys_used;  // null: all have query_rows and key_rows
  int batch, query_rows, key_rows;                       // packed: of all together
  int left, right;

  __device__ __forceinline__ bool packed() const { return query_starts != nullptr; }

  // Number b; `batch`: what lies behind the last one of packed sequences. Query rows there see nothing.
  __device__ __forceinline__ Sequence at(int b, int query_tile_rows) const {
    if (!packed()) {
      const int tiles = (query_rows + query_tile_rows - 1) / query_tile_rows;
      return {b, 0, query_rows, 0, key_rows, b * tiles, band_of(query_rows, key_rows, left, right)};
    }
    Sequence s{0, query_starts[b], 0, key_starts[b], 0, 0, {}};
    s.query_rows = (b < batch ? query_starts[b + 1] : query_rows) - s.query_row;
    s.key_rows = (b < batch ? key_starts[b + 1] : key_rows) - s.key_row;
    s.first_query_slot = s.query_row / query_tile_rows + b;
    int used = b < batch ? s.key_rows : -1;
    if (b < batch && keys_used != nullptr) used = max(0, min(used, keys_used[b]));
    s.band = band_of(s.query_rows, used, left, right);
    return s;
  }

  // Which sequence the slot of a tile of `height` rows belongs to, and which of its tiles it is. All lanes of a warp.
  __device__ __forceinline__ int find(const int32_t* starts, int rows, int height, int slot, int& tile) const {
    if (!packed()) {
      const int tiles = (rows + height - 1) / height, b = slot / tiles;
      tile = slot - b * tiles;
      return b;
    }
    const int b = last_at_or_before(batch + 1, slot, [&](int i) { return starts[i] / height + i; });
    tile = slot - (starts[b] / height + b);
    return b;
  }
  __device__ __forceinline__ int find_queries(int height, int slot, int& tile) const {
    return find(query_starts, query_rows, height, slot, tile);
  }
  __device__ __forceinline__ int find_keys(int height, int slot, int& tile) const {
    return find(key_starts, key_rows, height, slot, tile);
  }
};

}  // namespace attention::gpu
