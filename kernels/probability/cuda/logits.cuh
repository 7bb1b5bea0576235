// Divergences of the softmax of logits, whose gradients take their place, with both rows on the chip: long ones
// streamed through clusters (streamed_rows.cuh), short ones held in registers (held_rows.cuh).
//
// A row takes three steps: the states of both softmaxes; terms, slopes and probabilities, which stay in registers; the
// gradients. Between them the threads of a row have to know each other's sums. In the stream steps of neighbouring rows
// take turns so that one exchange a row is enough: it carries the sums of row i and the states of row i + 1, and while
// it is on its way the states of row i + 2 are made. All logarithms are to base 2.
#pragma once

#include <type_traits>

#include "kernels/common/gpu/reduce/max.cuh"
#include "kernels/common/gpu/tile/copy_async.cuh"
#include "kernels/common/gpu/tile/held_rows.cuh"
#include "kernels/common/gpu/tile/streamed_rows.cuh"
#include "kernels/probability/cuda/terms.cuh"

namespace probability::gpu {

constexpr int kLogitsDepth = 3, kLogitsElements = 32, kLogitsCluster = 16;  // elements: a thread's, of each row
constexpr int kLogitsFewThreads = 256;

using LogitsSums = SoftmaxSums<2, 2, Exp2>;  // then term and slope

// {max, sum} of vectors get(k): max over the warp's threads of a row, sum of this thread's. What is added up,
// 2^(z - top), goes to keep(k, i, power), too.
template <class T, int kVectors, class Get, class Top, class Keep>
__device__ __forceinline__ SoftmaxState<Exp2> state_of_logits(float scale, const Get& get, const Top& top_of,
                                                              const Keep& keep) {
  constexpr int N = kPerVector<T>;
  SoftmaxState<Exp2> state;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) state.max = fmaxf(state.max, max_of(get(k)));
  state.max = top_of(state.max) * scale;
  const float from = -finite_or_zero(state.max);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float f[N];
    unpack(get(k), f);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float power = exp2_of<sizeof(T) == 2>(fmaf(f[i], scale, from));
      state.sum += power;
      keep(k, i, power);
    }
  }
  return state;
}
// log2 softmax. In two parts an offset that a row's logits have in common costs no bits; logits of 16 bits have lost
// more of them than the sum of both does.
template <bool kCoarse>
struct LogSoftmax {
  float scale, top, log_total;

  __device__ __forceinline__ LogSoftmax(float scale, float top, float total)
      : scale(scale), top(top), log_total(log2f(total)) {
    if (kCoarse) this->top += log_total;
  }
  __device__ __forceinline__ float operator()(float z) const {
    return kCoarse ? fmaf(z, scale, -top) : fmaf(z, scale, -top) - log_total;
  }
};

// kThreads: of a block; 0: kLogitsFewThreads or fewer.
template <class T, Kind kKind, int kThreads>
__global__ void __launch_bounds__(kThreads > 0 ? kThreads : kLogitsFewThreads, kThreads > 0 ? 1 : 2)
    logits_streamed(const OfLogits a) {
  constexpr int N = kPerVector<T>, kVectors = kLogitsElements / N;
  constexpr bool kCoarse = sizeof(T) == 2;
  extern __shared__ uint4 logits_ring[];
  using Exchange = RowExchange<LogitsSums, true, 1, kLogitsCluster>;
  __shared__ typename Exchange::Memory memory;
  const int64_t step = gridDim.x / blocks_of_row<true>(), begin = blockIdx.x / blocks_of_row<true>();
  const StreamedRows<T, 2, kVectors, kLogitsDepth, kThreads> stream(logits_ring, a.cols / N, rank_in_row<true>());
  const auto fetch = [&](int64_t row, int slot) {
    const T *z = static_cast<const T*>(a.z) + row * a.z_stride,
            *target = static_cast<const T*>(a.target) + row * a.target_stride;
    stream.fetch(slot, row < a.rows, [&](int tensor, int k) { return (tensor == 0 ? z : target) + stream.element(k); });
  };
  const float scale = a.scale * kLog2E;
  const auto states = [&](LogitsSums& sums, int slot) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const SoftmaxState<Exp2> state = state_of_logits<T, kVectors>(
          scale, [&](int k) { return stream.get(slot, t, k); }, [](float top) { return warp_max_by_bits(top); },
          [](int, int, float) {});
      sums.v[2 * t] = state.max, sums.v[2 * t + 1] = warp_sum(state.sum);
    }
  };
  const bool writes = threadIdx.x % 32 == 0;
  const float unit = slope_unit<kKind>(a.beta) * a.scale;
  stream.begin(kLowestWord<T>);
  fetch(begin, 0);
  fetch(begin + step, 1);
  Exchange exchange(memory);
  Slopes<kVectors, N> kept;
  LogitsSums mine;
  copy_async_wait<1>();
  states(mine, 0);
  exchange.send(mine, writes);
  int slot = 0;
  const auto write = [&](int64_t row, const LogitsSums& all) {  // row's gradients and loss
    T* z = static_cast<T*>(a.z) + row * a.z_stride;
    const float level = -all.v[5] * unit;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N];
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = fmaf(kept.q[k][i], level, kept.slope[k][i] * unit);
      if (stream.has(k)) store_floats<N>(z + stream.element(k), f);
    }
    if (threadIdx.x == 0 && rank_in_row<true>() == 0) a.loss[row] = all.v[4] * kLog2;
  };
  for (int64_t row = begin; row < a.rows; row += step) {
    const int after = stream.next(slot);
    fetch(row + 2 * step, stream.next(after));
    copy_async_wait<1>();
    LogitsSums ahead;
    if (row + step < a.rows) states(ahead, after);
    const LogitsSums all = exchange.receive();
    if (row > begin) write(row - step, all);
    const LogSoftmax<kCoarse> of_z(scale, all.max(0), all.sum(0)), of_target(scale, all.max(1), all.sum(1));
    Pack<T, N> z, target;
    fill_slopes<kKind, kCoarse, true>(kept, a.beta, [&](int k, int i) {
      if (i == 0) z = stream.get(slot, 0, k), target = stream.get(slot, 1, k);
      const float x = of_z(element_of(z, i)), t = of_target(element_of(target, i));
      return OfBoth{t - x, exp2_of<kCoarse>(x), exp2_of<kCoarse>(t)};
    });
    ahead.v[4] = warp_sum(kept.terms), ahead.v[5] = warp_sum(kept.slopes);
    exchange.send(ahead, writes);
    slot = after;
  }
  const LogitsSums all = exchange.receive();
  if (begin < a.rows) write(begin + (a.rows - 1 - begin) / step * step, all);
  exchange.end();
}

template <class T, int kVectors, Hold kHold, Kind kKind>
__global__ void __launch_bounds__(held_threads(kHold), kHold == Hold::kGroups ? 4 : 1)
    logits_held(const OfLogits a, int lanes) {
  constexpr int N = kPerVector<T>;
  constexpr bool kCoarse = sizeof(T) == 2;
  __shared__ typename RowReduction<kHold>::Memory memory;
  const HeldPosition<T, kVectors, kHold> p(a.rows, a.cols, lanes);
  RowReduction<kHold> row(memory, lanes);
  const float scale = a.scale * kLog2E, unit = slope_unit<kKind>(a.beta) * a.scale;
  grid_dependency_wait();
  Pack<T, N> z[kVectors], target[kVectors];
  fetch_row<T>(z, a.z, a.z_stride, p, kLowestWord<T>);
  fetch_row<T>(target, a.target, a.target_stride, p, kLowestWord<T>);
  Slopes<kVectors, N> kept;  // first powers over the warp's tops, of z and target
  const auto state_of = [&](const Pack<T, N>(&v)[kVectors], float(&powers)[kVectors][N]) {
    return state_of_logits<T, kVectors>(
        scale, [&](int k) { return v[k]; },
        [&](float top) { return kHold == Hold::kGroups ? lanes_max(top, lanes) : warp_max(top); },
        [&](int k, int i, float power) { powers[k][i] = power; });
  };
  const SoftmaxState<Exp2> own[2] = {state_of(z, kept.q), state_of(target, kept.slope)};
  float top[2] = {own[0].max, own[1].max}, total[2], share[2];
  row.max(top);
#pragma unroll
  for (int t = 0; t < 2; ++t) share[t] = own[t].weight_at(top[t]), total[t] = own[t].sum * share[t];
  row.sum(total);
#pragma unroll
  for (int t = 0; t < 2; ++t) share[t] /= total[t];
  const LogSoftmax<kCoarse> of_z(scale, top[0], total[0]), of_target(scale, top[1], total[1]);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) force_reunpack(z[k]), force_reunpack(target[k]);
  fill_slopes<kKind, kCoarse, false>(kept, a.beta, [&](int k, int i) {
    const float apart = of_target(element_of(target[k], i)) - of_z(element_of(z[k], i));
    return OfBoth{apart, kept.q[k][i] * share[0], kept.slope[k][i] * share[1]};
  });
  float sums[2] = {kept.terms, kept.slopes};
  row.sum(sums);
  if (!p.has_row) return;
  if (p.lane == 0) a.loss[p.row] = sums[0] * kLog2;
  T* out = static_cast<T*>(a.z) + p.row * a.z_stride;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!p.has(k)) continue;
    float f[N];
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = fmaf(-kept.q[k][i], sums[1], kept.slope[k][i]) * unit;
    store_floats<N>(out + p.col(k), f);
  }
}

}  // namespace probability::gpu
