#include "hotswap/layers/adamw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

namespace hotswap::stock {
namespace {

at::Generator generator_of(const Tensor& like, int64_t seed) {
  at::Generator generator =
      like.is_cpu() ? at::detail::createCPUGenerator() : at::globalContext().defaultGenerator(like.device()).clone();
  generator.set_current_seed(static_cast<uint64_t>(seed));
  return generator;
}

// value, float32, into bfloat16: 16 random bits are added below its last bit, which then are cut off.
Tensor stochastic(const Tensor& value, const at::Generator& generator) {
  const Tensor bits = value.view(at::kInt);
  const Tensor noise = at::randint(0, 1 << 16, value.sizes(), generator, bits.options());
  const Tensor cut = at::bitwise_and(at::add(bits, noise), ~0xffff).view(at::kFloat);
  return at::where(at::isfinite(value), cut, value).to(at::kBFloat16);
}

// One tensor by the formula, for states that torch's fused update does not know.
void update_one(const AdamWLists& lists, size_t i, const Tensor& scale, const AdamWRates& rates,
                std::optional<int64_t> seed) {
  const bool master = !lists.masters.empty();
  const Tensor target = master ? lists.masters[i] : lists.parameters[i];
  const Tensor g = lists.gradients[i].to(at::kFloat).div(scale);
  Tensor m = lists.averages[i].to(at::kFloat), v = lists.average_squares[i].to(at::kFloat);
  m = at::add(m, g.sub(m), 1 - rates.beta1);
  v = at::add(v.mul(rates.beta2), g.mul(g), 1 - rates.beta2);
  const Tensor step = lists.steps[i].to(at::kDouble);
  const Tensor first = at::rsub(at::pow(rates.beta1, step), 1).to(at::kFloat),
               second = at::rsub(at::pow(rates.beta2, step), 1).sqrt().to(at::kFloat);
  const Tensor direction = m.div(first).div(v.sqrt().div(second).add(rates.eps));
  const Tensor p =
      target.to(at::kFloat).mul(1 - rates.learning_rate * rates.weight_decay).sub(direction, rates.learning_rate);
  std::optional<at::Generator> generator;  // of this tensor's step: never the same bits twice
  if (seed) {
    const int64_t of_step = *seed * 1'000'003 + lists.steps[i].item<int64_t>();
    generator = generator_of(target, of_step * 1'000'003 + static_cast<int64_t>(i));
  }
  const Tensor finite = at::isfinite(scale);
  const auto write = [&](const Tensor& to, const Tensor& value) {
    const bool by_chance = generator && to.scalar_type() == at::kBFloat16;
    to.copy_(at::where(finite, by_chance ? stochastic(value, *generator) : value.to(to.scalar_type()), to));
  };
  write(lists.averages[i], m);
  write(lists.average_squares[i], v);
  write(target, p);
  if (master) lists.parameters[i].copy_(target);
}

}  // namespace

void adamw(const Tensor& scale, const AdamWLists& lists, const AdamWRates& rates, std::optional<int64_t> seed) {
  const at::NoGradGuard no_grad;
  const bool master = !lists.masters.empty();
  const std::vector<Tensor>& targets = master ? lists.masters : lists.parameters;
  if (targets.empty()) return;
  if (seed || lists.averages[0].scalar_type() != targets[0].scalar_type()) {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].numel() > 0) update_one(lists, i, scale, rates, seed);
    }
    return;
  }
  std::vector<Tensor> gradients;
  for (const Tensor& gradient : lists.gradients) gradients.push_back(gradient.to(targets[0].scalar_type()));
  const Tensor not_finite = at::logical_not(at::isfinite(scale)).to(at::kFloat);
  at::_fused_adamw_(targets, gradients, lists.averages, lists.average_squares, {}, lists.steps, rates.learning_rate,
                    rates.beta1, rates.beta2, rates.weight_decay, rates.eps, /*amsgrad=*/false, /*maximize=*/false,
                    scale, not_finite);
  if (!master) return;
  for (size_t i = 0; i < targets.size(); ++i) lists.parameters[i].copy_(targets[i]);
}

}  // namespace hotswap::stock
