// Linear layers that share an input: dX is accumulated in the GEMMs (beta = 1) instead of by separate adds. Autograd
// would make one dX for each projection and read and write each again to add them; here each projection also passes
// its input on to the next, so that backward visits them in order and each GEMM adds to the same dX.
//
//   LinkedProjections linked(kernels_are_bound);
//   const Tensor q = linked(q_proj, x), k = linked(k_proj, x), v = linked(v_proj, x);
#pragma once

#include "hotswap/layers/linear.h"

namespace hotswap {

inline Tensor flat(const Tensor& t) { return t.reshape({-1, t.size(-1)}); }  // [..., n] -> [rows, n]

class LinkedProjections {
 public:
  explicit LinkedProjections(bool on) : on_(on) {}  // off: each projection as ever
  Tensor operator()(const Linear& projection, const Tensor& x);

 private:
  bool on_;
  Tensor handed_on_;
};

}  // namespace hotswap
