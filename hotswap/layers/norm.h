// Normalisation layers and their stock forwards, rounding as transformers' modules do.
#pragma once

#include "hotswap/layers/slot.h"

namespace hotswap {

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

namespace stock {
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset, const std::string& casting);
// Reads no weight, and rounds as casting "llama".
Tensor weightless_rms_norm(const Tensor& x, const Tensor&, double eps, double, const std::string&);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, double eps);
// All in float32, and rounded once, as Cohere's modules are. Of a weight of several heads, [heads, dim], each by its
// own.
Tensor wide_layer_norm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, double eps);
// Reads no weight; in float32.
Tensor weightless_layer_norm(const Tensor& x, const Tensor&, const std::optional<Tensor>&, double eps);
}  // namespace stock

// What a block and a trunk know of their norms, of whichever kind.
class Norm : public Module {
 public:
  struct Result {
    Tensor y;  // [..., dim], normalised
    Tensor h;  // [..., dim], x + residual: the next residual
  };
  virtual Tensor forward(const Tensor& x) const = 0;                      // [..., dim] -> [..., dim]
  virtual Result forward(const Tensor& x, const Tensor& residual) const;  // after a residual connection
  Result after(const Tensor& x, const Tensor& residual) const {           // undefined: 0
    return residual.defined() ? forward(x, residual) : Result{forward(x), x};
  }
  Tensor weight;  // [dim], or undefined
};

struct RMSNormOptions {
  double eps = 1e-6;
  double offset = 0;              // added to the weight: 1 where the checkpoint stores weight - 1
  std::string casting = "llama";  // see RmsNormForward
};

// y = x * rsqrt(mean(x^2, -1) + eps) * (offset + weight)
class RMSNorm : public Norm {
 public:
  RMSNorm(int64_t dim, RMSNormOptions options);
  Tensor forward(const Tensor& x) const override;  // [..., dim] -> [..., dim]
  using Norm::forward;

 protected:
  RMSNormOptions options_;

 private:
  Slot<RmsNormForward> forward_{this, "RMSNorm", "rms_norm/1", stock::rms_norm};
};

// y = x * rsqrt(mean(x^2, -1) + eps): no weight in the model; kernels get one of ones.
class WeightlessRMSNorm : public Module {
 public:
  explicit WeightlessRMSNorm(double eps) : eps_(eps) {}
  Tensor forward(const Tensor& x) const;  // [..., dim] -> [..., dim]

 private:
  double eps_;
  Slot<RmsNormForward> forward_{this, "RMSNorm", "rms_norm/1", stock::weightless_rms_norm};
};

// RMSNorm behind a residual connection: one pass over memory where a kernel fuses both. Its AddRMSNorm slot, when
// empty, adds and goes through the RMSNorm slot.
class AddRMSNorm : public RMSNorm {
 public:
  AddRMSNorm(int64_t dim, RMSNormOptions options);
  Result forward(const Tensor& x, const Tensor& residual) const override;
  using RMSNorm::forward;

 private:
  Slot<AddRmsNormForward> add_;
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool weight = true, bias = true;
  bool wide = false;  // see stock::wide_layer_norm; without a weight it always is
  int64_t heads = 0;  // of [..., heads, dim]: a weight for each; 0: one for all that there is
};

class LayerNorm : public Norm {
 public:
  LayerNorm(int64_t dim, double eps, bool with_bias = true) : LayerNorm(dim, {.eps = eps, .bias = with_bias}) {}
  LayerNorm(int64_t dim, const LayerNormOptions& options);
  Tensor forward(const Tensor& x) const override;  // [..., dim] -> [..., dim]
  using Norm::forward;
  Tensor bias;  // [dim], or undefined

 private:
  LayerNormOptions options_;
  Slot<LayerNormForward> forward_;
};

}  // namespace hotswap
