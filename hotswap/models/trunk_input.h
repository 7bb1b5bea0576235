// What a model's forward reads, and its check: Errors of ours where torch would fail in the middle of a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "hotswap/layers/cache.h"

namespace hotswap {

struct TrunkInput {
  Tensor input_ids;            // [batch, time] int64
  Tensor attention_mask = {};  // [batch, cached + time]: 0 where a token is padding
  Tensor position_ids = {};    // [1 or batch, time]; undefined: counted on from the cache
  Tensor cu_seqlens = {};      // [sequences + 1]: several sequences in a batch of one, where each begins, and the end
  int64_t max_seqlen = 0;      // of those; 0: not known, time
  Tensor seq_idx = {};         // [1 or batch, time] int: which of the documents packed into its row a token is of
  Cache* cache = nullptr;
  // Instead of all above: a step of sequences with lengths of their own, as many new tokens in each, and their memory.
  const StepBatch* step = nullptr;
  StepMemory* memory = nullptr;
  std::vector<Tensor>* router_logits = nullptr;  // see ForwardContext
};

Tensor ids_of(const TrunkInput& in);  // input_ids, or the step's as [batch, new]

struct InputLimits {
  int64_t vocab_size;
  at::Device device;  // where the model is
};
void check_input(const TrunkInput& in, const InputLimits& limits);

// Rows of packed documents as a single row with cu_seqlens, [1, batch * time], so that attention and recurrences keep
// them apart. A document begins where seq_idx changes or, as in transformers, where position_ids do not count on and
// there are neither a mask nor a cache. None where every row is one document. Waits for the device where one of the two
// is defined.
std::optional<TrunkInput> documents_in_one_row(const TrunkInput& in);

// Error unless `tensor`, which errors call `name`, is of this type and on this device.
void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, at::Device device);

}  // namespace hotswap
