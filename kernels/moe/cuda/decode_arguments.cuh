// What sm80_decode.cu and sm90_decode_one.cu are given.
#pragma once

#include "kernels/moe/cuda/activations.cuh"
#include "kernels/moe/cuda/moe.h"

namespace moe::gpu {

struct DecodeArguments {
  const void *index, *x, *w_up, *b_up, *w_down, *b_down, *scores;
  const int32_t* slots;
  void *h, *a, *y;
  int assignments, experts, hidden, inner;
  Act act;
  Limits limits;
  bool index64, wide_scores, interleaved, gate;
};

inline DecodeArguments arguments_of(const cuda::Decode& d) {
  const Problem& p = d.p;
  DecodeArguments a{};
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
__device__ __forceinline__ int expert_of(const DecodeArguments& a, int assignment) {
  if (assignment >= a.assignments) return -1;
  const int64_t e =
      a.index64 ? static_cast<const int64_t*>(a.index)[assignment] : static_cast<const int32_t*>(a.index)[assignment];
  return e >= 0 && e < a.experts ? int(e) : -1;
}

}  // namespace moe::gpu
