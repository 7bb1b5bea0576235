// The pre-norm decoder that Llama-like families share; the attention is the family's own.
//
//   hidden += attention(norm(hidden)); hidden += mlp(norm(hidden))      then a last norm
//
// A block hands its last addition on to the next block's norm, where one kernel can do both.
#pragma once

#include <memory>
#include <vector>

#include "hotswap/layers/attention.h"
#include "hotswap/layers/kv_cache.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rotary.h"
#include "hotswap/models/config.h"

namespace hotswap {

// What every layer of one forward needs to know.
struct Step {
  RotaryTables rope;
  AttentionMask mask;
  const AttentionKind& attention;
  KvCache* cache;  // null: none
};

struct DecoderInput {
  Tensor ids;                  // [batch, time] int64
  Tensor attention_mask = {};  // [batch, cached + time], 0 where a token is padding; or undefined
  Tensor position_ids = {};    // [1 or batch, time]; undefined: counted on from the cache
  KvCache* cache = nullptr;
};

// A family's attention: x [batch, time, dim] -> [batch, time, dim].
class DecoderAttention : public Module {
 public:
  virtual Tensor forward(const Tensor& x, const Step& step) = 0;

 protected:
  // Heads apart, as attention wants them: [batch, time, heads * head_dim] -> [batch, heads, time, head_dim]
  static Tensor split(const Tensor& x, int64_t head_dim) {
    return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
  }
};

class DecoderBlock : public Module {
 public:
  DecoderBlock(const DecoderConfig& config, std::unique_ptr<DecoderAttention> attention);
  // The hidden state is x + residual; an undefined residual is zero.
  struct Stream {
    Tensor x, residual;  // [batch, time, dim]
  };
  Stream forward(const Stream& in, const Step& step);

 private:
  std::unique_ptr<DecoderAttention> self_attn_;
  GatedMLP mlp_;
  AddRMSNorm input_layernorm_, post_attention_layernorm_;
};

class Decoder : public Module {
 public:
  using MakeAttention = std::unique_ptr<DecoderAttention> (*)(const DecoderConfig& config, int64_t layer);
  Decoder(const DecoderConfig& config, MakeAttention make_attention);
  Tensor forward(const DecoderInput& in);  // -> [batch, time, dim]
  void set_attention(const std::string& name);
  const char* attention() const { return attention_->name; }
  Embedding embed_tokens;

 private:
  std::vector<std::unique_ptr<DecoderBlock>> layers_;
  AddRMSNorm norm_;
  RotaryEmbedding rotary_;
  const AttentionKind* attention_;
};

}  // namespace hotswap
