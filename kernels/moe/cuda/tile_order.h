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

// Weights larger than L2 are read from memory for each turn through the columns: few turns. Others come once in any
// order (docs/notes/moe.md).
constexpr int kTilesTogether = 16;

}  // namespace moe
