#include "hotswap/training/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : AdamW({{.parameters = std::move(parameters), .weight_decay = options.weight_decay}}, options) {}

AdamW::AdamW(const std::vector<ParameterGroup>& groups, AdamWOptions options) : options_(options) {
  for (const ParameterGroup& group : groups) {
    parameters_.insert(parameters_.end(), group.parameters.begin(), group.parameters.end());
    for (size_t i = 0; i < group.parameters.size(); ++i) states_.push_back({.weight_decay = group.weight_decay});
  }
  for (const Tensor& parameter : parameters_) {
    if (!parameter.is_floating_point()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "floating-point parameters",
                   .got = cat("a parameter of dtype ", parameter.dtype().name()),
                   .next = "train the model in float32 or bfloat16"});
    }
  }
}

void AdamW::step(double gradient_factor) {
  const at::NoGradGuard no_grad;
  if (!(gradient_factor > 0) || !std::isfinite(gradient_factor)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a gradient factor above 0",
                 .got = cat(gradient_factor, ", from a gradient norm that is not finite"),
                 .next = "lower the learning rate, or look for NaN in the data or the loss"});
  }
  // The fused op divides gradients by grad_scale.
  const Tensor inverse =
      gradient_factor == 1.0 ? Tensor() : at::scalar_tensor(1.0 / gradient_factor, at::TensorOptions(at::kFloat));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].grad().defined()) update(parameters_[i], parameters_[i].grad(), states_[i], inverse);
  }
}

void AdamW::update(const Tensor& parameter, const Tensor& gradient, State& state, const Tensor& inverse_factor) {
  const bool needs_master = parameter.scalar_type() != at::kFloat;
  if (!state.steps.defined()) {
    if (needs_master) state.master = parameter.detach().to(at::kFloat);
    const Tensor& like = needs_master ? state.master : parameter;
    state.average = at::zeros_like(like);
    state.average_square = at::zeros_like(like);
    state.steps = at::zeros({}, at::TensorOptions(at::kFloat).device(parameter.device()));
  }
  state.steps.add_(1);
  const Tensor target = needs_master ? state.master : parameter.detach();
  const Tensor exact = gradient.to(at::kFloat);  // the same tensor when it is float32 already
  std::optional<Tensor> scale;
  if (inverse_factor.defined()) scale = inverse_factor.to(parameter.device());
  at::_fused_adamw_({target}, {exact}, {state.average}, {state.average_square}, {}, {state.steps},
                    options_.learning_rate, options_.beta1, options_.beta2, state.weight_decay, options_.eps,
                    /*amsgrad=*/false, /*maximize=*/false, scale);
  if (needs_master) parameter.detach().copy_(state.master);
}

void AdamW::zero_grad() {
  for (Tensor& parameter : parameters_) parameter.mutable_grad() = Tensor();
}

double gradient_norm(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return 0;
  std::vector<Tensor> norms;
  for (const Tensor& norm : at::_foreach_norm(gradients, 2, at::kFloat)) {
    norms.push_back(norm.to(gradients[0].device()));
  }
  return at::linalg_vector_norm(at::stack(norms)).item<double>();
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1 || std::isnan(factor) ? factor : 1;  // NaN stays NaN: AdamW refuses it
}

double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  const double norm = gradient_norm(parameters);
  const double factor = clip_factor(norm, max_norm);
  const at::NoGradGuard no_grad;
  if (factor != 1) {
    for (const Tensor& gradient : gradients_of(parameters)) gradient.mul_(factor);
  }
  return norm;
}

}  // namespace hotswap
