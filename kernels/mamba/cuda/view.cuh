// What the package's kernels share on a GPU: elements wherever they lie, and the formulas' functions.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/mamba/mamba.h"

namespace mamba::gpu {

using namespace kernels::gpu;
using kernels::BFloat16;
using kernels::DType;
using kernels::Half;

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// ---- elements of a type known at run time, the same for all threads
__device__ __forceinline__ float read(const void* data, DType type, int64_t at) {
  if (type == DType::kFloat32) return static_cast<const float*>(data)[at];
  if (type == DType::kBFloat16) return to_float(static_cast<const BFloat16*>(data)[at]);
  return to_float(static_cast<const Half*>(data)[at]);
}
// The same in two parts: bits as they lie, and their value. A value right behind its load keeps those after it waiting.
__device__ __forceinline__ uint32_t read_bits(const void* data, DType type, int64_t at) {
  if (type == DType::kFloat32) return static_cast<const uint32_t*>(data)[at];
  return static_cast<const uint16_t*>(data)[at];
}
__device__ __forceinline__ float value_of(uint32_t bits, DType type) {
  const float half = to_float(Half{uint16_t(bits)}),
              whole = __uint_as_float(type == DType::kFloat32 ? bits : bits << 16);
  return type == DType::kFloat16 ? half : whole;
}
__device__ __forceinline__ int64_t place(const View& v, int64_t batch, int64_t channel, int64_t step) {
  return batch * v.batch + channel * v.channel + step * v.step;
}
__device__ __forceinline__ float read(const View& v, int64_t batch, int64_t channel, int64_t step) {
  return read(v.data, v.type, place(v, batch, channel, step));
}
__device__ __forceinline__ void write(const View& v, int64_t batch, int64_t channel, int64_t step, float value) {
  store_any(v.data, v.type, place(v, batch, channel, step), value);
}
// Of one that may be absent.
__device__ __forceinline__ float read_or_zero(const View& v, int64_t channel) {
  return v.data != nullptr ? read(v, 0, channel, 0) : 0.f;
}
__device__ __forceinline__ int32_t sequence_at(const Sequences& s, int64_t batch, int64_t t) {
  return s.data[batch * s.batch + t * s.step];
}

// ---- functions
__device__ __forceinline__ float sigmoid(float x) { return rcp_approx(1.f + exp2_approx(x * -kLog2E)); }

// log(1 + e^x). Where e = e^x is below 1/2 a polynomial, to 1.1e-7 of the result: the logarithm's absolute error would
// be 3e-6 of a Δ of 0.05, and the state of a slow decay holds a thousand of them. Both are computed: no branch.
__device__ __forceinline__ float softplus(float x) {
  const float e = exp2_approx(x * kLog2E);
  float sum = fmaf(-0.027207145f, e, 0.086332887f);
  sum = fmaf(sum, e, -0.146500915f), sum = fmaf(sum, e, 0.195703551f), sum = fmaf(sum, e, -0.249482989f);
  sum = fmaf(sum, e, 0.333302051f), sum = fmaf(sum, e, -0.499999255f);
  sum = fmaf(sum, e * e, e);
  const float whole = kLn2 * log2_approx(1.f + e);
  sum = e < 0.5f ? sum : whole;
  return x > 20.f ? x : sum;
}

// The same with its derivative, sigmoid(x).
__device__ __forceinline__ float softplus(float x, float& slope) {
  const float e = exp2_approx(x * kLog2E);
  slope = x > 20.f ? 1.f : e * rcp_approx(1.f + e);
  return softplus(x);
}

struct Gate {
  float value, slope;  // of z sigmoid(z)
};
__device__ __forceinline__ Gate gate_of(float z) {
  const float s = sigmoid(z);
  return {z * s, s * (1.f + z * (1.f - s))};
}

}  // namespace mamba::gpu
