#include "hotswap/layers/norm.h"

#include <ATen/ops/add.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace stock {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset, const std::string& casting) {
  const Tensor wide = x.to(at::kFloat);                                                 // [..., dim]
  const Tensor rstd = at::rsqrt(at::add(wide.pow(2).mean(-1, /*keepdim=*/true), eps));  // [..., 1]
  if (casting == "llama") {
    const Tensor y = at::mul(wide, rstd).to(x.scalar_type());
    return at::mul(offset == 0 ? weight : at::add(weight, offset), y);
  }
  if (casting == "gemma") {
    return at::mul(at::mul(wide, rstd), at::add(weight.to(at::kFloat), offset)).to(x.scalar_type());
  }
  if (casting == "none") {
    return at::mul(at::mul(x, rstd.to(x.scalar_type())), offset == 0 ? weight : at::add(weight, offset));
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "an RMSNorm casting: llama, gemma or none",
               .got = cat('"', casting, '"'),
               .next = "set RMSNormOptions::casting to the mode of the model's family"});
}

Tensor weightless_rms_norm(const Tensor& x, const Tensor&, double eps, double, const std::string&) {
  const Tensor wide = x.to(at::kFloat);
  return at::mul(wide, at::rsqrt(at::add(wide.pow(2).mean(-1, /*keepdim=*/true), eps))).to(x.scalar_type());
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, double eps) {
  if (weight.dim() == 1) return at::layer_norm(x, weight.sizes(), weight, bias, eps);
  std::vector<Tensor> heads;  // [..., dim] each
  for (int64_t i = 0; i < weight.size(0); ++i) {
    heads.push_back(at::layer_norm(x.select(-2, i), {weight.size(1)}, weight[i], {}, eps));
  }
  return at::stack(heads, -2);
}

Tensor wide_layer_norm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, double eps) {
  Tensor y = x.to(at::kFloat);
  y = at::sub(y, y.mean(-1, /*keepdim=*/true));
  y = at::mul(y, at::rsqrt(at::add(y.pow(2).mean(-1, /*keepdim=*/true), eps)));
  y = at::mul(weight.to(at::kFloat), y);
  return (bias ? at::add(y, bias->to(at::kFloat)) : y).to(x.scalar_type());
}

Tensor weightless_layer_norm(const Tensor& x, const Tensor&, const std::optional<Tensor>&, double eps) {
  return at::layer_norm(x.to(at::kFloat), {x.size(-1)}, {}, {}, eps).to(x.scalar_type());
}

}  // namespace stock

Norm::Result Norm::forward(const Tensor& x, const Tensor& residual) const {
  Tensor h = at::add(residual, x);
  return {forward(h), h};
}

// Fresh, a norm multiplies by one: a weight that an offset is added to begins below by that much.
RMSNorm::RMSNorm(int64_t dim, RMSNormOptions options) : options_(std::move(options)) {
  own("weight", weight, {dim}, Init::constant(1 - options_.offset));
}

Tensor RMSNorm::forward(const Tensor& x) const {
  return forward_(x, weight, options_.eps, options_.offset, options_.casting);
}

Tensor WeightlessRMSNorm::forward(const Tensor& x) const {
  const Tensor weight = forward_.bound() ? at::ones({x.size(-1)}, x.options()) : Tensor();
  return forward_(x, weight, eps_, /*offset=*/0, "llama");
}

AddRMSNorm::AddRMSNorm(int64_t dim, RMSNormOptions options)
    : RMSNorm(dim, std::move(options)),
      add_(this, "AddRMSNorm", "add_rms_norm/1",
           [this](const Tensor& x, const Tensor& residual, const Tensor&, double, double, const std::string&) {
             Tensor h = at::add(residual, x);
             Tensor y = RMSNorm::forward(h);
             return std::tuple(std::move(y), std::move(h));
           }) {}

AddRMSNorm::Result AddRMSNorm::forward(const Tensor& x, const Tensor& residual) const {
  if (x.scalar_type() != residual.scalar_type()) {  // kept in float32, beyond what a fused kernel reads
    Tensor h = at::add(residual, x);
    return {RMSNorm::forward(h), h};
  }
  auto [y, h] = add_(x, residual, weight, options_.eps, options_.offset, options_.casting);
  return {std::move(y), std::move(h)};
}

namespace {

Tensor (*stock_of(const LayerNormOptions& o))(const Tensor&, const Tensor&, const std::optional<Tensor>&, double) {
  if (!o.weight) return stock::weightless_layer_norm;
  return o.wide ? stock::wide_layer_norm : stock::layer_norm;
}

// No kernel has this.
SlotNeeds needs_of_heads(const LayerNormOptions& o) {
  return o.heads > 0 ? SlotNeeds{.features = {"weight for each head"}} : SlotNeeds{};
}

}  // namespace

LayerNorm::LayerNorm(int64_t dim, const LayerNormOptions& options)
    : options_(options), forward_(this, "LayerNorm", "layer_norm/1", stock_of(options), needs_of_heads(options)) {
  if (!options.weight) return;
  const std::vector<int64_t> shape = options.heads > 0 ? std::vector{options.heads, dim} : std::vector{dim};
  own("weight", weight, shape, Init::constant(1));
  if (options.bias) own("bias", bias, shape, Init::constant(0));
}

Tensor LayerNorm::forward(const Tensor& x) const {
  const bool lacks_weight = !weight.defined() && forward_.bound();
  const Tensor ones = lacks_weight ? at::ones({x.size(-1)}, x.options()) : weight;
  return forward_(x, ones, bias.defined() ? std::optional(bias) : std::nullopt, options_.eps);
}

}  // namespace hotswap
