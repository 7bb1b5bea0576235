// The forward that each contract replaces, as a C++ type: what a Slot holds and what kernelize/ binds. Op schemas of
// the same contracts stand in kernelize/bind/table.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

namespace hotswap {

using at::Tensor;

// rms_norm/1. x: [..., dim], weight: [dim] -> [..., dim]
// casting: "llama" rounds x * rstd to x's dtype before the weight, "gemma" computes all in float32 with (offset +
// weight), "none" multiplies in x's dtype; statistics are float32 in each.
using RmsNormForward = Tensor(const Tensor& x, const Tensor& weight, double eps, double offset,
                              const std::string& casting);

// add_rms_norm/1. x, residual: [..., dim] -> (y = rms_norm(h), h = x + residual)
using AddRmsNormForward = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                     double eps, double offset, const std::string& casting);

// layer_norm/1. x: [..., dim], weight, bias: [dim]
using LayerNormForward = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, double eps);

// activation/1, elementwise; act_and_mul/1: [..., 2 * dim] -> [..., dim]
using ActivationForward = Tensor(const Tensor& x);

// gated_mlp/1. gate, up: [..., dim] -> act(gate) * up
using GatedForward = Tensor(const Tensor& gate, const Tensor& up);

// rotary/1. q: [batch, heads, time, head_dim], k: [batch, kv_heads, time, head_dim], cos, sin: [1 or batch, time,
// rotary_dim]
using RotaryForward = std::tuple<Tensor, Tensor>(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                                 int64_t rotary_dim, bool interleaved);

struct AttentionOptions {
  double scale = 1;
  bool causal = true;  // query i sees keys up to its own
  int64_t window_left = -1,
          window_right = -1;  // keys seen before and behind a query's own; -1: all. causal: right is 0
  int64_t chunk = 0;          // a query sees its own chunk of so many tokens alone; 0: off
  double softcap = 0;         // scores become softcap * tanh(scores / softcap); 0: off
  Tensor sinks = {};          // [heads]: one more score in each softmax, of no value; or undefined
  Tensor alibi_slopes = {};   // [heads]: adds slope * (key's place - query's place); or undefined
  double dropout = 0;         // of the weights; already 0 outside training
};

// attention/1. q: [batch, time, heads, head_dim], k, v: [batch, kv_time, kv_heads, head_dim], any strides but the last,
// heads a multiple of kv_heads -> [batch, time, heads, head_dim]. `metadata` says which tokens there are (attention.h).
class AttentionMetadata;
using AttentionForward = Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                                const AttentionMetadata& metadata);

// linear/1. x: [..., in], weight: [out, in], bias: [out] -> [..., out]
using LinearForward = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double softcap = 0;  // 0: off; else logits become softcap * tanh(logits / softcap)
  double z_loss = 0;   // adds z_loss * logsumexp^2 to each row's loss
  std::string reduction = "mean";
  Tensor class_weight = {};      // [vocab] as torch's; z_loss is not weighted; or undefined
  bool token_scaling = false;    // a row's loss times its target's probability, a constant to the gradient
  bool float32_dweight = false;  // linear_cross_entropy: kernels sum the weight's gradient over chunks in float32
  int64_t chunk_bytes = 0;       // and hold so many bytes of logits at once; 0: what each has found best
};

// cross_entropy/1. logits: [n, vocab], target: [n] int64 -> float32 scalar, or [n] for reduction "none"
using CrossEntropyForward = Tensor(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options);

// linear_cross_entropy/1. hidden: [n, dim], weight: [vocab, dim], bias: [vocab], target: [n] -> as cross_entropy of
// hidden @ weight^T + bias, without holding those logits
using LinearCrossEntropyForward = Tensor(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                                         const Tensor& target, const CrossEntropyOptions& options);

}  // namespace hotswap
