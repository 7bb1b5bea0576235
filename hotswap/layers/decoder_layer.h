// A whole decoder layer of Llama's kind for one new token of each row: where a kernel serves it, a step of generation
// is a few launches a layer, on the CPU one parallel region. On a GPU the cache is one of a fixed size. A block has the
// slot beside its parts; what has no kernel goes through these.
#pragma once

#include <functional>
#include <string>
#include <string_view>

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
  // follow from the bytes of a row (weight_of).
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
// A role of decoder_layer/1. ids: [batch, 1] int64; embedding: [vocab, hidden]; rope: [positions, 2 head_dim];
// position: [1] int64, of all rows, which becomes the next one
struct BeginStep {
  static constexpr std::string_view kRole = "inputs";
  using Signature = DecoderInputs(const Tensor& ids, const Tensor& embedding, const Tensor& rope,
                                  const Tensor& position);
};

// Where the whole layer's kernel does not serve a batch: what stands between the products of a layer's attention and
// the attention itself, by one kernel.
struct DecoderHeads {
  Tensor q, k, v;         // [batch, 1, heads * head_dim], as the products left them
  Tensor q_norm, k_norm;  // these as DecoderLayerParts has them
  Tensor cos, sin, k_cache, v_cache, position;
  double head_eps = 1e-6;
};
// A role of decoder_layer/1 -> the queries, [batch, 1, heads, head_dim]; the keys and values are in the cache
struct WriteHeads {
  static constexpr std::string_view kRole = "heads";
  using Signature = Tensor(const DecoderHeads& heads);
};

// The maximum batch of the contract's kernels; by a layer's weights a kernel may take fewer rows.
constexpr int64_t kMaxDecoderRows = 16;

// A role of decoder_layer/1: how many rows the bound kernel serves with the weights that the layer had when it was
// bound. Bound with every kernel.
struct ServedRows {
  static constexpr std::string_view kRole = "rows";
  using Signature = int64_t();
};

using DecoderLayerSlot = Slot<DecoderLayerForward>;
// Without a kernel none.
inline bool takes_rows(const DecoderLayerSlot& slot, int64_t rows) {
  const auto& served = slot.op<ServedRows>();
  return served && rows <= served();
}
// Rows whose new tokens are at positions of their own.
constexpr const char* kRowPositions = "row_positions";  // a claim

// The weights by which a kernel decides, under the names of the contract.
SlotBase::Weights weights_by_name(const DecoderLayerParts& parts);

}  // namespace hotswap
