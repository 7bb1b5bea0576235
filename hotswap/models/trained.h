// What learns in a module: parameters that require gradients, and the tensors of adapters that train.
#pragma once

#include "hotswap/layers/module.h"

namespace hotswap {

// Once each: parameters first, then adapters' tensors below their layers' names
// ("model.layers.0.self_attn.q_proj.lora_A.weight").
void each_trained(Module& module, const Module::TensorVisitor& visit);

}  // namespace hotswap
