#include "hotswap/training/step_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"

namespace hotswap {
namespace {

using Gradients = std::map<std::string, Tensor>;

// Copies: of several ranks gradients are the reducer's buckets, which the next backward writes to.
Gradients taken_gradients(CausalLM& model) {
  Gradients taken;
  model.each_trained([&](const std::string& name, Tensor& tensor) {
    taken[name] = tensor.grad().defined() ? tensor.grad().clone() : Tensor();
    tensor.mutable_grad() = Tensor();
  });
  return taken;
}

// Stock layers while it lives.
class Unkernelized {
 public:
  explicit Unkernelized(CausalLM& model) : model_(model), options_(*model.kernel_options()) { model_.unkernelize(); }
  ~Unkernelized() noexcept(false) { model_.kernelize(Mode::of_training(model_.training()), options_); }
  Unkernelized(const Unkernelized&) = delete;
  Unkernelized& operator=(const Unkernelized&) = delete;

 private:
  CausalLM& model_;
  KernelOptions options_;
};

StepCheck::Row compared(const std::string& name, const Tensor& with, const Tensor& without) {
  if (!with.defined() || !without.defined()) return {name, 0, with.defined() == without.defined() ? 0.0 : 1.0};
  const at::NoGradGuard no_grad;
  const double norm = without.to(at::kFloat).norm().item<double>();
  const double difference = (with.to(at::kFloat) - without.to(at::kFloat)).norm().item<double>();
  if (!std::isfinite(norm) || !std::isfinite(difference)) return {name, norm, 1};
  return {name, norm, norm > 0 ? difference / norm : difference > 0 ? 1.0 : 0.0};
}

}  // namespace

nlohmann::json StepCheck::to_json() const {
  nlohmann::json of_rows = nlohmann::json::array();
  for (const Row& row : rows)
    of_rows.push_back({{"name", row.name}, {"norm", row.norm}, {"difference", row.difference}});
  return {{"step", step}, {"loss", loss}, {"stock_loss", stock_loss}, {"gradients", of_rows}};
}

StepCheck check_step(CausalLM& model, const std::function<Tensor()>& forward_backward) {
  if (!model.kernel_options()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a model with kernels, to compare a step with and without them",
                 .got = "one that is not kernelized",
                 .next = "call model->kernelize(), or pass --use-kernels"});
  }
  StepCheck check;
  const Tensor before = dropout_draws();
  check.loss = forward_backward().item<double>();
  const Tensor after = dropout_draws();
  const Gradients with = taken_gradients(model);
  {
    const Unkernelized stock(model);
    set_dropout_draws(before);
    check.stock_loss = forward_backward().item<double>();
  }
  const Gradients without = taken_gradients(model);
  set_dropout_draws(after);
  model.each_trained([&](const std::string& name, Tensor& tensor) {
    tensor.mutable_grad() = with.at(name);
    check.rows.push_back(compared(name, with.at(name), without.at(name)));
  });
  std::stable_sort(check.rows.begin(), check.rows.end(),
                   [](const auto& a, const auto& b) { return a.difference > b.difference; });
  return check;
}

}  // namespace hotswap
