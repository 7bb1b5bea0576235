// The memory of a cache's keys and values, for who writes the new tokens' there by itself (decoder_layer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace hotswap {

class CacheMemory {
 public:
  virtual ~CacheMemory() = default;
  // All of it, with room for one token more: [batch, capacity, kv_heads, head_dim] twice; undefined before the first
  // token.
  virtual std::pair<at::Tensor, at::Tensor> memory() = 0;
  virtual void wrote_one() = 0;  // that token is there
};

}  // namespace hotswap
