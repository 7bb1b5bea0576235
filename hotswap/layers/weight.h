// A weight as a value: the tensors that hold it, and what they stand for. Only Linear, Embedding and their kernels look
// inside; a fused op takes a `const Linear&` and checks all_plain() first (linear.h).
//
//   w[o, i] = (code[o, i] - zero) * scale * global_scale
//
// code: what the format reads from data; zero and scale: those of row o / group_rows and of column i's group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/layers/weight_blocks.h"

namespace hotswap {

using at::Tensor;

enum class WeightFormat {
  kPlain,    // data [out, in] of floating point: the weight itself
  kQ8_0,     // data [out, bytes of a row] uint8: ggml's blocks, their scales inside (gguf_blocks.h)
  kQ4_0,     // the same
  kQ4_1,     // the same
  kQ5_0,     // the same
  kQ4_K,     // the same, blocks of 256 columns
  kQ5_K,     // the same
  kQ6_K,     // the same
  kInt8,     // data [out, in] int8
  kInt4,     // data [out, in / 2] uint8, two unsigned codes a byte, the low nibble first
  kE4m3,     // data [out, in] float8_e4m3fn
  kTable16,  // as kInt4, each code an index of table [16]: MXFP4, NVFP4, NF4
  // data [out, bytes of a row] uint8: our blocks, with a scale and zero inside (weight_blocks.h)
  kInt4G32,
  kInt4G64,
  kInt4G128,
  kE4m3G128,
  kMxfp4,  // as kQ8_0
};
const char* name_of(WeightFormat format);  // as in layers.json: "plain", "q8_0", "int4", ...
std::optional<WeightFormat> weight_format_of(const std::string& name);
std::string weight_format_names();
// Of a format of blocks with a float32 scale; nullopt of another.
std::optional<BlockLayout> block_layout_of(WeightFormat format);
// Of ggml's types, by their names ("Q8_0"); nullopt where a matrix of it is dequantised while loading.
std::optional<WeightFormat> weight_format_of_ggml(const std::string& type);

// Which part of a tensor-parallel weight this is: `size` rows (dim 0) or columns (dim 1) from `begin` on, of `whole`.
struct Shard {
  int64_t dim, begin, size, whole;
};

struct Weight {
  WeightFormat format = WeightFormat::kPlain;
  Tensor data;
  // Undefined where the format has none. [rows / group_rows, groups of columns], or one element for the whole.
  Tensor scales = {}, zeros = {};
  Tensor global_scale = {};  // one element, multiplies all
  Tensor table = {};         // [16] float32
  Tensor order = {};         // [in] int32: the group of each column; undefined: column i is of group i / group
  int64_t group = 0;         // columns that share a scale; 0: all of a row
  int64_t group_rows = 1;    // rows that share a scale
  std::vector<int64_t> logical_shape = {};  // [out, in]; of a plain weight empty: data has it
  std::optional<Shard> shard = std::nullopt;
  // Of the matrices of several experts each tensor and logical_shape have one more dimension, the first: only ggml's
  // blocks and ours. `transposed`: what is dequantised is [experts, in, out].
  bool transposed = false;

  bool defined() const { return data.defined(); }
  bool encoded() const { return format != WeightFormat::kPlain; }
  // What every op that takes a tensor as a weight may read: floating point, and all of it.
  bool plain() const { return !encoded() && !shard; }
  bool of_experts() const { return (encoded() ? int64_t(logical_shape.size()) : data.dim()) == 3; }
  std::vector<int64_t> shape() const;  // of what is dequantised
  int64_t rows() const { return encoded() ? logical_shape.at(logical_shape.size() - 2) : data.size(-2); }
  int64_t columns() const { return encoded() ? logical_shape.back() : data.size(-1); }
  Weight of_expert(int64_t expert) const;  // its matrix, in the same memory

  // shape() in that dtype: each element computed in float32, in float64 for float64, and rounded once.
  Tensor dequantised(at::ScalarType dtype) const;
  // The rows that `move` takes from each tensor that has one row a row: reordered, narrowed, selected. nullopt where
  // several rows share a scale.
  std::optional<Weight> with_rows(const std::function<Tensor(const Tensor&)>& move) const;
  void each_tensor(const std::function<void(Tensor&)>& visit);  // those that are defined
};

// The matrices of experts in blocks, [experts, out, bytes of a row], of whose format is known how many weights those
// are; plain: [experts, out, in]. Error where these are no whole blocks.
Weight experts_weight_of(const Tensor& data, WeightFormat format);

void make_plain(Weight& weight, at::ScalarType dtype);  // from now on, and trained; nothing where it is plain already

// ggml's blocks as a bare tensor, of which the bytes of a row say the format: Q8_0, Q4_0 or Q4_1; floating point is
// plain. For ops whose arguments are tensors. Error where none of the three has such rows.
Weight weight_of(const Tensor& data, int64_t columns);

// In training an adapter reads what this leaves of its layer's input: elements are 0 with probability p, the others
// divided by 1 - p. A mask is drawn by a seed, and again in backward, and not kept between. Seeds come of torch's
// default generator of the CPU, whose state a checkpoint has. Layers that are parts of one module share it, and drop
// the same: each of them reads once in a forward.
struct AdapterDropout {
  double p = 0;
  int64_t parts = 1;  // how many layers share it
  int64_t calls = 0;
  uint64_t seed = 0;

  uint64_t next_seed();
};

// LoRA, of a layer y = W x + c:   W x + scale * b (a x) + bias + c
// DoRA, where gain is defined:    gain * (W x + scale * b (a x)) + c
// It trains where a requires a gradient. Then DoRA has its magnitude instead of the gain, which is made of it in each
// call: the norms of the rows change.
struct Adapter {
  Tensor a;               // [rank, in]
  Tensor b;               // [out, rank]
  double scale = 1;       // alpha / rank
  Tensor bias = {};       // [out], or undefined; scaled already
  Tensor gain = {};       // [out], or undefined: the trained magnitude of each row of W + scale * b a over its norm
  Tensor magnitude = {};  // [out], or undefined
  std::shared_ptr<AdapterDropout> dropout = nullptr;  // null: none

  bool trains() const { return a.requires_grad(); }
  bool is_dora() const { return gain.defined() || magnitude.defined(); }
  Tensor merged(const Tensor& weight) const;  // [out, in]: what W becomes, computed in the wider dtype, rounded once
  // With the gain of the magnitude as it is now, where there is one. The norms are constants to the gradient.
  Adapter with_gain(const Weight& weight) const;
  void to(at::Device device);
};

}  // namespace hotswap
