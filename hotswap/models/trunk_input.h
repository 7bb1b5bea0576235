// What a model's forward reads, and its check: Errors of ours where torch would fail in the middle of a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "hotswap/layers/cache.h"

namespace hotswap {

struct TrunkInput {
  Tensor input_ids;  // [batch, time] int64
  Tensor attention_mask =
      {};                    // [batch, cached + time], of a static cache [batch, capacity]: 0 where a token is padding
  Tensor position_ids = {};  // [1 or batch, time]; undefined: counted on from the cache
  Tensor cu_seqlens = {};    // [sequences + 1]: several sequences in a batch of one, where each begins, and the end
  int64_t max_seqlen = 0;    // of those; 0: not known, time
  Cache* cache = nullptr;
  std::vector<Tensor>* router_logits = nullptr;  // see ForwardContext
};

struct InputLimits {
  int64_t vocab_size;
  at::Device device;  // where the model is
};
void check_input(const TrunkInput& in, const InputLimits& limits);

// Error unless `tensor`, which errors call `name`, is of this type and on this device.
void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, at::Device device);

}  // namespace hotswap
