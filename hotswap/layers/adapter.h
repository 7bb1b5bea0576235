// The product of a Linear whose weight is frozen, in training: its adapter's tensors learn, nothing is kept for the
// weight's gradient, and an encoded weight is dequantised for each product instead of being held. What autograd would
// make of W x + scale * b (a x) is two products of x and two gradients of it for each layer, which are added up; here
// one node adds to one dx, and layers that read the same x hand it on (linked.h).
#pragma once

#include <optional>

#include "hotswap/layers/weight.h"

namespace hotswap {

struct FrozenProduct {
  const Weight& weight;
  const std::optional<Tensor>& bias;  // may learn
  const Adapter* adapter;             // LoRA that trains, without a bias; null: none
  bool drops;                         // its dropout is on
};

// x: [..., in] -> {[..., out], x for the next layer that reads it}. All in x's dtype, summed in float32: of a float32
// adapter beside an x of 16 bits a rounded copy multiplies, as under autocast; it learns in float32. Beside a wider x
// in the wider of the two dtypes.
std::pair<Tensor, Tensor> frozen_product(const Tensor& x, const FrozenProduct& product);

// Like x: 0 with probability p, else 1 / (1 - p); by that seed.
Tensor dropout_mask(const Tensor& x, double p, uint64_t seed);

// x with a mask of the adapter's dropout, for products that autograd differentiates; x itself where nothing is dropped.
Tensor dropped(const Tensor& x, const Adapter& adapter, bool drops);

// The state of the generator that dropout's seeds are drawn of: a forward that is run again draws the same.
Tensor dropout_draws();
void set_dropout_draws(const Tensor& state);

}  // namespace hotswap
