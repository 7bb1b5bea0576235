// What attention of one new token is made of: a head in the registers of a warp with its norm and rotary embedding, and
// softmax sums that can be put together in a fixed order.
#pragma once

#include "kernels/common/gpu/device.cuh"

namespace decode::cuda {

using namespace kernels::gpu;

constexpr float kLog2e = 1.44269504f;

// cos and sin of a head's numbers lane + 32 i.
template <class T, int kDim>
struct HeadTables {
  static constexpr int kEach = kDim / 32;
  float cos[kEach], sin[kEach];
  template <class From>
  __device__ __forceinline__ void load(const From* cosines, const From* sines, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) cos[i] = to_float(cosines[lane + 32 * i]), sin[i] = to_float(sines[lane + 32 * i]);
  }
};

// A head of the new token in the registers of a warp: number lane + 32 i.
template <class T, int kDim>
struct Head {
  static constexpr int kEach = kDim / 32;
  float f[kEach];

  template <class From>
  __device__ __forceinline__ void load(const From* from, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) f[i] = to_float(from[lane + 32 * i]);
  }
  template <class From>
  __device__ __forceinline__ void norm(const From* weight, float eps, int lane) {
    if (weight == nullptr) return;
    float sum = 0.f, w[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) w[i] = to_float(weight[lane + 32 * i]), sum += f[i] * f[i];
    const float rstd = rsqrtf(warp_sum(sum) / kDim + eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) f[i] = rounded<T>(rounded<T>(f[i] * rstd) * w[i]);
  }
  __device__ __forceinline__ void rotate(const HeadTables<T, kDim>& t) {
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const int far = i + kEach / 2;
      const float a = f[i], b = f[far];
      f[i] = rounded<T>(a * t.cos[i] - b * t.sin[i]);
      f[far] = rounded<T>(b * t.cos[far] + a * t.sin[far]);
    }
  }
  __device__ __forceinline__ void put(float* to, float scale, int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[lane + 32 * i] = f[i] * scale;
  }
  __device__ __forceinline__ void store(T* to, int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[lane + 32 * i] = from_float<T>(f[i]);
  }
};

// The same sums of several runs of keys as one.
struct Part {
  float most, sum, value;
};
template <class At>
__device__ __forceinline__ Part together(int count, const At& at) {
  Part whole{-INFINITY, 0.f, 0.f};
  for (int i = 0; i < count; ++i) whole.most = fmaxf(whole.most, at(i).most);
  const float base = whole.most == -INFINITY ? 0.f : whole.most;
  for (int i = 0; i < count; ++i) {
    const Part part = at(i);
    const float weight = exp2f(part.most - base);
    whole.sum += part.sum * weight, whole.value += part.value * weight;
  }
  return whole;
}

// Softmax so far of some keys: the largest exponent, the sum and the weighted values, of each query head.
template <int kGroup>
struct Running {
  float most[kGroup], sum[kGroup], value[kGroup][8];

  __device__ __forceinline__ Running() {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      most[g] = -INFINITY, sum[g] = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) value[g][i] = 0.f;
    }
  }
  // Scores become weights, of keys whose values are added next.
  template <int kKeys>
  __device__ __forceinline__ void weigh(float (&score)[kGroup][kKeys]) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      const float before = most[g];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) most[g] = fmaxf(most[g], score[g][u]);
      const float base = most[g] == -INFINITY ? 0.f : most[g], shrink = exp2f(before - base);
      sum[g] *= shrink;
#pragma unroll
      for (int i = 0; i < 8; ++i) value[g][i] *= shrink;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) score[g][u] = exp2f(score[g][u] - base), sum[g] += score[g][u];
    }
  }
  // That of the lane `apart` lanes further on.
  __device__ __forceinline__ void add_lane(int apart) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      const float other = __shfl_xor_sync(kAllLanes, most[g], apart), larger = fmaxf(most[g], other);
      const float mine = larger == -INFINITY ? 0.f : exp2f(most[g] - larger);
      const float theirs = larger == -INFINITY ? 0.f : exp2f(other - larger);
      // The same order of the two in both lanes, so that both have the same bits.
      const bool low = (threadIdx.x & unsigned(apart)) == 0;
      const auto both = [&](float v) {
        const float w = __shfl_xor_sync(kAllLanes, v, apart);
        return low ? v * mine + w * theirs : w * theirs + v * mine;
      };
      sum[g] = both(sum[g]);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[g][i] = both(value[g][i]);
      most[g] = larger;
    }
  }
};

}  // namespace decode::cuda
