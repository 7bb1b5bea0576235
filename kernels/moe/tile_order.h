// In which order a block's tiles of one expert come: `together` tiles of rows have the same columns one after the
// other. 1: all columns of a tile of rows first.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MOE_HOST_DEVICE __host__ __device__
#else
#define MOE_HOST_DEVICE
#endif

namespace moe {

struct TilePlace {
  int row, col;
};
MOE_HOST_DEVICE inline TilePlace place_of(int tile, int row_tiles, int col_tiles, int together) {
  const int group = tile / (together * col_tiles), in_group = tile - group * together * col_tiles;
  const int left = row_tiles - group * together, rows = left < together ? left : together;  // of this group
  const int col = in_group / rows;
  return {group * together + in_group - col * rows, col};
}

// Weights larger than L2 are read from memory for each turn through the columns: few turns. Those that L2 holds are
// read once in either order, and by inputs they come faster in whole rows (docs/notes/moe.md).
inline int tiles_together(bool by_inputs, int64_t weight_bytes) {
  constexpr int64_t kHeld = int64_t{48} << 20;
  return by_inputs && weight_bytes <= kHeld ? 1 : 16;
}

}  // namespace moe
