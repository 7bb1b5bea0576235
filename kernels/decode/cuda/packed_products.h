// The products of a layer on a GPU whose weights are in ggml's blocks, and how many rows they take. Host only: no GPU
// is needed.
#pragma once

#include <algorithm>

#include "kernels/common/gpu/gemv/packed_rows.h"
#include "kernels/decode/decode.h"

namespace decode::cuda {

using kernels::gpu::PackedRows;

inline bool is_packed(const Layer& a) { return a.q.packing != kernels::Packing::kNone; }

inline kernels::gpu::PackedRowsWeight packed_weight(const Weight& w) {
  return {static_cast<const uint8_t*>(w.data), w.bias, w.stride, int(w.out)};
}

// x w^T of weights of one packing that follow one another in the result. Everything but the first product reads weights
// that no launch of the layer writes.
template <size_t kWeights>
PackedRows packed_rows_of(const Layer& a, const Weight* const (&weights)[kWeights], const void* x, int64_t in,
                          void* out, int64_t out_stride) {
  PackedRows p{};
  p.dtype = a.dtype, p.packing = weights[0]->packing;
  p.x = x, p.x_stride = in, p.rows = int(a.rows), p.in = int(in), p.eps = a.eps;
  p.weights = int(kWeights);
  for (size_t i = 0; i < kWeights; ++i) p.w[i] = packed_weight(*weights[i]);
  p.out = out, p.out_stride = out_stride;
  p.prefetch_weights = true;
  return p;
}

struct PackedProducts {
  PackedRows all[6];
  int qkv, count;  // the first qkv are queries, keys and values: one product, or several where their packings differ

  explicit PackedProducts(const Layer& a) : qkv(0), count(0) {
    const int64_t joint = a.q.out + a.k.out + a.v.out;
    const Weight* const weights[] = {&a.q, &a.k, &a.v};
    int64_t before = 0;
    for (int i = 0; i < 3; before += weights[i++]->out) {
      if (i == 0 || weights[i]->packing != weights[i - 1]->packing) {
        PackedRows& p = all[qkv++] = packed_rows_of(a, {weights[i]}, a.x, a.hidden, at(a, a.qkv, before), joint);
        p.norm = a.input_norm, p.prefetch_weights = a.prefetch_weights;
      } else {
        PackedRows& p = all[qkv - 1];
        p.w[p.weights++] = packed_weight(*weights[i]);
      }
    }
    count = qkv;
    PackedRows& o = all[count++] = packed_rows_of(a, {&a.o}, a.attended, a.q.out, a.h, a.hidden);
    o.residual = a.x, o.residual_stride = a.hidden;
    PackedRows& gated = all[count++] = packed_rows_of(a, {&a.gate, &a.up}, a.h, a.hidden, a.gated, a.gate.out);
    gated.norm = a.post_norm;
    gated.act = a.act == Act::kSilu ? kernels::gpu::FewRowsAct::kSilu : kernels::gpu::FewRowsAct::kGeluTanh;
    PackedRows& down = all[count++] = packed_rows_of(a, {&a.down}, a.gated, a.gate.out, a.out, a.hidden);
    down.residual = a.h, down.residual_stride = a.hidden;
  }

 private:
  static void* at(const Layer& a, void* data, int64_t elements) {
    return data == nullptr ? nullptr : static_cast<char*>(data) + elements * kernels::size_of(a.dtype);
  }
};

// Rows that the layer's kernels take of these weights; 0: none. Of `a` only dtype, hidden, norms and weights are looked
// at.
inline int supported_packed_rows(const Layer& a) {
  const Weight* const weights[] = {&a.q, &a.k, &a.v, &a.o, &a.gate, &a.up, &a.down};
  if (a.gate.packing != a.up.packing || a.dtype == DType::kFloat32) return 0;
  for (const Weight* w : weights)
    if (!kernels::gpu::has_packed_blocks(w->packing)) return 0;
  int rows = kernels::gpu::kMaxPackedRows;
  for (const int64_t in : {a.q.out, a.gate.out}) rows = std::min(rows, kernels::gpu::max_packed_rows(in, false));
  return std::min(rows, kernels::gpu::max_packed_rows(a.hidden, true));
}

}  // namespace decode::cuda
