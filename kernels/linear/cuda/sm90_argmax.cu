// Where the largest number of a row stands. A vocabulary's row is a megabyte at most, and time to begin is all that
// counts: a cluster of blocks reads it at once.
#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cluster.cuh"
#include "kernels/linear/cuda/linear.h"

namespace linear::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kThreads = 512, kBlocks = 8, kWarps = kThreads / 32;

// The key of a larger element is larger, and of equal elements that of the first one. NaN is larger than all.
using Key = unsigned long long;
__device__ __forceinline__ Key key_of(float f, uint32_t place) {
  const uint32_t bits = __float_as_uint(f + 0.f);  // -0 is 0
  const uint32_t order = f != f ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
  return Key{order} << 32 | ~place;
}
__device__ __forceinline__ Key of_warp(Key key) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, o));
  return key;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) argmax_kernel(const Argmax a) {
  __shared__ Key of_warps[kWarps];
  __shared__ Key of_blocks[kBlocks];  // in the first one
  __shared__ Mbarrier received;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t rank = cluster_ctarank();
  const int64_t row = blockIdx.x / kBlocks, whole = a.cols / N * N;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  if (threadIdx.x == 0) {  // keys come to the first block alone
    received.init(1);
    fence_mbarrier_init();
    received.arrive_expect_tx(rank == 0 ? sizeof(of_blocks) : 0);
  }
  cluster_arrive_relaxed();
  grid_dependency_wait();
  launch_dependents();
  const int64_t said = a.said == nullptr ? 0 : *a.at * (gridDim.x / kBlocks) + row;
  Key best = 0;
  const auto look = [&](auto many, int64_t at) {
    float f[many.value];
    load_floats<many.value>(x + at, f);
#pragma unroll
    for (int i = 0; i < many.value; ++i) best = max(best, key_of(f[i], uint32_t(at + i)));
  };
#pragma unroll 4
  for (int64_t at = (int64_t{rank} * kThreads + threadIdx.x) * N; at < whole; at += kBlocks * kThreads * N)
    look(std::integral_constant<int, N>(), at);
  if (whole + threadIdx.x < a.cols) look(std::integral_constant<int, 1>(), whole + threadIdx.x);  // fewer than a warp

  best = of_warp(best);
  if (lane == 0) of_warps[warp] = best;
  cluster_wait();
  __syncthreads();
  if (warp == 0) {
    best = of_warp(lane < kWarps ? of_warps[lane] : 0);
    if (lane == 0)
      st_async_cluster(0, of_blocks[rank], best, received);  // a barrier of the cluster would wait for memory
    if (rank > 0) return;
    received.wait(0);
    best = of_warp(lane < kBlocks ? of_blocks[lane] : 0);
    if (lane == 0) a.place[row] = int64_t{~uint32_t(best)};
    if (lane == 0 && a.said != nullptr) a.said[said] = int64_t{~uint32_t(best)};
  }
}

template <class T, int N>
void launch_argmax(const Argmax& a, Stream stream) {
  launch_after_with_memory<argmax_kernel<T, N>>(/*bytes=*/0, a.rows * kBlocks, kThreads, kBlocks, stream, a);
}

}  // namespace

void argmax(const Argmax& a, Stream stream) {
  if (a.rows == 0) return;
  with_dtype(a.dtype, [&]<typename T>() {
    aligned(a.x, a.x_stride, a.dtype, a.rows) ? launch_argmax<T, kPerVector<T>>(a, stream)
                                              : launch_argmax<T, 1>(a, stream);
  });
}

}  // namespace linear::cuda
