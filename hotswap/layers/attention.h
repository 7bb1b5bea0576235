// The attention interface: a name ("sdpa", "eager") -> the function that attends and the mask that it wants.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace hotswap {

using at::Tensor;

struct AttentionMask {
  Tensor mask = {};     // bool (true: attend) or additive, [1 or batch, 1, time, kv_time]; undefined: none needed
  bool causal = false;  // without a mask: query i sees keys 0..i
};

struct AttentionArguments {
  const Tensor& query;  // [batch, heads, time, head_dim]
  const Tensor& key;    // [batch, kv_heads, kv_time, head_dim]; heads is a multiple of kv_heads
  const Tensor& value;  // [batch, kv_heads, kv_time, head_dim]
  const AttentionMask& mask;
  double scaling;
  double dropout = 0;  // already 0 outside training
};

struct MaskArguments {
  int64_t time, kv_time;  // queries are the last `time` of `kv_time` tokens
  Tensor padding;         // [batch, kv_time], 0 where a token is padding; or undefined
  at::ScalarType dtype;
  at::Device device;
};

struct AttentionKind {
  const char* name;
  AttentionMask (*make_mask)(const MaskArguments& arguments);
  Tensor (*attend)(const AttentionArguments& arguments);  // -> [batch, time, heads, head_dim]
};

// Error naming the known ones when `name` is none of them.
const AttentionKind& attention_kind(const std::string& name);

}  // namespace hotswap
