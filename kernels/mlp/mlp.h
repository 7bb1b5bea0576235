// The middle of a gated MLP: y = act(gate) * up, forward and backward.
//
//   swiglu  act(g) = g s(g),  s(g) = 1 / (1 + e^-g)               act'(g) = s (1 + g (1 - s))
//   geglu   act(g) = g (1 + t) / 2,  t = tanh(k (g + c g^3)),  k = sqrt(2 / pi), c = 0.044715   (GELU's tanh form)
//           act'(g) = (1 + t) / 2 + g (1 - t^2) k (1 + 3 c g^2) / 2
//   forward   y = act(gate) up
//   backward  dgate = dy up act'(gate)        dup = dy act(gate)
//
// gate and up are rows of cols elements with a row stride each, so the two halves of a packed gate_up projection are
// read where they lie. Casting: inputs in their type, all arithmetic fp32, one rounding of each output (eager
// transformers also rounds act(gate)).
#pragma once
#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace mlp {

using kernels::DType;

enum class GatedAct { kSwiGlu, kGeGlu };

struct GatedArgs {
  DType dtype;
  GatedAct act;
  const void* gate;  // [rows, cols], rows gate_stride apart
  const void* up;    // [rows, cols], rows up_stride apart
  const void* dy;    // [rows, cols], rows dy_stride apart; backward only
  int64_t gate_stride, up_stride, dy_stride;
  void* y;      // [rows, cols] contiguous; backward makes it again where it is given, and it may be dy itself
  void* dgate;  // [rows, cols] contiguous; backward only; may be gate itself
  void* dup;    // [rows, cols] contiguous; backward only; may be up itself
  int64_t rows, cols;
};

// A row is cut into blocks of fixed size, so that work and rounding do not depend on the number of threads.
constexpr int64_t kGatedBlock = 4096;

inline int64_t gated_blocks(const GatedArgs& a) { return a.rows * ((a.cols + kGatedBlock - 1) / kGatedBlock); }

struct Table {
  void (*gated)(const GatedArgs&, int64_t begin, int64_t end);  // blocks [begin, end) of gated_blocks()
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace mlp
