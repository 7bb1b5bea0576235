// Inputs of a model, checked: Errors of ours where torch would fail in the middle of a layer.
#pragma once

#include "hotswap/models/trunk.h"

namespace hotswap {

struct InputLimits {
  int64_t vocab_size;
  at::Device device;  // where the model is
};
void check_input(const TrunkInput& in, const InputLimits& limits);

// Error unless `tensor`, which errors call `name`, is of this type and on this device.
void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, at::Device device);

}  // namespace hotswap
