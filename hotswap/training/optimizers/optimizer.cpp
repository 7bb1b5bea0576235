#include "hotswap/training/optimizers/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

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

// What one call of the fused op takes: tensors of one device, dtype and weight decay.
struct UpdateList {
  std::vector<Tensor> targets, gradients, averages, average_squares, steps;
};
using ListKey = std::tuple<std::string, at::ScalarType, at::ScalarType, double>;

std::optional<Tensor> on_device(const Tensor& scalar, const Tensor& like) {
  return scalar.defined() ? std::optional<Tensor>(scalar.to(like.device())) : std::nullopt;
}

}  // namespace

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : AdamW({{.parameters = std::move(parameters), .weight_decay = options.weight_decay}}, options) {}

AdamW::AdamW(const std::vector<ParameterGroup>& groups, AdamWOptions options) : options_(options) {
  for (const ParameterGroup& group : groups) {
    parameters_.insert(parameters_.end(), group.parameters.begin(), group.parameters.end());
    for (size_t i = 0; i < group.parameters.size(); ++i) states_.push_back({.weight_decay = group.weight_decay});
    group_sizes_.push_back(group.parameters.size());
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
  if (!(gradient_factor > 0) || !std::isfinite(gradient_factor)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a gradient factor above 0",
                 .got = cat(gradient_factor, ", from a gradient norm that is not finite"),
                 .next = "lower the learning rate, or look for NaN in the data or the loss"});
  }
  // The fused op divides gradients by grad_scale.
  step_all(gradient_factor == 1.0 ? Tensor() : at::scalar_tensor(1.0 / gradient_factor, at::TensorOptions(at::kFloat)),
           Tensor());
}

void AdamW::step_clipped(const Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const Tensor not_finite = at::logical_not(at::isfinite(norm)).to(at::kFloat);
  if (max_norm <= 0) return step_all(Tensor(), not_finite);
  step_all(at::clamp_min(at::add(norm, 1e-6).div(max_norm), 1.0), not_finite);
}

void AdamW::prepare(size_t index) {
  const Tensor parameter = parameters_[index].detach();
  AdamWState& state = states_[index];
  if (state.steps.defined()) return;
  if (options_.float32_master && parameter.scalar_type() != at::kFloat) state.master = parameter.to(at::kFloat);
  const Tensor& like = state.master.defined() ? state.master : parameter;
  state.average = at::zeros_like(like);
  state.average_square = at::zeros_like(like);
  state.steps = at::zeros({}, at::TensorOptions(at::kFloat).device(parameter.device()));
}

void AdamW::step_all(const Tensor& inverse_factor, const Tensor& not_finite) {
  const at::NoGradGuard no_grad;
  std::map<ListKey, UpdateList> lists;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) continue;
    prepare(i);
    const AdamWState& state = states_[i];
    const Tensor target = state.master.defined() ? state.master : parameters_[i].detach();
    const Tensor gradient = parameters_[i].grad().to(target.scalar_type());  // the same tensor, but for a master
    UpdateList& list =
        lists[{target.device().str(), target.scalar_type(), state.average.scalar_type(), state.weight_decay}];
    list.targets.push_back(target);
    list.gradients.push_back(gradient);
    list.averages.push_back(state.average);
    list.average_squares.push_back(state.average_square);
    list.steps.push_back(state.steps);
  }
  for (auto& [key, list] : lists) {
    at::_foreach_add_(list.steps, 1);
    at::_fused_adamw_(list.targets, list.gradients, list.averages, list.average_squares, {}, list.steps,
                      options_.learning_rate, options_.beta1, options_.beta2, std::get<3>(key), options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, on_device(inverse_factor, list.targets[0]),
                      on_device(not_finite, list.targets[0]));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i].master.defined() && parameters_[i].grad().defined())
      parameters_[i].detach().copy_(states_[i].master);
  }
}

void AdamW::zero_grad() {
  for (Tensor& parameter : parameters_) parameter.mutable_grad() = Tensor();
}

Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return {};
  std::vector<Tensor> norms;
  for (const Tensor& norm : at::_foreach_norm(gradients, 2, at::kFloat)) {
    norms.push_back(norm.to(gradients[0].device()));
  }
  return at::linalg_vector_norm(at::stack(norms));
}

double gradient_norm(const std::vector<Tensor>& parameters) {
  const Tensor norm = gradient_norm_tensor(parameters);
  return norm.defined() ? norm.item<double>() : 0;
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
