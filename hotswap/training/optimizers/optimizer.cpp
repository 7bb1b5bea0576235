#include "hotswap/training/optimizers/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "hotswap/base/error.h"
#include "hotswap/layers/adamw.h"

namespace hotswap {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

// What one update takes: tensors of one device, dtype, kind of states and weight decay.
using ListKey = std::tuple<std::string, at::ScalarType, at::ScalarType, double>;

const std::map<std::string, OptimizerStates>& states_by_name() {
  static const std::map<std::string, OptimizerStates> names = {
      {"parameter", OptimizerStates::kParameter},
      {"float32_master", OptimizerStates::kFloat32Master},
      {"bfloat16_moments", OptimizerStates::kBFloat16Moments},
      {"stochastic", OptimizerStates::kStochastic},
  };
  return names;
}

// A view of t in the order in which `like` is in memory (an embedding's lora_A is transposed): contiguous where t has
// its strides.
Tensor in_order_of(const Tensor& t, const Tensor& like) {
  if (like.is_contiguous()) return t;
  std::vector<int64_t> order(like.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return like.stride(a) > like.stride(b); });
  return t.permute(order);
}

// A state that was loaded, in the layout of its parameter.
void lay_out_as(Tensor& state, const Tensor& parameter) {
  if (!state.defined() || state.strides() == parameter.strides()) return;
  state = at::empty_like(parameter, parameter.options().dtype(state.scalar_type())).copy_(state);
}

bool rounds_stochastically(OptimizerStates states) {
  return states == OptimizerStates::kBFloat16Moments || states == OptimizerStates::kStochastic;
}

void check_parameter(const Tensor& parameter, OptimizerStates states) {
  if (!parameter.is_floating_point()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "floating-point parameters",
                 .got = cat("a parameter of dtype ", parameter.dtype().name()),
                 .next = "train the model in float32 or bfloat16"});
  }
  if (!parameter.is_non_overlapping_and_dense()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "parameters without gaps in memory",
                 .got = cat("one [", join(parameter.sizes()), "] with strides [", join(parameter.strides()), "]"),
                 .next = "make it contiguous"});
  }
  if (rounds_stochastically(states) && parameter.scalar_type() == at::kHalf) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "parameters of bfloat16 or float32 for states that are rounded stochastically",
                 .got = "a parameter of float16",
                 .next = "train the model in bfloat16, or keep the states in float32 (float32_master)"});
  }
}

}  // namespace

OptimizerStates optimizer_states_from(const std::string& name) {
  const auto found = states_by_name().find(name);
  if (found != states_by_name().end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, states] : states_by_name()) names.push_back(known);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("optimizer_states to be one of ", join(names)),
               .got = cat("'", name, "'"),
               .next = "parameter is what transformers' Trainer keeps"});
}

StateKinds state_kinds(OptimizerStates states, at::ScalarType parameter) {
  const bool narrow = parameter == at::kBFloat16 || parameter == at::kHalf;
  switch (states) {
    case OptimizerStates::kParameter:
      return {parameter, false};
    case OptimizerStates::kFloat32Master:
      return {narrow ? at::kFloat : parameter, narrow};
    case OptimizerStates::kBFloat16Moments:
      return {at::kBFloat16, narrow};
    case OptimizerStates::kStochastic:
      return {at::kBFloat16, false};
  }
  return {parameter, false};
}

int64_t state_bytes_of(const Tensor& parameter, OptimizerStates states) {
  const StateKinds kinds = state_kinds(states, parameter.scalar_type());
  const auto moments = static_cast<int64_t>(2 * c10::elementSize(kinds.moments));
  return parameter.numel() * (moments + (kinds.master ? static_cast<int64_t>(sizeof(float)) : 0));
}

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : AdamW({{.parameters = std::move(parameters), .weight_decay = options.weight_decay}}, options) {}

AdamW::AdamW(const std::vector<ParameterGroup>& groups, AdamWOptions options)
    : options_(options), update_(std::make_unique<AdamWUpdate>()) {
  for (const ParameterGroup& group : groups) {
    parameters_.insert(parameters_.end(), group.parameters.begin(), group.parameters.end());
    for (size_t i = 0; i < group.parameters.size(); ++i) states_.push_back({.weight_decay = group.weight_decay});
    group_sizes_.push_back(group.parameters.size());
  }
  for (const Tensor& parameter : parameters_) check_parameter(parameter, options_.states);
  update_->watch(parameters_);
}

AdamW::~AdamW() = default;

Module& AdamW::update() { return *update_; }

void AdamW::step(double gradient_factor) {
  if (!(gradient_factor > 0) || !std::isfinite(gradient_factor)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a gradient factor above 0",
                 .got = cat(gradient_factor, ", from a gradient norm that is not finite"),
                 .next = "lower the learning rate, or look for NaN in the data or the loss"});
  }
  update_all(at::scalar_tensor(1.0 / gradient_factor, at::TensorOptions(at::kFloat)));
}

void AdamW::step_clipped(const Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  // norm * 0 is NaN where norm is not finite.
  update_all(max_norm > 0 ? at::clamp_min(at::add(norm, 1e-6).div(max_norm), 1.0) : at::add(norm.mul(0), 1.0));
}

void AdamW::keep_only(std::vector<bool> own) {
  if (own.size() != parameters_.size()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("for each of ", parameters_.size(), " parameters whether its states are kept"),
                 .got = cat(own.size()),
                 .next = "pass one value for each parameter, in their order"});
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] && !owns(i) && states_[i].steps.defined()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "the states of all parameters that are to be kept",
                   .got = cat("none of parameter ", i, ", which another rank kept before"),
                   .next = "make a new optimizer, and load its states from a checkpoint"});
    }
    AdamWState& state = states_[i];
    if (!own[i]) state.average = state.average_square = state.master = Tensor();
  }
  own_ = std::move(own);
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const AdamWState& state : states_) {
    for (const Tensor* part : {&state.average, &state.average_square, &state.master, &state.steps}) {
      if (part->defined()) bytes += static_cast<int64_t>(part->nbytes());
    }
  }
  return bytes;
}

void AdamW::prepare(size_t index) {
  const Tensor parameter = parameters_[index].detach();
  AdamWState& state = states_[index];
  if (state.steps.defined()) {
    for (Tensor* part : {&state.average, &state.average_square, &state.master}) lay_out_as(*part, parameter);
    return;
  }
  state.steps = at::zeros({}, at::TensorOptions(at::kFloat).device(parameter.device()));
  if (!owns(index)) return;
  const StateKinds kinds = state_kinds(options_.states, parameter.scalar_type());
  if (kinds.master) state.master = parameter.to(at::kFloat);
  state.average = at::zeros_like(parameter, parameter.options().dtype(kinds.moments));
  state.average_square = at::zeros_like(state.average);
}

// A parameter that another rank updates stands in the list without elements: its position there, of which the random
// bits of those after it are a function, stays the same.
void AdamW::add_to(AdamWLists& list, size_t index) const {
  const AdamWState& state = states_[index];
  const Tensor parameter = parameters_[index].detach();
  list.steps.push_back(state.steps);
  if (!owns(index)) {
    const StateKinds kinds = state_kinds(options_.states, parameter.scalar_type());
    const auto none = [&](at::ScalarType dtype) { return at::empty({0}, parameter.options().dtype(dtype)); };
    list.parameters.push_back(none(parameter.scalar_type()));
    list.gradients.push_back(none(parameter.scalar_type()));
    list.averages.push_back(none(kinds.moments));
    list.average_squares.push_back(none(kinds.moments));
    if (kinds.master) list.masters.push_back(none(at::kFloat));
    return;
  }
  const auto ordered = [&](const Tensor& t) { return in_order_of(t, parameter); };
  list.parameters.push_back(ordered(parameter));
  list.gradients.push_back(ordered(parameters_[index].grad().to(parameter.scalar_type())).contiguous());
  list.averages.push_back(ordered(state.average));
  list.average_squares.push_back(ordered(state.average_square));
  if (state.master.defined()) list.masters.push_back(ordered(state.master));
}

// scale: [] float32, what gradients are divided by; not finite: nothing is updated, and no update is counted.
void AdamW::update_all(const Tensor& scale) {
  const at::NoGradGuard no_grad;
  std::map<ListKey, AdamWLists> lists;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) continue;
    prepare(i);
    const Tensor& parameter = parameters_[i];
    const StateKinds kinds = state_kinds(options_.states, parameter.scalar_type());
    add_to(lists[{parameter.device().str(), parameter.scalar_type(), kinds.moments, states_[i].weight_decay}], i);
  }
  int64_t index = 0;  // of a list among those of a step: its random bits are its own
  for (const auto& [key, list] : lists) {
    const Tensor there = scale.to(list.steps[0].device());
    at::_foreach_add_(list.steps, at::isfinite(there).to(at::kFloat));
    const bool by_chance = rounds_stochastically(options_.states);
    update_->forward(there, list,
                     {.learning_rate = options_.learning_rate,
                      .beta1 = options_.beta1,
                      .beta2 = options_.beta2,
                      .eps = options_.eps,
                      .weight_decay = std::get<3>(key)},
                     by_chance ? std::optional(options_.seed * (int64_t{1} << 16) + index++) : std::nullopt);
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
