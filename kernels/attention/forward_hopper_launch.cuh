// Launches of forward_hopper.cuh for one head dimension.
#pragma once

#include <algorithm>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/forward_hopper.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/tensor_map.h"

namespace attention::gpu {

// Dimensions of a tensor map: 0 to 3 are dim, row, head, batch. A tensor without elements has no map: it is never read
// then, so that any other one may stand in.
inline TensorShape shape_of(const Forward& a, const void* data, const Strides& strides, int64_t rows, int64_t heads,
                            int64_t dim) {
  if (rows == 0) return shape_of(a, a.q, a.q_strides, a.query_rows, a.heads, a.dim);
  return {.data = data,
          .size = {dim, rows, heads, a.batch},
          .stride = {1, strides.row, strides.head, strides.batch},
          .dtype = a.dtype};
}
inline Strides contiguous(int64_t rows, int64_t heads, int64_t dim) { return {rows * heads * dim, heads * dim, dim}; }

inline Band band_of(const Forward& a) {
  const int64_t n = a.key_rows - a.query_rows, all = a.key_rows + a.query_rows;
  const auto cut = [&](int64_t offset) { return int(std::clamp(offset, -all, all)); };
  return {.before = a.window_left == kNoLimit ? cut(-all) : cut(n - std::min(a.window_left, all)),
          .after = a.window_right == kNoLimit ? cut(all) : cut(n + std::min(a.window_right, all) + 1),
          .keys = int(a.key_rows)};
}

// Heads whose keys and values are in L2 together: a good half of its 50 MB. Rows of unequal length want many heads a
// section (longest first), rows of equal length only those that share keys.
inline int section_heads(const Forward& a, bool last_rows_first) {
  constexpr int64_t kBytes = 32 << 20;
  const int64_t group = a.heads / a.key_heads, all = a.batch * a.heads;
  if (!last_rows_first) return int(group);
  const int64_t of_head = std::max<int64_t>(1, a.key_rows * (a.dim + a.value_dim) * 2);
  return int(std::min(all, std::max<int64_t>(1, kBytes / of_head) * group));
}

template <class F>
void launch_forward(const Forward& a, int* counter, Stream stream) {
  const Band band = band_of(a);
  const bool last_rows_first = a.window_right != kNoLimit && !F::kLeft;
  const int64_t row_tiles = divide_up(a.query_rows, F::kRows), tiles = row_tiles * a.batch * a.heads;
  const int64_t blocks = std::min<int64_t>(tiles, multiprocessors());
  if (blocks < tiles) checked(cudaMemsetAsync(counter, 0, sizeof(int), static_cast<cudaStream_t>(stream)), "counter");
  const ForwardArguments arguments{
      .q = tensor_map(shape_of(a, a.q, a.q_strides, a.query_rows, a.heads, a.dim), F::kRows),
      .k = tensor_map(shape_of(a, a.k, a.k_strides, a.key_rows, a.key_heads, a.dim), F::kKeys),
      .v = tensor_map(shape_of(a, a.v, a.v_strides, a.key_rows, a.key_heads, a.value_dim), F::kKeys),
      .out = tensor_map(
          shape_of(a, a.out, contiguous(a.query_rows, a.heads, a.value_dim), a.query_rows, a.heads, a.value_dim), 64),
      .lse = a.lse,
      .sinks = a.sinks,
      .counter = blocks < tiles ? counter : nullptr,
      .order = {.tiles = int(tiles),
                .row_tiles = int(row_tiles),
                .heads = int(a.batch * a.heads),
                .section_heads = section_heads(a, last_rows_first),
                .last_rows_first = last_rows_first},
      .band = band,
      .query_rows = int(a.query_rows),
      .heads = int(a.heads),
      .group = int(a.heads / a.key_heads),
      .score_scale = (F::kSoftcap ? a.softcap : a.scale) * kLog2e,
      .cap_scale = F::kSoftcap ? a.scale / a.softcap : 0.f,
  };
  launch_with_memory<&forward_kernel<F>>(sizeof(ForwardMemory<F>) + 1024, blocks, F::kThreads, stream, arguments);
}

// The kernel for the number type and the softcap. kLeft: rows have a left end.
template <int kDim, int kKeys, int kWorkers, bool kLeft>
void forward_ending(const Forward& a, int* counter, Stream stream) {
  const auto with_number = [&]<class T>() {
    if (a.softcap > 0)
      launch_forward<ForwardTraits<T, kDim, kKeys, kWorkers, kLeft, true>>(a, counter, stream);
    else
      launch_forward<ForwardTraits<T, kDim, kKeys, kWorkers, kLeft, false>>(a, counter, stream);
  };
  a.dtype == DType::kBFloat16 ? with_number.template operator()<BFloat16>() : with_number.template operator()<Half>();
}
template <int kDim, int kKeys, int kWorkers>
void forward_any(const Forward& a, int* counter, Stream stream) {
  if (a.window_left != kNoLimit) return forward_ending<kDim, kKeys, kWorkers, true>(a, counter, stream);
  forward_ending<kDim, kKeys, kWorkers, false>(a, counter, stream);
}

}  // namespace attention::gpu
