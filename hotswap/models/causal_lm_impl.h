// What a CausalLM is made of. For sources of this room: the public header shows none of it.
#pragma once

#include <memory>

#include "hotswap/layers/linear.h"
#include "hotswap/layers/loss.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/family.h"
#include "hotswap/models/trunk.h"

namespace hotswap {

struct CausalLM::Parts {
  Parts(const Family& family, const Json& json);
  ModelConfig config;
  Trunk trunk;
  std::unique_ptr<FusedStep> fused_step;  // of the trunk
  Linear lm_head;
  CausalLMLoss loss;
};

}  // namespace hotswap
