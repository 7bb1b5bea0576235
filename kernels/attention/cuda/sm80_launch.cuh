// Launches of the mma kernels for one size of heads.
#pragma once

#include "kernels/attention/cuda/launches.cuh"
#include "kernels/attention/cuda/sm80_backward.cuh"
#include "kernels/attention/cuda/sm80_delta.cuh"

namespace attention::gpu {

inline RowsInMemory rows_in_memory(const void* data, const Strides& s) { return {data, s.batch, s.row, s.head}; }

inline MmaScores scores_of(const Problem& p) {
  return {.scale = (p.softcap > 0 ? p.softcap : p.scale) * kLog2e,
          .cap_scale = p.softcap > 0 ? p.scale / p.softcap : 0.f,
          .slopes = p.slopes,
          .slopes_batch = p.slopes_batch_stride};
}
inline int chunk_of(const Problem& p) { return int(std::min<int64_t>(p.chunk, 1 << 30)); }

// Tiles of `height` rows of queries or keys, of so many heads a sequence.
inline TileOrder order_of(const Problem& p, int64_t rows, int64_t heads, int height) {
  const bool packed = p.query_starts != nullptr;
  const int64_t row_tiles = packed ? slots_of(true, p.batch, rows, height) : divide_up(rows, height);
  const int64_t all = packed ? heads : p.batch * heads;
  return {.tiles = int(row_tiles * all), .row_tiles = int(row_tiles), .heads = int(all), .section_heads = 1};
}

template <class F>
void launch_mma_forward(const Forward& a, Stream stream) {
  const Problem& p = a.problem;
  TileOrder order = order_of(p, p.query_rows, p.heads, F::kRows);
  order.last_rows_first = p.window_right != kNoLimit && p.window_left == kNoLimit;
  order.section_heads = section_heads(p, order.heads, order.last_rows_first);
  const int parts = int(divide_up(p.value_dim, F::kValueDim));
  const MmaForwardArguments arguments{.q = rows_in_memory(a.q, a.q_strides),
                                      .k = rows_in_memory(a.k, a.k_strides),
                                      .v = rows_in_memory(a.v, a.v_strides),
                                      .out = a.out,
                                      .lse = a.lse,
                                      .sinks = p.sinks,
                                      .scores = scores_of(p),
                                      .sequences = sequences_of(p),
                                      .order = order,
                                      .heads = int(p.heads),
                                      .group = int(p.heads / p.key_heads),
                                      .dim = int(p.dim),
                                      .value_dim = int(p.value_dim),
                                      .value_parts = parts,
                                      .chunk = chunk_of(p)};
  launch_with_memory<&mma_forward_kernel<F>>(sizeof(MmaForwardMemory<F>), int64_t{order.tiles} * parts, F::kThreads,
                                             stream, arguments);
}

// Where things are in the work space, in floats.
struct MmaBackwardSpace {
  int64_t row_tiles, slots, rows, floats;

  explicit MmaBackwardSpace(const Problem& p) {
    const int64_t batch = p.query_starts != nullptr ? 1 : p.batch;
    row_tiles = divide_up(p.query_rows, kDeltaRows), slots = batch * row_tiles;
    rows = batch * p.heads * p.query_rows;
    floats = 2 * rows + (p.sinks != nullptr ? slots * p.heads : 0);
  }
};

template <class T>
void launch_delta(const Backward& a, float* space, Stream stream) {
  const Problem& p = a.problem;
  const MmaBackwardSpace at(p);
  float* dsinks = p.sinks != nullptr ? space + 2 * at.rows : nullptr;
  if (at.slots * p.heads > 0)
    launch(mma_delta_kernel<T>, at.slots * p.heads, kRowThreads, stream,
           DeltaArguments{.out = rows_in_memory(a.out, a.out_strides),
                          .dout = rows_in_memory(a.dout, a.dout_strides),
                          .lse = a.lse,
                          .dlse = a.dlse,
                          .sinks = p.sinks,
                          .exponents = space,
                          .delta = space + at.rows,
                          .dsinks = dsinks,
                          .rows = int(p.query_rows),
                          .row_tiles = int(at.row_tiles),
                          .heads = int(p.heads),
                          .value_dim = int(p.value_dim)});
  if (p.sinks != nullptr && p.heads > 0)
    launch(sum_dsinks_kernel, p.heads, kRowThreads, stream, a.dsinks, dsinks, int(at.slots), int(p.heads));
}

// One of the kernels that make gradients, as it is told.
template <class B>
MmaBackwardArguments backward_arguments(const Backward& a, const float* space) {
  const Problem& p = a.problem;
  const bool causal = p.window_right != kNoLimit && p.window_left == kNoLimit;
  TileOrder order =
      B::kKeysStay ? order_of(p, p.key_rows, p.key_heads, B::kOwn) : order_of(p, p.query_rows, p.heads, B::kOwn);
  // Causal: the last rows see most keys, and the first keys are seen by most rows.
  order.last_rows_first = causal && !B::kKeysStay;
  order.section_heads = B::kKeysStay ? section_key_heads(p, causal) : section_heads(p, order.heads, causal);
  return {.q = rows_in_memory(a.q, a.q_strides),
          .dout = rows_in_memory(a.dout, a.dout_strides),
          .k = rows_in_memory(a.k, a.k_strides),
          .v = rows_in_memory(a.v, a.v_strides),
          .first = B::kKeysStay ? a.dk : a.dq,
          .second = a.dv,
          .lse = space,
          .delta = space + MmaBackwardSpace(p).rows,
          .scores = scores_of(p),
          .sequences = sequences_of(p),
          .order = order,
          .heads = int(p.heads),
          .key_heads = int(p.key_heads),
          .group = int(p.heads / p.key_heads),
          .dim = int(p.dim),
          .value_dim = int(p.value_dim),
          .chunk = chunk_of(p),
          .scale = p.scale};
}
template <class B>
void launch_mma_backward(const Backward& a, const float* space, Stream stream) {
  const auto arguments = backward_arguments<B>(a, space);
  if (arguments.order.tiles > 0)
    launch_with_memory<&mma_backward_kernel<B>>(
        sizeof(MmaBackwardMemory<B>), int64_t{arguments.order.tiles} * B::kParts, B::kThreads, stream, arguments);
}

// fn with the number type.
template <class Fn>
void with_element_type(const Problem& p, const Fn& fn) {
  p.dtype == DType::kBFloat16 ? fn.template operator()<BFloat16>() : fn.template operator()<Half>();
}

}  // namespace attention::gpu
