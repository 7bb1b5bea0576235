// Attention forward of every GPU from sm_80 on, for what the sm_90a kernels do not take. A block has some query rows of
// one head, 16 or 32 a warp, and walks over the keys that they see. Values are on their way while scores are
// multiplied, the next keys while values are; two blocks a multiprocessor do the rest.
#pragma once

#include "kernels/attention/cuda/sequences.cuh"
#include "kernels/attention/cuda/sm80_tiles.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"

namespace attention::gpu {

// kDim, kValueDim: multiples of 64; the rest of a smaller head is zeros. Wider values are computed in parts of
// kValueDim elements, by blocks of their own that compute the same weights again.
template <class Number, int kDim_, int kValueDim_, int kWarps_, int kBands_, int kKeys_>
struct MmaForwardTraits {
  using T = Number;
  static constexpr int kDim = kDim_, kValueDim = kValueDim_, kBands = kBands_, kKeys = kKeys_;
  static constexpr int kThreads = 32 * kWarps_, kRows = 16 * kBands * kWarps_;
};

// What becomes of a score before it is an exponent, but for masks.
struct MmaScores {
  float scale;          // of scores, in exponents of two; with softcap of tanh's
  float cap_scale;      // of scores in tanh; 0: no softcap
  const float* slopes;  // [heads] or [sequences, heads], or null
  int64_t slopes_batch;

  // In what is multiplied by `scale`.
  __device__ __forceinline__ float slope(const Sequences& sequences, int number, int head) const {
    if (slopes == nullptr || number >= sequences.batch) return 0.f;
    return slopes[number * slopes_batch + head] * kLog2e / scale;
  }
};

struct MmaForwardArguments {
  RowsInMemory q, k, v;
  void* out;
  float* lse;  // or null
  const float* sinks;
  MmaScores scores;
  Sequences sequences;
  TileOrder order;
  int heads, group, dim, value_dim, value_parts, chunk;
};

template <class F>
struct MmaForwardMemory {
  uint16_t q[F::kRows][F::kDim];
  uint16_t k[F::kKeys][F::kDim];
  uint16_t v[F::kKeys][F::kValueDim];
};

// Two rows' scores of one band, whose first row is `row` and first key `key`: tanh, slopes, and where masked -infinity.
template <int N>
__device__ __forceinline__ void finish_scores(float (&s)[N], const MmaScores& scores, float slope,
                                              const VisibleRange& visible, int row, int key, bool masked) {
  if (scores.cap_scale > 0) {
#pragma unroll
    for (float& f : s) f = tanh_approx(f * scores.cap_scale);
  }
  if (scores.slopes != nullptr) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      s[i] -= slope * fabsf(float(row + i / 2 % 2 * 8 + visible.ahead() - key - column_of(i)));
  }
  if (!masked) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Span seen = visible.keys_of(row + 8 * r);
    const int before = seen.first - key, after = seen.end - key;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i / 2 % 2 == r && (column_of(i) < before || column_of(i) >= after)) s[i] = -INFINITY;
  }
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, 2) mma_forward_kernel(const __grid_constant__ MmaForwardArguments a) {
#if __CUDA_ARCH__ >= 800  // elsewhere it is never launched
  using T = typename F::T;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& m = *reinterpret_cast<MmaForwardMemory<F>*>(raw);
  const int part = int(blockIdx.x) % a.value_parts;
  const Tile tile = tile_at(a.order, int(blockIdx.x) / a.value_parts);
  int number = tile.head / a.heads, row_tile = tile.row_tile;
  if (a.sequences.packed()) number = a.sequences.find_queries(F::kRows, tile.row_tile, row_tile);
  const Sequence s = a.sequences.at(number, F::kRows);
  const VisibleRange visible{s.band, s.query_rows, a.chunk};
  const int first = row_tile * F::kRows, rows = min(F::kRows, s.query_rows - first), head = tile.head % a.heads;
  if (rows <= 0) return;
  const KeyTiles tiles = tiles_of(visible.keys_of(first), visible.keys_of(first + rows - 1), F::kKeys);

  const T* k = a.k.at<T>(s.batch, s.key_row, head / a.group);
  const T* v = a.v.at<T>(s.batch, s.key_row, head / a.group) + part * F::kValueDim;
  const auto start_keys = [&](int t) {
    if (t < tiles.end)
      start_rows<F::kThreads>(m.k, k + int64_t{t} * F::kKeys * a.k.row, a.k.row, s.band.keys - t * F::kKeys, a.dim);
    cp_async_commit();
  };
  start_rows<F::kThreads>(m.q, a.q.at<T>(s.batch, s.query_row + first, head), a.q.row, rows, a.dim);
  start_keys(tiles.first);

  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * (16 * F::kBands);
  const float slope = a.scores.slope(a.sequences, number, head);
  float out[F::kBands][F::kValueDim / 2] = {};
  RowSoftmax softmax[F::kBands];
#pragma unroll
  for (RowSoftmax& band : softmax) band = RowSoftmax(a.scores.scale);

  for (int t = tiles.first; t < tiles.end; ++t) {
    cp_async_wait<0>();
    __syncthreads();
    start_rows<F::kThreads>(m.v, v + int64_t{t} * F::kKeys * a.v.row, a.v.row, s.band.keys - t * F::kKeys,
                            a.value_dim - part * F::kValueDim);
    cp_async_commit();
    float scores[F::kBands][F::kKeys / 2] = {};
    add_by_rows<T>(scores, m.q, warp_row, m.k);
    cp_async_wait<0>();
    __syncthreads();
    start_keys(t + 1);
    const bool masked = t < tiles.first_whole || t >= tiles.end_whole;
#pragma unroll
    for (int b = 0; b < F::kBands; ++b) {
      finish_scores(scores[b], a.scores, slope, visible, first + warp_row + 16 * b + lane / 4,
                    t * F::kKeys + lane % 4 * 2, masked);
      float shrink[2];
      softmax[b].add(scores[b], shrink);
      if (__any_sync(kAllLanes, shrink[0] != 1.f || shrink[1] != 1.f)) {
#pragma unroll
        for (int i = 0; i < F::kValueDim / 2; ++i) out[b][i] *= shrink[i / 2 % 2];
      }
    }
    uint32_t p[F::kBands][F::kKeys / 16][4];
    round_sums<T>(p, scores);
    add_by_columns<T, F::kValueDim>(out, p, m.v, 0);
  }
  cp_async_wait<0>();
  __syncthreads();

  const float* sink = a.sinks == nullptr || s.band.keys < 0 ? nullptr : a.sinks + head;
  float factor[F::kBands][2];
#pragma unroll
  for (int b = 0; b < F::kBands; ++b) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float lse;
      softmax[b].finish(r, sink, factor[b][r], lse);
      const int row = warp_row + 16 * b + lane / 4 + 8 * r;
      if (a.lse != nullptr && part == 0 && lane % 4 == 0 && row < rows)
        a.lse[(int64_t{s.batch} * a.heads + head) * a.sequences.query_rows + s.query_row + first + row] = lse;
    }
  }
  const int64_t row = int64_t{s.batch} * a.sequences.query_rows + s.query_row + first + warp_row;
  store_sums(out, factor, m.q, warp_row,
             static_cast<T*>(a.out) + (row * a.heads + head) * a.value_dim + part * F::kValueDim,
             int64_t{a.heads} * a.value_dim, rows - warp_row, a.value_dim - part * F::kValueDim);
#endif
}

}  // namespace attention::gpu
