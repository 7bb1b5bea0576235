// Weights in blocks of a GGUF file (packing.h), and the numbers that these mean.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>

#include <string>
#include <vector>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {

struct PackedWeight {
  Tensor bytes;    // [out, in / 32 * bytes of a block] uint8
  Tensor numbers;  // [out, in] float64, rounded to float32 once
};

// Blocks of any bytes, with finite scales and minimums of these sizes.
inline PackedWeight random_weight(const std::string& packing, int64_t out, int64_t in, double scale = 0.01,
                                  double minimum = 1) {
  const int64_t blocks = in / 32;
  const Tensor d = random_tensor({out, blocks, 1}, at::kHalf, scale);
  const Tensor m = random_tensor({out, blocks, 1}, at::kHalf, minimum);
  const Tensor q = at::randint(0, 256, {out, blocks, packing == "Q8_0" ? 32 : 16}, generator(), at::kByte);
  const Tensor low = at::bitwise_and(q, 15).to(at::kDouble), high = at::bitwise_right_shift(q, 4).to(at::kDouble);
  const Tensor wide = d.to(at::kDouble);
  std::vector<Tensor> bytes = {d.view(at::kByte)};
  Tensor numbers;
  if (packing == "Q8_0") {
    numbers = wide * q.view(at::kChar).to(at::kDouble);
  } else {
    numbers = wide * at::cat({low, high}, -1) + (packing == "Q4_1" ? m.to(at::kDouble) : -8 * wide);
    if (packing == "Q4_1") bytes.push_back(m.view(at::kByte));
  }
  bytes.push_back(q);
  return {at::cat(bytes, -1).view({out, -1}), numbers.to(at::kFloat).to(at::kDouble).view({out, in})};
}

}  // namespace kernels::testing
