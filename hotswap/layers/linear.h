// Linear and Embedding: thin, so that a kernel package (a packed or a one-row product) can take over.
//
// A weight may be packed, as a GGUF file has it (gguf_dequant.h): bytes, a quarter of the memory and less. Such a
// Linear has the slot PackedLinear in place of Linear, and no gradient.
#pragma once

#include <functional>

#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

// linear/1. x: [..., in], weight: [out, in], bias: [out] -> [..., out]
using LinearForward = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

// packed_linear/1: the same with weight [out, in / 32 * bytes of a block] uint8. Its numbers are not rounded to x's
// type.
using PackedLinearForward = LinearForward;

// Where a choice is to be written.
struct Choice {
  Tensor place = {};          // [rows] int64; undefined: in new memory
  Tensor said = {}, at = {};  // beside a place, or undefined: into said[at] as well; [places, rows], [1] int64
};

namespace stock {
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);
Tensor packed_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);  // dequantises it all
// Where the largest number of each row of x stands: [..., n] -> [...] int64.
Tensor largest(const Tensor& x, const Choice& to);
}  // namespace stock

class LinearSlot : public Slot<LinearForward> {
 public:
  using Slot::Slot;
  void unbind() override {
    Slot::unbind();
    torch_products = false;
    largest = nullptr;
  }
  bool torch_products = false;  // the kernel that is bound trains by torch's own products
  // Into to.place where the largest number of each row of x stands; empty: the kernel has no such op.
  std::function<void(const Choice& to, const Tensor& x)> largest;
};

class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias, Init weight_init = Init::normal(),
         Init bias_init = Init::constant(0));
  explicit Linear(Tensor& tied);          // its weight is another module's: an output head tied to the embedding
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]
  // Of [rows, out], made of what forward() gave: where each row's largest number stands, [rows] int64.
  Tensor largest(const Tensor& x, Choice to = {}) const;
  int64_t in() const { return in_; }
  bool bound() const { return forward_.bound(); }
  // Is what it does in training, whatever is bound, torch's own product with a weight of that type?
  bool trains_by_torch(at::ScalarType dtype) const {
    return weight.scalar_type() == dtype && (!forward_.bound() || forward_.torch_products);  // packed: bytes
  }

 protected:
  void on_tensors_changed() override;  // the slot for the weight as it is now

 private:
  int64_t in_;
  Tensor own_weight_;

 public:
  Tensor& weight;  // [out, in], or packed
  Tensor bias;     // [out], or undefined

 private:
  LinearSlot forward_{this, "Linear", "linear/1", stock::linear};
};

class Embedding : public Module {
 public:
  Embedding(int64_t rows, int64_t dim) : dim_(dim) { own("weight", weight, {rows, dim}); }
  // [...] int64 -> [..., dim]; of a packed table the rows asked for are dequantised, to dtype
  Tensor forward(const Tensor& ids, at::ScalarType dtype) const;
  int64_t dim() const { return dim_; }
  Tensor weight;  // [rows, dim], or packed

 private:
  int64_t dim_;
};

}  // namespace hotswap
