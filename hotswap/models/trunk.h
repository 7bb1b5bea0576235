// What all families share between tokens and hidden states: an embedding, a family's blocks one after another, a last
// norm. Here it is decided, once per forward, where the tokens stand and what is masked.
#pragma once

#include <memory>
#include <vector>

#include "hotswap/layers/linear.h"
#include "hotswap/layers/norm.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"

namespace hotswap {

struct TrunkInput {
  Tensor input_ids;  // [batch, time] int64
  Tensor attention_mask =
      {};                    // [batch, cached + time], of a static cache [batch, capacity]: 0 where a token is padding
  Tensor position_ids = {};  // [1 or batch, time]; undefined: counted on from the cache
  Tensor cu_seqlens = {};    // [sequences + 1]: several sequences in a batch of one, where each begins, and the end
  int64_t max_seqlen = 0;    // of those; 0: not known, time
  Cache* cache = nullptr;
};

class Trunk : public Module {
 public:
  using MakeBlock = std::unique_ptr<Block> (*)(const ModelConfig& config, int64_t layer);
  Trunk(const ModelConfig& config, MakeBlock make_block);
  Tensor forward(const TrunkInput& in);  // -> [batch, time, hidden_size]
  std::unique_ptr<Cache> make_cache(const CacheOptions& options) const;
  Embedding embed_tokens;

 private:
  ForwardContext context_for(const TrunkInput& in, at::ScalarType dtype);
  std::vector<std::unique_ptr<Block>> layers_;
  AddRMSNorm norm_;
  RotaryEmbedding rotary_;
  int64_t vocab_size_;
};

}  // namespace hotswap
