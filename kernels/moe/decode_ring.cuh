// Units of work for a block, each of 16 rows of weights by up to 8 other rows. The block's warps share a unit along the
// sums: each takes every so many stretches of 256 bytes of the rows, so that the block reads 2 KB of a row at once,
// which memory likes. The weights come by cp.async through a ring of each warp's own in shared memory, ahead of the
// products and also from one unit to the next. As in products_few.cu weights are the left operand of mma, and a
// thread's eight neighbours along a sum are two steps of it.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/mma.cuh"

namespace moe::gpu {

using namespace kernels::gpu;

constexpr int kStretch = 128, kRingStages = 3, kRingWarps = 8;  // numbers of a stage's 16 rows

// A unit's rows 0 to 7 begin `low` numbers into the weights, 8 to 15 `high`, each `step` rows after the one before it.
struct RowsAt {
  int64_t low, high;
  int step, left;  // how many columns there are from the unit's first on
  bool both;       // rows 8 to 15 are other columns
};

// Odd rows have the halves of each 128 bytes exchanged: what a quarter of a warp reads lies in different banks.
template <class T>
struct WarpRing {
  T w[kRingStages][16][kStretch];
  static __device__ __forceinline__ int place(int row, int piece) { return (piece ^ row % 2 * 4) * 8; }
};

// Where a warp begins along a unit's sums: the stretches of all units are dealt to the warps in turn.
__device__ __forceinline__ int first_of(int unit, int in) {
  const int stretches = (in + kStretch - 1) / kStretch;
  return (threadIdx.x / 32 + (kRingWarps - unit * stretches % kRingWarps)) % kRingWarps * kStretch;
}

// What a warp copies next: lane l 16 bytes of rows l / 16, l / 16 + 2, ...
template <class T, class Walk>
struct Ahead {
  WarpRing<T>& ring;
  const T* weights;
  const int in, row = threadIdx.x % 32 / 16, piece = threadIdx.x % 16;
  Walk walk;
  const T* from[2];
  int64_t two_rows;
  int k, rows, stage = 0;  // rows: how many of the first 8 there are
  bool both;

  __device__ __forceinline__ Ahead(WarpRing<T>& r, const T* w, int inputs, const Walk& first)
      : ring(r), weights(w), in(inputs), walk(first) {
    begin();
  }
  __device__ __forceinline__ void begin() {
    for (; walk.left(); walk.next()) {
      k = first_of(walk.unit, in);
      if (k < in) break;  // else the warp has nothing of this unit
    }
    if (!walk.left()) return;
    const RowsAt at = walk.rows_at();
    from[0] = weights + at.low + int64_t{row} * at.step * in + piece * 8;
    from[1] = weights + at.high + int64_t{row} * at.step * in + piece * 8;
    two_rows = int64_t{2} * at.step * in;
    rows = at.left, both = at.both;
  }
  __device__ __forceinline__ void next() {
    if (walk.left()) {
      const bool inside = k + piece * 8 < in;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = row + i % 4 * 2;
        const bool zeros = !inside || r + (i >= 4 && both ? 8 : 0) >= rows;
        start_copy(&ring.w[stage][row + 2 * i][ring.place(row + 2 * i, piece)],
                   zeros ? weights : from[i / 4] + i % 4 * two_rows + k, zeros);
      }
      if ((k += kRingWarps * kStretch) >= in) walk.next(), begin();
    }
    commit_copies();
    if (++stage == kRingStages) stage = 0;
  }
};

// fn(unit, sums) for each of a block's units, by each warp with its part of the sums: sums[i] of row lane / 4 + i / 2 *
// 8 of the weights and row lane % 4 * 2 + i % 2 of the others. from(unit, row): where the latter lies, or null. wait():
// called once, before they are read. Walk: left(), next(), unit (their number in the block), rows_at().
template <class T, class Walk, class From, class Wait, class Fn>
__device__ __forceinline__ void stream(WarpRing<T>& ring, const T* weights, int in, Walk walk, const From& from,
                                       const Wait& wait, const Fn& fn) {
  constexpr int kEach = kStretch / 32;
  const int lane = threadIdx.x % 32, row = lane / 4, quarter = lane % 4;
  Ahead<T, Walk> ahead(ring, weights, in, walk);
#pragma unroll
  for (int i = 0; i < kRingStages - 1; ++i) ahead.next();
  wait();
  for (int at = 0; walk.left(); walk.next()) {
    const T* x = from(walk, row);  // null: no such row
    float sums[2][4] = {};
    for (int k0 = first_of(walk.unit, in); k0 < in; k0 += kRingWarps * kStretch) {
      uint4 v[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int k = k0 + 32 * i + quarter * 8;
        v[i] = x != nullptr && k < in ? *reinterpret_cast<const uint4*>(x + k) : make_uint4(0, 0, 0, 0);
      }
      wait_copies<kRingStages - 2>();
      __syncwarp();  // all lanes' copies are there, and the stage before is read
      ahead.next();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int place = ring.place(row, 4 * i + quarter);
        const uint4 low = *reinterpret_cast<const uint4*>(&ring.w[at][row][place]);
        const uint4 high = *reinterpret_cast<const uint4*>(&ring.w[at][row + 8][place]);
        multiply_16x8<T>(sums[0], {low.x, high.x, low.y, high.y}, v[i].x, v[i].y);
        multiply_16x8<T>(sums[1], {low.z, high.z, low.w, high.w}, v[i].z, v[i].w);
      }
      if (++at == kRingStages) at = 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[0][i] += sums[1][i];
    fn(walk, sums[0]);
  }
  wait_copies<0>();
}

}  // namespace moe::gpu
