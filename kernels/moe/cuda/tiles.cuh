// Which tile of a grouped product a block has. Tiles of kRows slots each begin again with every expert, so that there
// are at most S / kRows + min(E, S) of them, whatever the routing; how many there are the device alone knows.
#pragma once

#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.h"

namespace moe::gpu {

struct RowTile {
  int expert, slot, end;  // slots [slot, end) of an expert, no more than kRows of them count; expert -1: past the last
};

// By a whole warp, the same in each lane.
template <int kRows>
__device__ __forceinline__ RowTile find_row_tile(const int32_t* offsets, int experts, int tile) {
  using kernels::gpu::kAllLanes;
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int expert = first + lane;
    const int begin = expert < experts ? offsets[expert] : 0, end = expert < experts ? offsets[expert + 1] : 0;
    const int own = (end - begin + kRows - 1) / kRows;
    int sum = own;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, o);
      if (lane >= o) sum += other;
    }
    const unsigned found = __ballot_sync(kAllLanes, before + sum > tile);
    if (found != 0) {
      const int at = __ffs(found) - 1, slot = begin + (tile - (before + sum - own)) * kRows;
      return {first + at, __shfl_sync(kAllLanes, slot, at), __shfl_sync(kAllLanes, end, at)};
    }
    before += __shfl_sync(kAllLanes, sum, 31);
  }
  return {-1, 0, 0};
}

inline int64_t max_row_tiles(int64_t slots, int64_t experts, int64_t rows) {
  return slots / rows + std::min(experts, slots);
}

}  // namespace moe::gpu
