// The products of a layer on a GPU, and how many rows they take. Host alone: no GPU is needed to ask.
#pragma once

#include "kernels/common/gpu/gemv/few_rows.h"
#include "kernels/decode/decode.h"

namespace decode::cuda {

using kernels::gpu::FewRows;
using kernels::gpu::FewRowsAct;
using kernels::gpu::FewRowsWeight;

inline FewRowsWeight weight_of(const Weight& w) {
  return {.data = w.data, .bias = w.bias, .stride = w.stride, .rows = int(w.out)};
}

inline FewRows qkv_of(const Layer& a) {
  const int64_t out = a.q.out + a.k.out + a.v.out;
  return {.dtype = a.dtype,
          .x = a.x,
          .x_stride = a.hidden,
          .rows = int(a.rows),
          .in = int(a.hidden),
          .norm = a.input_norm,
          .eps = a.eps,
          .w = {weight_of(a.q), weight_of(a.k), weight_of(a.v)},
          .weights = 3,
          .out = a.qkv,
          .out_stride = out,
          .weights_are_old = a.prefetch_weights};
}

inline FewRows o_of(const Layer& a) {
  const int64_t in = a.q.out;
  return {.dtype = a.dtype,
          .x = a.attended,
          .x_stride = in,
          .rows = int(a.rows),
          .in = int(in),
          .w = {weight_of(a.o)},
          .residual = a.x,
          .residual_stride = a.hidden,
          .out = a.h,
          .out_stride = a.hidden,
          .weights_are_old = true};
}

inline FewRows gated_of(const Layer& a) {
  return {.dtype = a.dtype,
          .x = a.h,
          .x_stride = a.hidden,
          .rows = int(a.rows),
          .in = int(a.hidden),
          .norm = a.post_norm,
          .eps = a.eps,
          .w = {weight_of(a.gate), weight_of(a.up)},
          .weights = 2,
          .act = a.act == Act::kSilu ? FewRowsAct::kSilu : FewRowsAct::kGeluTanh,
          .out = a.gated,
          .out_stride = a.gate.out,
          .weights_are_old = true};
}

inline FewRows down_of(const Layer& a) {
  return {.dtype = a.dtype,
          .x = a.gated,
          .x_stride = a.gate.out,
          .rows = int(a.rows),
          .in = int(a.gate.out),
          .w = {weight_of(a.down)},
          .residual = a.h,
          .residual_stride = a.hidden,
          .out = a.out,
          .out_stride = a.hidden,
          .weights_are_old = true};
}

// The most rows that layer() takes of these weights; 0: none. A norm wants all of x in shared memory, so that a wide
// layer takes fewer. Of `a` only dtype, hidden, norms and weights are looked at.
inline int supported_rows(const Layer& a) {
  int most = kMaxRows;
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)}) {
    const int its = kernels::gpu::max_few_rows(product);
    most = its < most ? its : most;
  }
  return most;
}

// The most rows for which layer() is faster than the layer's parts: all that it takes where each product keeps x in
// registers. Where one does not, 8: from 9 rows on all of x is in shared memory, up to 144 KB of a multiprocessor's
// 256, so that weights have little of L1 to come through and no launch is set up beside the one before it, and every
// block reads x again for each of its tiles (docs/notes/decode_wide.md).
inline int paying_rows(Layer a) {
  constexpr int kWide = 8;
  const int limit = supported_rows(a);
  a.rows = limit;
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)}) {
    if (!kernels::gpu::keeps_x(product)) return limit < kWide ? limit : kWide;
  }
  return limit;
}

}  // namespace decode::cuda
