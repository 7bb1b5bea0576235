// The passes of state space duality on a GPU, in order (ssd_plan.h).
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/ssd_plan.h"

namespace mamba::cuda {

using namespace ssd::gpu;

namespace {

Plan plan_here(const ssd::Problem& p, bool backward) { return plan_of(p, backward, kernels::gpu::multiprocessors()); }
bool walks_here(const ssd::Forward& a) { return walks(a.of, a.y, kernels::gpu::multiprocessors()); }

}  // namespace

int64_t ssd_memory(const ssd::Forward& a) {
  const Plan plan = plan_here(a.of, false);
  return walks_here(a) ? plan.states : plan.used;
}
int64_t ssd_memory(const ssd::Backward& a) { return plan_here(a.of, true).used; }

void ssd_forward(const ssd::Forward& a, float* memory, Stream stream) {
  const ssd::Problem& p = a.of;
  const Plan plan = plan_here(p, false);
  steps(p, plan, memory, stream);
  if (walks_here(a)) return walk(p, plan, a.y, a.final, memory, stream);
  states(p, plan, {.tokens = p.x, .group = p.B, .first = p.initial, .last = a.final, .states = plan.states}, memory,
         stream);
  outputs(p, plan, {.y = a.y}, memory, stream);
}

void ssd_backward(const ssd::Backward& a, float* memory, Stream stream) {
  const ssd::Problem& p = a.of;
  const Plan plan = plan_here(p, true);
  steps(p, plan, memory, stream);
  states(p, plan, {.tokens = p.x, .group = p.B, .first = p.initial, .last = nullptr, .states = plan.states}, memory,
         stream);
  ssd::Tokens dy = a.dy;
  if (p.z.data != nullptr) {
    const int64_t row = p.heads * p.dim;
    dy = {memory + plan.gated, p.length * row, row, p.dim};
    outputs(p, plan, {.y = {}, .dy = a.dy, .dz = a.dz, .gated = dy}, memory, stream);
  }
  states(p, plan,
         {.tokens = dy, .group = p.C, .first = a.dfinal, .last = a.dinitial, .states = plan.dstates, .backward = true},
         memory, stream);
  gradients(a, plan, dy, memory, stream);
  sums(a, plan, memory, stream);
}

}  // namespace mamba::cuda
