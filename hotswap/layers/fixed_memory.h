// Keys and values of a fixed size, for who writes the new tokens' there by itself (decoder_layer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace hotswap {

class FixedMemory {
 public:
  virtual ~FixedMemory() = default;
  // All of it: [batch, capacity, kv_heads, head_dim] twice; undefined before the first token.
  virtual std::pair<at::Tensor, at::Tensor> fixed_memory() const = 0;
};

}  // namespace hotswap
