#include "hotswap/layers/adapter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>

#include <mutex>

namespace hotswap {

Tensor dropout_mask(const Tensor& x, double p, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(x.device()).clone();
  generator.set_current_seed(seed);
  return at::empty_like(x).bernoulli_(1 - p, generator).div_(1 - p);
}

Tensor dropped(const Tensor& x, const Adapter& adapter, bool drops) {
  if (!drops || !adapter.dropout || adapter.dropout->p == 0) return x;
  return at::mul(x, dropout_mask(x, adapter.dropout->p, adapter.dropout->next_seed()));
}

Tensor dropout_draws() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_dropout_draws(const Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

uint64_t AdapterDropout::next_seed() {
  if (calls++ % parts == 0) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  return seed;
}

Adapter Adapter::with_gain(const Weight& weight) const {
  Adapter made = *this;
  if (!magnitude.defined()) return made;
  Tensor norms;  // [out]
  {
    const at::NoGradGuard no_grad;
    const at::ScalarType wide = c10::promoteTypes(at::kFloat, a.scalar_type());
    Adapter plain{.a = a, .b = b, .scale = scale};
    norms = at::linalg_vector_norm(plain.merged(weight.dequantised(wide)), 2, 1);
  }
  made.gain = at::div(magnitude, norms);
  made.magnitude = Tensor();
  return made;
}

Tensor Adapter::merged(const Tensor& weight) const {
  const at::ScalarType wide = c10::promoteTypes(weight.scalar_type(), a.scalar_type());
  Tensor sum = at::add(weight.to(wide), at::mul(at::matmul(b.to(wide), a.to(wide)), scale));
  if (gain.defined()) sum = at::mul(sum, gain.to(wide).unsqueeze(1));
  return sum.to(weight.scalar_type());
}

void Adapter::to(at::Device device) {
  for (Tensor* part : {&a, &b, &bias, &gain, &magnitude}) {
    if (!part->defined() || part->device() == device) continue;
    const bool learns = part->requires_grad();
    *part = part->detach().to(device);
    part->set_requires_grad(learns);
  }
}

}  // namespace hotswap
