// The order of packed sequences in the sm_90a kernels: the longest first, so that the last tiles to start are short
// ones. Their lengths are on the GPU alone, and so a kernel before sorts them.
//
// By sequences, not by tiles: what a sequence's tiles read is in L2 while they follow one another.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/cuda/sequences.cuh"
#include "kernels/common/gpu/launch.h"

namespace attention::gpu {

// In the work space: how many tiles were asked for (0 at first), how many there are of a head, then of each sequence in
// its order, what lies behind the last one among them, the tiles before it and its number.
struct SequenceOrder {
  int* data;  // or null: sequences are not packed
  int sequences;

  static int64_t bytes(int64_t batch) { return (2 + 2 * (batch + 1)) * int64_t{sizeof(int)}; }
  __device__ __forceinline__ int* claimed() const { return data; }
  __device__ __forceinline__ int& tiles() const { return data[1]; }
  __device__ __forceinline__ int* before() const { return data + 2; }
  __device__ __forceinline__ int* number() const { return data + 2 + sequences; }

  // Tile `index` of all heads, in tiles of `height` of each sequence's rows. found(number) looks at the sequence and
  // tells its rows; section_heads() how many of its heads go together. All lanes of a warp.
  template <class Found, class SectionHeads>
  __device__ __forceinline__ Tile find(int index, int heads, int height, bool last_rows_first, const Found& found,
                                       const SectionHeads& section_heads) const {
    const int place = last_at_or_before(sequences, index / heads, [&](int i) { return before()[i]; });
    const int row_tiles = (found(number()[place]) + height - 1) / height;
    const int section = max(1, min(heads, section_heads()));
    return tile_at({row_tiles * heads, row_tiles, heads, section, last_rows_first, 0}, index - before()[place] * heads);
  }
};

// For tiles of `height` query rows, which go over tiles of `width` keys, or the other way round.
void order_by_queries(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream);
void order_by_keys(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream);

}  // namespace attention::gpu
