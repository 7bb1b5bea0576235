// Launches of sm90_forward.cuh for one head dimension.
#pragma once

#include "kernels/attention/cuda/launches.cuh"
#include "kernels/attention/cuda/sm90_forward.cuh"

namespace attention::gpu {

// Tiles of rows that all begin at the first key: of a causal window its first ones.
inline int short_tiles(const Problem& p, int64_t row_tiles, int height) {
  if (p.window_right == kNoLimit) return 0;
  return int(std::clamp<int64_t>((p.window_left - (p.key_rows - p.query_rows)) / height, 0, row_tiles));
}

template <class F>
void launch_forward(const Forward& a, int* counter, Stream stream) {
  const Problem& p = a.problem;
  const bool packed = p.query_starts != nullptr, last_rows_first = p.window_right != kNoLimit && !F::kLeft;
  // Packed: at most so many.
  const int64_t row_tiles =
      packed ? slots_of(true, p.batch, p.query_rows, F::kRows) : divide_up(p.query_rows, F::kRows);
  const int64_t heads = packed ? p.heads : p.batch * p.heads, tiles = row_tiles * heads;
  const int64_t blocks = std::min<int64_t>(tiles, multiprocessors());
  const SequenceOrder order{packed ? counter : nullptr, int(p.batch) + 1};
  if (packed)
    order_by_queries(p, order, F::kRows, F::kKeys, stream);
  else if (blocks < tiles)
    checked(cudaMemsetAsync(counter, 0, sizeof(int), static_cast<cudaStream_t>(stream)), "counter");
  const int together = section_heads(p, heads, last_rows_first), group = int(p.heads / p.key_heads);
  const Sections sections = group == 1 ? equal_sections(int(heads), together) : Sections{together, 0};
  // A tensor without elements has no map: it is never read then, so that any other one may stand in.
  const TensorShape q = shape_of(p, a.q, a.q_strides, p.query_rows, p.heads, p.dim);
  const TensorShape k = shape_of(p, a.k, a.k_strides, p.key_rows, p.key_heads, p.dim);
  const TensorShape v = shape_of(p, a.v, a.v_strides, p.key_rows, p.key_heads, p.value_dim);
  const Strides out = contiguous(p.query_rows, p.heads, p.value_dim);
  const ForwardArguments arguments{
      .q = tensor_map(q, F::kRows),
      .k = tensor_map(p.key_rows == 0 ? q : k, F::kKeys),
      .v = tensor_map(p.key_rows == 0 ? q : v, F::kKeys),
      .out = tensor_map(shape_of(p, a.out, out, p.query_rows, p.heads, p.value_dim), 64),
      .lse = a.lse,
      .sinks = p.sinks,
      .counter = packed || blocks < tiles ? counter : nullptr,
      .order = {.tiles = int(tiles),
                .row_tiles = int(row_tiles),
                .heads = int(heads),
                .section_heads = sections.heads,
                .last_rows_first = last_rows_first,
                .short_tiles = F::kLeft && !packed ? short_tiles(p, row_tiles, F::kRows) : 0,
                .larger_sections = sections.larger},
      .sequences = sequences_of(p),
      .packed = order,
      .section_rows = int(kSectionBytes / ((p.dim + p.value_dim) * 2)),
      .heads = int(p.heads),
      .group = group,
      .value_dim = int(p.value_dim),
      .plain_out = a.out,
      .score_scale = (F::kSoftcap ? p.softcap : p.scale) * kLog2e,
      .cap_scale = F::kSoftcap ? p.scale / p.softcap : 0.f,
  };
  launch_with_memory<&forward_kernel<F>>(sizeof(ForwardMemory<F>) + 1024, blocks, F::kThreads, stream, arguments);
}

// The kernel for the number type and the softcap. kLeft: rows have a left end.
template <int kDim, int kValueDim, int kKeys, int kConsumers, bool kLeft>
void forward_ending(const Forward& a, int* counter, Stream stream) {
  const auto with_number = [&]<class T>() {
    if (a.problem.softcap > 0)
      launch_forward<ForwardTraits<T, kDim, kValueDim, kKeys, kConsumers, kLeft, true>>(a, counter, stream);
    else
      launch_forward<ForwardTraits<T, kDim, kValueDim, kKeys, kConsumers, kLeft, false>>(a, counter, stream);
  };
  a.problem.dtype == DType::kBFloat16 ? with_number.template operator()<BFloat16>()
                                      : with_number.template operator()<Half>();
}
template <int kDim, int kValueDim, int kKeys, int kConsumers>
void forward_any(const Forward& a, int* counter, Stream stream) {
  if (a.problem.window_left != kNoLimit)
    return forward_ending<kDim, kValueDim, kKeys, kConsumers, true>(a, counter, stream);
  forward_ending<kDim, kValueDim, kKeys, kConsumers, false>(a, counter, stream);
}

}  // namespace attention::gpu
