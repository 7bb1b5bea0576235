// What every layer of one forward needs to know, made once at the model's entrance.
#pragma once

#include "hotswap/layers/attention.h"
#include "hotswap/layers/cache.h"
#include "hotswap/layers/rotary.h"

namespace hotswap {

struct ForwardContext {
  RotaryTables rope;
  AttentionMetadata attention;
  Cache* cache = nullptr;                        // null: none
  std::vector<Tensor>* router_logits = nullptr;  // where mixtures of experts leave theirs, in order; null: nowhere
};

}  // namespace hotswap
