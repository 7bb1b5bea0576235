// A whole decoder layer of Llama's kind for one new token of each row: where a kernel serves it, a step of generation
// is a few launches a layer, on the CPU one parallel region. On a GPU the cache is one of a fixed size. A block has the
// slot beside its parts; what has no kernel goes through these.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "hotswap/layers/slot.h"

namespace hotswap {

// decoder_layer/1. What a layer is made of, and where the new tokens stand.
struct DecoderLayerParts {
  Tensor input_norm;  // [hidden]
  // Weights may be packed (layers/linear.h): feature "packed".
  Tensor q, q_bias, k, k_bias, v, v_bias;  // [heads * head_dim, hidden], ...; biases may be undefined
  Tensor q_norm, k_norm;                   // [head_dim], or undefined
  Tensor cos, sin;                         // [1 or batch, 1, head_dim]
  Tensor k_cache, v_cache;                 // [batch, capacity, kv_heads, head_dim], written in place
  Tensor position;   // int64 on the device, of the new tokens: [1], the same for all rows, or [batch]
  Tensor o, o_bias;  // [hidden, heads * head_dim]
  Tensor post_norm;  // [hidden]
  Tensor gate, gate_bias, up, up_bias, down, down_bias;  // [ffn, hidden] twice, [hidden, ffn]
  double eps = 1e-6, head_eps = 1e-6;                    // of the norms and of the heads' norms, as Llama casts
  double scale = 1;
  int64_t window = -1;              // keys seen before the token's own; -1: all
  std::string activation = "silu";  // or "gelu_tanh"
  // Formats of q, k, v, o, gate, up and down as layers.json names them, separated by commas; empty: all are plain, or
  // the bytes of a row say it (weight_of).
  std::string formats = {};
};

// x: [batch, 1, hidden] -> the same
using DecoderLayerForward = Tensor(const Tensor& x, const DecoderLayerParts& parts);

namespace stock {
DecoderLayerForward decoder_layer;  // the formula in plain ATen
}  // namespace stock

// What a step begins with, as a kernel of the contract may make it at once.
struct DecoderInputs {
  Tensor x;         // [batch, 1, hidden]: the embeddings of the last tokens
  Tensor row;       // [1, 1, 2 head_dim]: cos and sin at the new ones' position
  Tensor position;  // a copy of it, [1]
};
// ids: [batch, 1] int64; embedding: [vocab, hidden]; rope: [positions, 2 head_dim]; position: [1] int64, of all rows,
// which becomes the next one
using DecoderInputsForward = DecoderInputs(const Tensor& ids, const Tensor& embedding, const Tensor& rope,
                                           const Tensor& position);

// Where the whole layer's kernel does not serve a batch: what stands between the products of a layer's attention and
// the attention itself, by one kernel.
struct DecoderHeads {
  Tensor q, k, v;         // [batch, 1, heads * head_dim], as the products left them
  Tensor q_norm, k_norm;  // these as DecoderLayerParts has them
  Tensor cos, sin, k_cache, v_cache, position;
  double head_eps = 1e-6;
};
// -> the queries, [batch, 1, heads, head_dim]; the keys and values are in the cache
using DecoderHeadsForward = Tensor(const DecoderHeads& heads);

// The largest batch that the contract's kernels take; by its weights a kernel may take fewer rows.
constexpr int64_t kMaxDecoderRows = 16;

// Knows its layer's weights, so that a kernel can say how many rows of such a layer it is to be given.
class DecoderLayerSlot : public Slot<DecoderLayerForward> {
 public:
  // weights: the parts without what a call brings, as they are when it is asked.
  DecoderLayerSlot(Module* owner, SlotNeeds needs, std::function<DecoderLayerParts()> weights)
      : Slot(owner, "DecoderLayer", "decoder_layer/1", stock::decoder_layer, std::move(needs)),
        weights_(std::move(weights)) {}
  DecoderLayerParts weights() const { return weights_(); }
  void set_max_rows(int64_t rows) { max_rows_ = rows; }
  bool takes(int64_t rows) const { return bound() && rows <= max_rows_; }
  // Rows whose new tokens are at positions of their own: feature "row_positions".
  bool takes_row_positions() const { return row_positions_; }
  void set_row_positions(bool takes) { row_positions_ = takes; }
  void unbind() override {
    Slot::unbind();
    inputs = nullptr;
    heads = nullptr;
  }
  std::function<DecoderInputsForward> inputs;  // these two empty: the kernel has no such op
  std::function<DecoderHeadsForward> heads;

 private:
  std::function<DecoderLayerParts()> weights_;
  int64_t max_rows_ = kMaxDecoderRows;
  bool row_positions_ = false;
};

}  // namespace hotswap
