// What backward is given beside q, k and v, and what it gives.
#pragma once

#include "kernels/attention/torch-ext/arguments.h"

namespace attention {

struct Saved {  // of the forward, and the gradients of its outputs
  const Tensor& dout;
  const Tensor& out;
  const Tensor& lse;
  const MaybeTensor& dlse;
};

struct Gradients {
  Tensor dq, dk, dv, dsinks;  // dsinks: [heads], or [0] without sinks
};

inline Gradients new_gradients(const Call& c, int64_t dims) {
  return {new_tensor(c.q, dims, c.q.heads, c.q.numbers, c.dtype, c.device),
          new_tensor(c.k, dims, c.k.heads, c.k.numbers, c.dtype, c.device),
          new_tensor(c.v, dims, c.v.heads, c.v.numbers, c.dtype, c.device),
          kernels::empty({c.sinks ? c.q.heads : 0}, DType::kFloat32, c.device)};
}

inline void check_like_out(const Tensor& t, const Call& c, int64_t dims) {
  const int64_t row = dims - 3;
  check_tensor(t.dim() == dims && (dims == 3 || t.size(0) == c.q.batch) && t.size(row) == c.q.rows &&
                   t.size(row + 1) == c.q.heads && t.size(row + 2) == c.v.numbers,
               t, "in the shape of the forward's output; got ", shape_of(t), "; pass the output's own");
  kernels::check_same_dtype(t, c.dtype, "q");
}

}  // namespace attention
