// The order of packed sequences in the sm_90a forward: the longest first, so that the last tiles to start are short ones.
// Their lengths are on the GPU alone, and so a kernel before the forward sorts them.
//
// By sequences, not by tiles: a sequence's keys are in L2 while its tiles follow one another.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/sequences.cuh"
#include "kernels/common/gpu/launch.h"

namespace attention::gpu {

// In the work space: how many tiles were asked for, how many there are of a head, then of each sequence in its order,
// what lies behind the last one among them, the tiles before it and its number.
struct SequenceOrder {
  int* data;  // or null: sequences are not packed
  int sequences;

  static int64_t bytes(int64_t batch) { return (2 + 2 * (batch + 1)) * int64_t{sizeof(int)}; }
  __device__ __forceinline__ int* asked() const { return data; }
  __device__ __forceinline__ int& tiles() const { return data[1]; }
  __device__ __forceinline__ int* before() const { return data + 2; }
  __device__ __forceinline__ int* number() const { return data + 2 + sequences; }

  // The place in the order of the sequence that has a head's tile `index`. All lanes of a warp.
  __device__ __forceinline__ int find(int index) const {
    return last_at_or_before(sequences, index, [&](int i) { return before()[i]; });
  }
};

// height, width: of tiles of rows and of keys.
void order_sequences(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream);

}  // namespace attention::gpu
