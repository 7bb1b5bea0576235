// A token drawn of each row of logits, each row by settings of its own. Weights are integers, so that a sum of them
// does not depend on the order in which threads add: the token is a function of the row's logits and settings, whatever
// the device and whatever else is in the batch, but for the last bit of exp.
//
//   s[i] = x[i] * scale                                                       float32
//   w[i] = round(2^44 exp(s[i] - max(s)))   0 where s[i] < max(s) + log_min_p
//   top_k   > 0 keeps the top_k ids with the highest x; of equal ones the first
//   top_p   < 1 keeps of those the fewest with sum(w) >= top_p * total; again the highest x, of equal ones the first
//   id      the first of those kept whose running sum of w, in the order of ids, exceeds uniform * total
//
//   x: [rows, cols]; settings: [rows, kSettings] float64 -> ids: [rows] int64
//
// A row whose maximum is not finite (NaN, infinity, or nothing but -infinity) gives id 0.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/gpu/launch.h"

namespace linear {

enum Setting { kScale, kTopK, kTopP, kLogMinP, kUniform, kSettings };

constexpr double kMaxWeight = 17592186044416;  // 2^44: 2^18 of them fit into 63 bits
constexpr float kNoWeight = 32;                // a score that is smaller than the maximum by this much has weight 0

// What the fewest tokens of top_p have in total at least.
HOTSWAP_HOST_DEVICE inline uint64_t nucleus_weight(uint64_t total, double top_p) {
  const double share = double(total) * top_p;
  uint64_t least = uint64_t(share);
  if (double(least) < share) ++least;
  return least > total ? total : least < 1 ? 1 : least;
}

struct Sample {
  kernels::DType dtype;
  const void* x;  // [rows, cols]
  int64_t x_stride, rows, cols;
  const double* settings;
  int64_t* ids;
};

}  // namespace linear
