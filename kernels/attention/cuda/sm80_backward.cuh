// Attention backward of every GPU from sm_80 on, for what the sm_90a kernels do not take: without sums in memory, so
// that all gradients have the same bits at each call. dq is a kernel whose blocks stay with some query rows and walk
// over the keys that they see; dk and dv one whose blocks stay with some keys and walk over the rows that see them, of
// all query heads of the group. Scores and dp are so computed twice: seven products instead of five.
//
// Both are one kernel. A block's own rows, and the others, tile by tile, come in pairs: q and dout, k and v.
//   scores = own first . other first        dp = own second . other second
//   dq or dk = dx * other first             dv = p * other second
#pragma once

#include "kernels/attention/cuda/sm80_forward.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"

namespace attention::gpu {

// kKeysStay: own rows are keys. kFirst: sums dq or dk, kSecond: sums dv; both where registers hold both. Of heads of
// more than kMaxColumns elements a block computes a part of so many.
template <class Number, int kDim_, int kValueDim_, int kWarps_, int kBands_, int kOther_, bool kKeysStay_, bool kFirst_,
          bool kSecond_>
struct MmaBackwardTraits {
  using T = Number;
  static constexpr int kDim = kDim_, kValueDim = kValueDim_, kBands = kBands_, kOther = kOther_, kMaxColumns = 256;
  static constexpr bool kKeysStay = kKeysStay_, kFirst = kFirst_, kSecond = kSecond_;
  static constexpr int kThreads = 32 * kWarps_, kOwn = 16 * kBands * kWarps_;
  static constexpr int kParts = kDim > kMaxColumns ? kDim / kMaxColumns : 1;
  static constexpr int kFirstColumns = kDim / kParts, kSecondColumns = kParts == 1 ? kValueDim : kFirstColumns;
};

struct MmaBackwardArguments {
  RowsInMemory q, dout, k, v;
  void *first, *second;      // dq or dk; dv
  const float *lse, *delta;  // as forward's lse; in exponents of two, infinity where a row sees nothing
  MmaScores scores;
  Sequences sequences;
  TileOrder order;
  int heads, key_heads, group, dim, value_dim, chunk;
  float scale;
};

template <class B>
struct MmaBackwardMemory {
  uint16_t own_first[B::kOwn][B::kDim];
  uint16_t own_second[B::kFirst ? B::kOwn : 1][B::kValueDim];
  uint16_t first[B::kOther][B::kDim];
  uint16_t second[B::kOther][B::kValueDim];
  float lse[2][B::kOther], delta[2][B::kOther];  // of the other rows, where these are queries: step i has number i % 2
};

// A block's rows, and where the other ones lie.
template <class B>
struct MmaBackwardJob {
  Sequence s;
  VisibleRange visible;
  int number, first, rows, head;  // head: of the own rows
  KeyTiles tiles;

  __device__ __forceinline__ MmaBackwardJob(const MmaBackwardArguments& a, int index) {
    const Tile tile = tile_at(a.order, index);
    const int heads = B::kKeysStay ? a.key_heads : a.heads;
    int own_tile = tile.row_tile;
    number = tile.head / heads, head = tile.head % heads;
    if (a.sequences.packed())
      number = B::kKeysStay ? a.sequences.find_keys(B::kOwn, tile.row_tile, own_tile)
                            : a.sequences.find_queries(B::kOwn, tile.row_tile, own_tile);
    s = a.sequences.at(number, B::kOwn);
    visible = {s.band, s.query_rows, a.chunk};
    first = own_tile * B::kOwn;
    rows = min(B::kOwn, (B::kKeysStay ? s.key_rows : s.query_rows) - first);
    // Keys that are there but not used: their gradients are zeros, and nobody sees them.
    const int last = min(first + rows, B::kKeysStay ? s.band.keys : s.query_rows) - 1;
    tiles = last < first ? KeyTiles{0, 0, 0, 0} : tiles_of(seen_by(first), seen_by(last), B::kOther);
  }
  __device__ __forceinline__ Span seen_by(int own) const {
    return B::kKeysStay ? visible.rows_of(own) : visible.keys_of(own);
  }
  // Own rows that have gradients other than zeros.
  __device__ __forceinline__ int used_rows() const { return B::kKeysStay ? min(rows, s.band.keys - first) : rows; }
};

// p of one band and, where kFirst, dx: of its scores and of dp. lse, delta: of the own two rows, or of the others.
template <class B>
struct MmaGradients {
  const MmaBackwardArguments& a;
  const MmaBackwardJob<B>& job;
  float slope;

  // own, other: the thread's first row and column.
  __device__ __forceinline__ void compute(float (&s)[B::kOther / 2], float (&dp)[B::kOther / 2], int own, int other,
                                          bool masked, const float (&own_lse)[2], const float (&own_delta)[2],
                                          const float* lse, const float* delta) const {
    if (a.scores.cap_scale > 0) {
#pragma unroll
      for (float& f : s) f = tanh_approx(f * a.scores.cap_scale);
    }
    Span seen[2];
    if (masked) seen[0] = job.seen_by(own), seen[1] = job.seen_by(own + 8);
    const int ahead = B::kKeysStay ? -job.visible.ahead() : job.visible.ahead();
#pragma unroll
    for (int i = 0; i < B::kOther / 2; ++i) {
      const int r = i / 2 % 2;
      const float y = s[i];
      float x = y;
      if (a.scores.slopes != nullptr) x -= slope * fabsf(float(own + 8 * r + ahead - other - column_of(i)));
      float p = exp2_approx(x * a.scores.scale - (B::kKeysStay ? lse[column_of(i)] : own_lse[r]));
      if (masked && (other + column_of(i) < seen[r].first || other + column_of(i) >= seen[r].end)) p = 0.f;
      if constexpr (B::kFirst) {
        float dx = p * (dp[i] - (B::kKeysStay ? delta[column_of(i)] : own_delta[r]));
        if (a.scores.cap_scale > 0) dx *= 1.f - y * y;
        dp[i] = dx;
      }
      s[i] = p;
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 2) mma_backward_kernel(const __grid_constant__ MmaBackwardArguments a) {
#if __CUDA_ARCH__ >= 800  // elsewhere it is never launched

  // ---- prologue: the rows that stay in this block, and those that pass
  using T = typename B::T;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& m = *reinterpret_cast<MmaBackwardMemory<B>*>(raw);
  const int part = int(blockIdx.x) % B::kParts;
  const MmaBackwardJob<B> job(a, int(blockIdx.x) / B::kParts);
  const Sequence& s = job.s;
  if (job.rows <= 0) return;
  const RowsInMemory &own_first = B::kKeysStay ? a.k : a.q, &own_second = B::kKeysStay ? a.v : a.dout;
  const RowsInMemory &first = B::kKeysStay ? a.q : a.k, &second = B::kKeysStay ? a.dout : a.v;
  const int own_row = B::kKeysStay ? s.key_row : s.query_row, other_row = B::kKeysStay ? s.query_row : s.key_row;
  const int others = B::kKeysStay ? s.query_rows : s.band.keys, used = job.used_rows();
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * (16 * B::kBands);

  // ---- producer: tiles of the rows that pass
  // Tiles of the others: of each head of the group one after the other. Each pair comes in two parts, of which `early`
  // is what the next step multiplies first.
  int head = B::kKeysStay ? job.head * a.group : job.head / a.group, t = job.tiles.first;
  const auto statistics_at = [&](int query_head) {
    return (int64_t{s.batch} * a.heads + query_head) * a.sequences.query_rows + s.query_row;
  };
  const auto start_first = [&](int h, int t) {
    start_rows<B::kThreads>(m.first, first.at<T>(s.batch, other_row + t * B::kOther, h), first.row,
                            others - t * B::kOther, a.dim);
  };
  const auto start_second = [&](int h, int t) {
    start_rows<B::kThreads>(m.second, second.at<T>(s.batch, other_row + t * B::kOther, h), second.row,
                            others - t * B::kOther, a.value_dim);
  };
  const auto start_early = [&](int h, int t, int stage) {
    B::kFirst ? start_second(h, t) : start_first(h, t);
    if (B::kKeysStay && threadIdx.x < B::kOther) {
      const int row = t * B::kOther + int(threadIdx.x);
      const int64_t at = statistics_at(h) + row;
      cp_async<4>(&m.lse[stage][threadIdx.x], a.lse + at, row >= others);
      cp_async<4>(&m.delta[stage][threadIdx.x], a.delta + at, row >= others);
    }
    cp_async_commit();
  };

  // ---- prologue: the first copies; log-sum-exp and delta of the rows that stay
  const int heads_end = B::kKeysStay ? head + a.group : head + 1;
  bool more = t < job.tiles.end && head < heads_end;
  start_rows<B::kThreads>(m.own_first, own_first.at<T>(s.batch, own_row + job.first, job.head), own_first.row, used,
                          a.dim);
  if constexpr (B::kFirst)
    start_rows<B::kThreads>(m.own_second, own_second.at<T>(s.batch, own_row + job.first, job.head), own_second.row,
                            used, a.value_dim);
  cp_async_commit();  // also where no step follows: they may not come behind what is stored by way of the same memory
  if (more) start_early(head, t, 0);

  float own_lse[B::kBands][2] = {}, own_delta[B::kBands][2] = {};
  if constexpr (!B::kKeysStay) {
#pragma unroll
    for (int i = 0; i < 2 * B::kBands; ++i) {
      const int row = warp_row + lane / 4 + 8 * i;
      const int64_t at = statistics_at(job.head) + job.first + row;
      own_lse[i / 2][i % 2] = row < job.rows ? a.lse[at] : INFINITY;
      own_delta[i / 2][i % 2] = row < job.rows ? a.delta[at] : 0.f;
    }
  }
  float sum_first[B::kBands][B::kFirst ? B::kFirstColumns / 2 : 1] = {};
  float sum_second[B::kBands][B::kSecond ? B::kSecondColumns / 2 : 1] = {};

  // ---- main loop: scores and dp of a tile, their gradients, the sums
  for (int i = 0; more; ++i) {
    const bool last_tile = t + 1 == job.tiles.end;
    const int next_head = last_tile ? head + 1 : head, next_t = last_tile ? job.tiles.first : t + 1;
    more = next_head < heads_end;
    const auto start_next = [&] {
      if (more) start_early(next_head, next_t, (i + 1) % 2);
    };
    float scores[B::kBands][B::kOther / 2] = {}, dp[B::kBands][B::kOther / 2] = {};
    cp_async_wait<0>();
    __syncthreads();
    B::kFirst ? start_first(head, t) : start_second(head, t);
    cp_async_commit();
    if constexpr (B::kFirst)
      add_by_rows<T>(dp, m.own_second, warp_row, m.second);
    else
      add_by_rows<T>(scores, m.own_first, warp_row, m.first);
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (!(B::kFirst && B::kSecond)) start_next();
    if constexpr (B::kFirst) add_by_rows<T>(scores, m.own_first, warp_row, m.first);

    const MmaGradients<B> gradients{a, job, a.scores.slope(a.sequences, job.number, B::kKeysStay ? head : job.head)};
    const bool masked = t < job.tiles.first_whole || t >= job.tiles.end_whole;
#pragma unroll
    for (int b = 0; b < B::kBands; ++b)
      gradients.compute(scores[b], dp[b], job.first + warp_row + 16 * b + lane / 4, t * B::kOther + lane % 4 * 2,
                        masked, own_lse[b], own_delta[b], m.lse[i % 2] + lane % 4 * 2, m.delta[i % 2] + lane % 4 * 2);
    uint32_t rounded[B::kBands][B::kOther / 16][4];
    if constexpr (B::kSecond) {
      round_sums<T>(rounded, scores);
      add_by_columns<T, B::kSecondColumns>(sum_second, rounded, m.second, part * B::kSecondColumns);
    }
    if constexpr (B::kFirst && B::kSecond) {
      __syncthreads();
      start_next();
    }
    if constexpr (B::kFirst) {
      round_sums<T>(rounded, dp);
      add_by_columns<T, B::kFirstColumns>(sum_first, rounded, m.first, part * B::kFirstColumns);
    }
    head = next_head, t = next_t;
  }
  cp_async_wait<0>();
  __syncthreads();

  // ---- epilogue: the sums are scaled and stored
  const int64_t row = int64_t{s.batch} * (B::kKeysStay ? a.sequences.key_rows : a.sequences.query_rows) + own_row +
                      job.first + warp_row;
  const int out_heads = B::kKeysStay ? a.key_heads : a.heads;
  const auto store = [&](const auto& sum, void* to, int dim, int first_column, float scale) {
    float factor[B::kBands][2];
#pragma unroll
    for (int i = 0; i < 2 * B::kBands; ++i) factor[i / 2][i % 2] = warp_row + lane / 4 + 8 * i < used ? scale : 0.f;
    store_sums(sum, factor, m.own_first, warp_row,
               static_cast<T*>(to) + (row * out_heads + job.head) * dim + first_column, int64_t{out_heads} * dim,
               job.rows - warp_row, dim - first_column);
  };
  if constexpr (B::kFirst) store(sum_first, a.first, a.dim, part * B::kFirstColumns, a.scale);
  if constexpr (B::kSecond) store(sum_second, a.second, a.value_dim, part * B::kSecondColumns, 1.f);
#endif
}

}  // namespace attention::gpu
