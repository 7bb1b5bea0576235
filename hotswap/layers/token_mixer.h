// What a block does across tokens, and what it remembers of them: attention, or a recurrence.
#pragma once

#include <memory>

#include "hotswap/layers/cache.h"
#include "hotswap/layers/forward_context.h"

namespace hotswap {

class TokenMixer : public Module {
 public:
  virtual Tensor forward(const Tensor& x, const ForwardContext& context) const = 0;  // [batch, time, hidden_size]
  virtual std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const = 0;
};

}  // namespace hotswap
