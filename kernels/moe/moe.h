// Mixture of experts: each token goes through top_k of the experts, small MLPs whose results are summed with the
// router's scores s. Sizes: T tokens, k experts each, S = T k assignments, E experts, H hidden, I inner, N columns of
// an expert's first projection: 2 I where the activation has a gate, else I.
//
// Assignments a = t k + j are sorted by expert, then by a (stable): `order` [S] slot -> a, `slots` [S] a -> slot or -1,
// `offsets` [E + 1] expert -> its first slot. An index outside [0, E) is an expert of another rank (expert
// parallelism): no slot, no weight is read for it, its score gets gradient 0. No other assignment is ever dropped.
//
//   X = x[t of slot]   h = X W1^T + b1   A = act(h)   Y = A W2^T + b2   y_t = sum over j of s_tj Y[slot of t, j]
//   backward, dY = dy[t of slot] (no Y is kept, A is computed again from h):
//   dA' = dY W2        ds = <dA', A> + <dY, b2>       dh = act'(s dA')      A' = s A
//   dW2 = dY^T A'      db2 = sum of s dY              dW1 = dh^T X          db1 = sum of dh
//   dX = dh W1         dx_t = sum over j of dX[slot of t, j]
// With scale_input the score multiplies the input: h0 = X W1^T is what is kept, h = s h0 + b1, y = sum of Y, and
//   dA = dY W2         ds = <dh, h0>                  dh = act'(dA)         A' = A, db2 = sum of dY
//   dW1 = (s dh)^T X   dX = (s dh) W1                 db1 = sum of dh
//
// Activations of a gate g and a value u (columns c and I + c of h; interleaved: 2 c and 2 c + 1):
//   swiglu silu(g) u   geglu gelu(g) u   geglu_tanh gelu_tanh(g) u   reglu max(g, 0) u
//   swiglu_oai g' sigmoid(alpha g') (u' + 1),   swiglu_clamped silu(g') u',   g' = min(g, limit), u' = clamp(u,
//   +-limit)
// where a clamped number has gradient 0 beyond the limit and passes it at the limit. Without a gate, of h:
//   relu2 max(h, 0)^2   silu   gelu   gelu_tanh
//
// Casting: products are summed in float32; h, A, Y, dA', dh, A', dX and results are rounded once each; scores and sums
// over k are float32.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/cpu/packed_arguments.h"
#include "kernels/common/dtype.h"
#include "kernels/common/packing.h"

namespace moe {

using kernels::DType;

// Places are int32, also that where the last of the GPU's 1024 stretches ends (index.cu).
constexpr int64_t kMaxAssignments = (int64_t{1} << 31) - (int64_t{1} << 21);

enum class Act {
  kSwiGlu,
  kGeGlu,
  kGeGluTanh,
  kReGlu,
  kSwiGluOai,
  kSwiGluClamped,  // the last with a gate
  kRelu2,
  kSilu,
  kGelu,
  kGeluTanh
};
constexpr bool has_gate(Act act) { return act <= Act::kSwiGluClamped; }

struct Problem {
  DType dtype;
  DType score_dtype;  // of scores: float32 or dtype
  Act act;
  float alpha, limit;
  bool interleaved;  // gate and value take turns
  bool transposed;   // weights lie as [E, in, out]
  bool scale_input;
  int64_t tokens, top_k, experts, hidden, inner;
  int64_t columns() const { return has_gate(act) ? 2 * inner : inner; }
  int64_t assignments() const { return tokens * top_k; }
};

struct Index {
  const int32_t *order, *slots, *offsets;
};

// Rows of a product.
struct Source {
  const void* data;
  int64_t cols, stride;
  bool tokens;  // rows are tokens', found through the slots' order; else they lie in the order of slots
};

// ---- the CPU's loops. Units of work have fixed sizes, so that no sum depends on the number of threads.
constexpr int64_t kPart = 256;    // columns of an activation, or of a sum over rows
constexpr int64_t kOutputs = 64;  // of a product of few or some rows
constexpr int64_t kFewRows = 16;  // up to here an expert's product streams the weights
// Up to here one of float32, or of bfloat16 by pairs, by weights that lie [out, in] keeps its rows transposed; above it
// is a GEMM.
constexpr int64_t kSomeRows = 256;

// Columns [part * kPart, ...) of all rows of one expert.
struct Activation {
  Problem p;
  Index index;
  const void* scores;  // [S] in assignment order
  const void* h;       // [S, N]
  const void* bias;    // [E, N]: added to s h0 with scale_input; null: none, or in h already
  void* a;             // [S, I] forward: A. Backward: dA' before, A' afterwards
  void* dh;            // [S, N] backward; may be h
  float* ds;           // [S, parts] backward, of slots: each part's share of a score's gradient
  void* db;            // [E, N] backward, or null
};

// y[slot, n] = sum over k of rows[slot, k] W[e][n, k] + bias[e, n] for outputs [begin, end) of one expert's slots.
struct FewRows {
  DType dtype;
  const float* rows;  // [rows, in], by widen()
  const void* w;      // this expert's, [out, in] or by_inputs [in, out]
  bool by_inputs;
  // [rows, in] in place of rows, or null: where the CPU multiplies pairs and weights lie [out, in]
  const kernels::BFloat16* narrow;
  const void* bias;  // [out] or null
  void* y;           // [rows, out]
  int64_t count, in, out;
};

// The same of float32, or of bfloat16 where the CPU multiplies pairs, and weights [out, in]. A step is a float or a
// pair.
struct SomeRows {
  DType dtype;
  const float* columns;  // of to_columns: the rows, transposed, and zeros
  int64_t wide;          // a multiple of 16
  const void* w;         // [out, steps]
  const void* bias;      // [out] or null
  void* y;               // [count, out]
  int64_t count, steps, out;
};

constexpr int64_t kPackedInputRows = 4;  // of packed_input()
constexpr int64_t kPackedOutputs = 192;  // a unit of work

struct Table {
  void (*forward)(const Activation& a, int64_t expert, int64_t part);
  void (*backward)(const Activation& a, int64_t expert, int64_t part);
  // Tokens [begin, end): y[t] = sum over j of s_tj rows[slot of t, j]; scores null: 1.
  void (*combine)(const Problem& p, const Index& index, const void* scores, const void* rows, void* y, int64_t begin,
                  int64_t end);
  // Tokens [begin, end): dscores from the parts of their slots, and <dy_t, b2> where there is a bias.
  void (*score_gradients)(const Activation& a, const void* dy, int64_t dy_stride, const void* b2, void* dscores,
                          int64_t begin, int64_t end);
  // Columns [part * kPart, ...) of db2 of one expert.
  void (*bias_gradient)(const Activation& a, const void* dy, int64_t dy_stride, void* db2, int64_t expert,
                        int64_t part);
  // A row as float32, in the order in which few_rows reads it.
  void (*widen)(float* to, const void* from, DType dtype, int64_t n, bool by_inputs);
  void (*few_rows)(const FewRows& a, int64_t begin, int64_t end);
  // rows [count], each of so many steps, to columns, in the order in which some_rows reads them.
  void (*to_columns)(float* to, const float* const* rows, int64_t count, int64_t steps);
  void (*some_rows)(const SomeRows& a, int64_t begin, int64_t end);
  // rows [end - begin]: those from `begin` on of an expert's `count`, in float32, in the order in which packed reads
  // them. begin: a multiple of kPackedInputRows.
  void (*packed_input)(float* to, const void* const* rows, DType dtype, int64_t count, int64_t in, int64_t begin,
                       int64_t end);
  int64_t (*packed_room)(int64_t rows, int64_t in);  // floats that a thread needs for packed
  // y[row, n] = sum over k of x[row, k] W[n, k] + bias[n] of one expert's rows and its packed weights, which are not
  // rounded (packing.h), for outputs [begin, end). Products and sums as linear.h has them: a row's bits depend on no
  // other.
  void (*packed)(const kernels::PackedProduct& a, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace moe
