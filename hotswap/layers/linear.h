// Linear and Embedding: thin, so that a kernel package (a quantised or a one-row product) can take over.
#pragma once

#include "hotswap/layers/slot.h"

namespace hotswap {

// linear/1. x: [..., in], weight: [out, in], bias: [out] -> [..., out]
using LinearForward = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

namespace stock {
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);
}  // namespace stock

class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias, Init weight_init = Init::normal(),
         Init bias_init = Init::constant(0));
  explicit Linear(Tensor& tied);          // its weight is another module's: an output head tied to the embedding
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]

 private:
  Tensor own_weight_;

 public:
  Tensor& weight;  // [out, in]
  Tensor bias;     // [out], or undefined

 private:
  Slot<LinearForward> forward_{this, "Linear", "linear/1", stock::linear};
};

class Embedding : public Module {
 public:
  Embedding(int64_t rows, int64_t dim) { own("weight", weight, {rows, dim}); }
  Tensor forward(const Tensor& ids) const;  // [...] int64 -> [..., dim]
  Tensor weight;                            // [rows, dim]
};

}  // namespace hotswap
