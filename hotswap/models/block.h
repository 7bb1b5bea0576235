// One layer of a trunk: what stands in a family's file, put together from the parts of layers/.
#pragma once

#include <memory>

#include "hotswap/layers/cache.h"
#include "hotswap/layers/forward_context.h"
#include "hotswap/layers/module.h"

namespace hotswap {

// The hidden state is x + residual; an undefined residual is zero. A block hands its last addition on to the next norm,
// where one kernel can do both.
struct HiddenState {
  Tensor x, residual;  // [batch, time, hidden_size]
};

class Block : public Module {
 public:
  virtual HiddenState forward(const HiddenState& in, const ForwardContext& context) = 0;
  virtual std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const = 0;
};

}  // namespace hotswap
