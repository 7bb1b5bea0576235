#include "hotswap/layers/kv_cache.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {

std::pair<Tensor, Tensor> KvCache::append(int64_t layer, const Tensor& k, const Tensor& v) {
  if (at::GradMode::is_enabled() && (k.requires_grad() || v.requires_grad())) {
    throw Error({.wanted = "a forward without gradients when a KV cache is given",
                 .got = "keys or values that require grad",
                 .next = "run under at::NoGradGuard or c10::InferenceMode, or pass no cache"});
  }
  if (layer >= static_cast<int64_t>(layers_.size())) layers_.resize(layer + 1);
  Layer& own = layers_[layer];
  const int64_t added = k.size(2);
  const bool starts = !own.k.defined();
  if (!starts && (own.k.size(0) != k.size(0) || own.k.size(1) != k.size(1) || own.k.size(3) != k.size(3))) {
    throw Error(
        {.wanted = cat("keys [", own.k.size(0), ", ", own.k.size(1), ", new, ", own.k.size(3), "] for the cache"),
         .got = cat("[", join(k.sizes()), "]"),
         .next = "use one KvCache per batch"});
  }
  if (starts || own.length + added > own.k.size(2)) grow(own, k, v);
  own.k.narrow(2, own.length, added).copy_(k);
  own.v.narrow(2, own.length, added).copy_(v);
  own.length += added;
  return {own.k.narrow(2, 0, own.length), own.v.narrow(2, 0, own.length)};
}

void KvCache::grow(Layer& layer, const Tensor& k, const Tensor& v) const {
  const int64_t needed = layer.length + k.size(2);
  const int64_t capacity = std::max({reserve_, needed, layer.length == 0 ? int64_t{0} : 2 * layer.length, int64_t{64}});
  const auto larger = [&](const Tensor& old, const Tensor& like) {
    Tensor buffer = at::empty({like.size(0), like.size(1), capacity, like.size(3)}, like.options());
    if (layer.length > 0) buffer.narrow(2, 0, layer.length).copy_(old.narrow(2, 0, layer.length));
    return buffer;
  };
  layer.k = larger(layer.k, k);
  layer.v = larger(layer.v, v);
}

void KvCache::crop(int64_t length) {
  for (Layer& layer : layers_) layer.length = std::min(layer.length, length);
}

}  // namespace hotswap
