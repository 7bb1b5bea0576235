// Sums over the threads of a row, the same bits in each of them.
#pragma once

namespace kernels::gpu {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float lanes_sum(float v, int lanes) {  // lanes: a power of two up to 32; all 32 take part
  for (int o = lanes / 2; o > 0; o /= 2) v += __shfl_xor_sync(kAllLanes, v, o);
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(kAllLanes, v, o);
  return v;
}

// A sum over the threads of a row, once a block: a part of a warp's (kLanes = 0), or at most kLanes of the block's.
template <int kLanes>
__device__ __forceinline__ float sum_once(float v, int lanes) {
  if constexpr (kLanes == 0) {
    return lanes_sum(v, lanes);
  } else {
    constexpr int kWarps = kLanes / 32;
    __shared__ float parts[kWarps];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    const int warps = int(blockDim.x) / 32;
    v = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v += w < warps ? parts[w] : 0.f;
    return v;
  }
}

// kSums sums at once over a block (or over `lanes` threads of a warp) with one barrier: two buffers alternate, so that
// no thread writes where another still reads.
template <int kSums>
class RowSum {
 public:
  struct Memory {
    float parts[2][kSums][32];
  };
  __device__ RowSum(Memory& memory, int lanes) : memory_(memory), lanes_(lanes) {}
  __device__ __forceinline__ void operator()(float (&v)[kSums]) {
    if (lanes_ <= 32) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) v[s] = lanes_sum(v[s], lanes_);
      return;
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      v[s] = warp_sum(v[s]);
      if (threadIdx.x % 32 == 0) memory_.parts[turn_][s][threadIdx.x / 32] = v[s];
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      v[s] = 0.f;
      for (int w = 0; w < int(blockDim.x / 32); ++w) v[s] += memory_.parts[turn_][s][w];
    }
    turn_ ^= 1;
  }

 private:
  Memory& memory_;
  int lanes_, turn_ = 0;
};

}  // namespace kernels::gpu
