// What decode.cu and decode_one.cu do alike with what a decode step is given. Arguments: either's own, whose fields
// have the names of cuda::Decode's and its Problem's.
#pragma once

#include "kernels/moe/activations.cuh"
#include "kernels/moe/moe_cuda.h"

namespace moe::gpu {

template <class Arguments>
Arguments arguments_of(const cuda::Decode& d) {
  const Problem& p = d.p;
  Arguments a{};
  a.index = d.index, a.x = d.x, a.scores = d.scores, a.slots = d.slots;
  a.w_up = d.w_up, a.b_up = d.b_up, a.w_down = d.w_down, a.b_down = d.b_down;
  a.h = d.h, a.a = d.a, a.y = d.y;
  a.assignments = int(p.assignments()), a.experts = int(p.experts), a.hidden = int(p.hidden), a.inner = int(p.inner);
  a.act = p.act, a.limits = {p.alpha, p.limit};
  a.index64 = d.index64, a.wide_scores = p.score_dtype == DType::kFloat32;
  a.interleaved = p.interleaved, a.gate = has_gate(p.act);
  return a;
}

// An assignment's expert, or -1.
template <class Arguments>
__device__ __forceinline__ int expert_of(const Arguments& a, int assignment) {
  if (assignment >= a.assignments) return -1;
  const int64_t e =
      a.index64 ? static_cast<const int64_t*>(a.index)[assignment] : static_cast<const int32_t*>(a.index)[assignment];
  return e >= 0 && e < a.experts ? int(e) : -1;
}

}  // namespace moe::gpu
