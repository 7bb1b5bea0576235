// Keys and values of the tokens seen so far, in buffers that grow by doubling: a decode step writes one row per head
// and copies nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace hotswap {

using at::Tensor;

class KvCache {
 public:
  // `reserve`: tokens that fit without growing, where the caller knows how many come.
  explicit KvCache(int64_t reserve = 0) : reserve_(reserve) {}

  // Appends to a layer; returns views of everything in it. Inference only: a cache in place has no gradient.
  // k, v: [batch, kv_heads, new, head_dim] -> [batch, kv_heads, length, head_dim]
  std::pair<Tensor, Tensor> append(int64_t layer, const Tensor& k, const Tensor& v);

  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length; }
  void crop(int64_t length);  // forgets the tokens from `length` on
  void clear() { layers_.clear(); }

 private:
  struct Layer {
    Tensor k, v;  // [batch, kv_heads, capacity, head_dim]
    int64_t length = 0;
  };
  void grow(Layer& layer, const Tensor& k, const Tensor& v) const;
  int64_t reserve_;
  std::vector<Layer> layers_;
};

}  // namespace hotswap
