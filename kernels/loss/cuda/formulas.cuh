// loss.h's formulas on a GPU, for whoever walks through the logits: row by row (loss.cu) or column by column
// (columns.cu).
#pragma once

#include "kernels/common/gpu/activations.cuh"
#include "kernels/common/gpu/reduce/softmax_state.cuh"
#include "kernels/loss/loss.h"

namespace loss::gpu {

using namespace kernels;
using namespace kernels::gpu;

struct Plain {
  float cap;
  __device__ __forceinline__ float u(float z) const { return z; }
  __device__ __forceinline__ float slope(float) const { return 1.f; }
};
struct Capped {
  float cap;
  __device__ __forceinline__ float u(float z) const { return cap * tanhf(z / cap); }
  __device__ __forceinline__ float slope(float u) const {
    const float t = u / cap;
    return 1.f - t * t;
  }
};

// log sum e^u = max + log_sum; apart, neither is lost to the other's rounding.
struct Lse {
  float max, log_sum;
  __device__ __forceinline__ float value() const { return max + log_sum; }
};
__device__ __forceinline__ Lse load_lse(const LossRows& a, int64_t row) {
  const float2 v = reinterpret_cast<const float2*>(a.lse)[row];
  return {v.x, v.y};
}
__device__ __forceinline__ void store_lse(const LossRows& a, int64_t row, Lse lse) {
  reinterpret_cast<float2*>(a.lse)[row] = make_float2(lse.max, lse.log_sum);
}

// Near which u is summed: a row whose logits have an offset in common would lose their differences to its rounding.
template <class Cap>
__device__ __forceinline__ float pivot_of(Cap cap, float zt) {
  const float u = cap.u(zt);
  return u - u == 0.f ? u : 0.f;  // an infinite target's would make the sum nan
}

// The state of u, and what smoothing needs.
struct Online : SoftmaxState<> {
  float weighted = 0.f;  // of w (u - pivot), where labels are smoothed

  __device__ __forceinline__ Lse lse() const { return {max, logf(sum)}; }

  // Those of others.
  __device__ __forceinline__ void join(float other_max, float other_sum, float other_weighted) {
    raise<false>(other_max);
    sum += other_sum * expf(other_max - finite_or_zero(max));
    weighted += other_weighted;
  }
  template <bool kCoarse, int N>  // none of them above max
  __device__ __forceinline__ void add(const float (&u)[N], bool smoothed, float pivot) {
    SoftmaxState<>::add<kCoarse>(u);
    if (!smoothed) return;
    float near = 0.f;
#pragma unroll
    for (int i = 0; i < N; ++i) near += kCoarse ? u[i] : u[i] - pivot;
    weighted +=
        kCoarse ? __fmaf_rn(-float(N), pivot, near) : near;  // 16-bit values of one size add up without rounding
  }
};

// Where the row's target is none, its loss and gradient are nan, and reduce() stops the GPU.
__device__ __forceinline__ bool is_word(const LossRows& a, int64_t target) { return target >= 0 && target < a.vocab; }

// What the parts of a row's loss are multiplied by.
struct Parts {
  float target, mean;  // lse - u_t; lse, where labels are smoothed
  float all;           // p in the gradient
};
__device__ __forceinline__ Parts parts_of(const LossRows& a, int64_t t) {
  const float eps = a.label_smoothing;
  if (a.class_weight == nullptr || !is_word(a, t)) return {1.f - eps, 1.f, 1.f};
  const float target = (1.f - eps) * a.class_weight[t], mean = eps != 0.f ? *a.class_sum / float(a.vocab) : 0.f;
  return {target, mean, target + eps * mean};
}

// What token_scaling multiplies a row's loss and gradient by; zt: the target's logit, read for it alone.
template <class Cap>
__device__ __forceinline__ float token_scale(const LossRows& a, Cap cap, float zt, Lse lse) {
  return a.token_scaling ? expf((cap.u(zt) - lse.max) - lse.log_sum) : 1.f;
}

// The loss of a row whose target's logit is zt.
template <class Cap>
__device__ __forceinline__ float loss_of(const LossRows& a, Cap cap, const Online& sums, const Parts& parts, float zt) {
  const float eps = a.label_smoothing;
  const Lse lse = sums.lse();
  float loss = parts.target * ((lse.max - cap.u(zt)) + lse.log_sum) + a.z_loss * lse.value() * lse.value();
  if (eps != 0.f) {
    const float mean = parts.mean * (lse.max - pivot_of(cap, zt)) - sums.weighted / float(a.vocab);
    loss += eps * (mean + parts.mean * lse.log_sum);
  }
  return token_scale(a, cap, zt, lse) * loss;
}

// dz = (weight e^(u - lse) - shift) slope(u), and the target's own term.
struct Gradient {
  Lse lse;
  float weight, shift, target;

  template <bool kCoarse, class Cap>
  __device__ __forceinline__ float operator()(Cap cap, float z, bool is_target, float shift) const {
    constexpr float kLog2 = 1.44269504f;
    const float u = cap.u(z), down = u - lse.max;
    const float p = kCoarse ? exp2_approx(__fmaf_rn(down, kLog2, -kLog2 * lse.log_sum)) : expf(down - lse.log_sum);
    const float d = weight * p - shift;
    return (is_target ? d - target : d) * cap.slope(u);
  }
};

// shift: without a class weight. token: what token_scaling multiplies by, or nan.
__device__ __forceinline__ Gradient gradient_of(const LossRows& a, const float* scale, int64_t row, Lse lse,
                                                const Parts& parts, float token) {
  const float eps = a.label_smoothing;
  const float g = token * a.grad_scale * (a.dloss == nullptr ? 1.f : a.dloss[row]) * (scale == nullptr ? 1.f : *scale);
  return {lse, g * (parts.all + 2.f * a.z_loss * lse.value()), g * eps / float(a.vocab), g * parts.target};
}

}  // namespace loss::gpu
