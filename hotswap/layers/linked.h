// Projections of one input, whose gradients of it meet in their products. Autograd makes a tensor for each projection
// and adds them up, which reads and writes each again; here each projection also hands its input on to the next, so
// that backward goes through them in turn and each product adds to what is there.
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
