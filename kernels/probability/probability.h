// Rows of probabilities: what makes them of numbers, and how far two of them are apart. Forward and backward.
//
//   softmax     y = e^(x - lse)                             dx = y (dy - sum dy y)
//   sparsemax   y = max(x - t, 0), t such that sum y = 1    dx = dy - mean of dy over y > 0; 0 where y is
//
// Divergences are sums over a row of term(x, target); slope = d term / dx. With q = e^x, x the log-probabilities of
// what learns, and p = e^target those of what it learns from:
//   kl          term = p (log max(p, eps) - x)              slope = -p      of p itself, not of its logarithm
//   forward     term = p (log p - log q)                    slope = -p
//   reverse     term = q (log q - log p)                    slope = term + q
//   mixed       term = beta p (log p - log m) + (1 - beta) q (log q - log m),  m = beta p + (1 - beta) q
//               slope = (1 - beta) q (log q - log m)
//   tvd         term = |x - target| / 2                     slope = sign(x - target) / 2    of probabilities
// A probability of 0 has the term's limit, 0. jsd with beta is forward at 0, reverse at 1 and mixed between.
// Of logits z, x = log softmax(z / T): dz = (slope - q sum slope) / T.
//
// Casting: rows are read in their type, all sums and terms are fp32, y and gradients are rounded once.
#pragma once
#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace probability {

using kernels::DType;

struct Softmax {
  DType dtype;
  bool sparse;
  const void* x;  // [rows, cols], rows x_stride apart; in backward y, the result of forward
  int64_t x_stride;
  const void* dy;  // [rows, cols]; backward only
  int64_t dy_stride;
  void* out;  // [rows, cols]: y, or dx
  int64_t rows, cols;
  bool stream;
};

enum class Kind : uint8_t { kKl, kForward, kReverse, kMixed, kTvd };
constexpr Kind jsd_kind(double beta) { return beta == 0 ? Kind::kForward : beta == 1 ? Kind::kReverse : Kind::kMixed; }

struct Divergence {
  DType dtype;
  Kind kind;
  float parameter;         // kl: eps; mixed: beta
  const void *x, *target;  // [rows, cols]
  int64_t x_stride, target_stride;
  const int64_t* label;  // [rows] or null: a row whose label is ignore_index counts nothing
  int64_t ignore_index;
  bool by_element;     // else a number a row
  float* loss;         // [rows] or [rows, cols]; forward only
  const float* dloss;  // the same; backward only
  void* dx;            // [rows, cols]; backward only
  uint8_t* signs;      // [rows, cols / 4, rounded up] or null: of x - target, two bits each; forward writes them, and
                       // backward reads them instead of x and target. tvd only
  int64_t rows, cols;
};

struct OfLogits {
  DType dtype;
  Kind kind;
  float beta, scale;  // scale: 1 / temperature
  void* z;            // [rows, cols] logits of what learns, then their gradients
  int64_t z_stride;
  const void* target;  // [rows, cols] logits
  int64_t target_stride;
  float* loss;  // [rows]
  int64_t rows, cols;
};

// Each works on rows [begin, end).
struct Table {
  void (*softmax)(const Softmax&, int64_t begin, int64_t end);  // backward where dy is given
  void (*divergence_forward)(const Divergence&, int64_t begin, int64_t end);
  void (*divergence_backward)(const Divergence&, int64_t begin, int64_t end);
  void (*of_logits)(const OfLogits&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace probability
