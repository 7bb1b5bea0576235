// What a decode step is made of on a GPU, measured one by one: how fast weights can be read by how much is in flight,
// what a node of a graph costs and how much of it the early launch of its successor hides, barriers, and what the L2
// cache keeps.
//
//   nvcc -std=c++20 -O3 -arch=sm_90a -I. bench/gpu_decode_parts.cu -o gpu_decode_parts && ./gpu_decode_parts
//
// Prints a line a case. Results and what follows from them: docs/notes/decode_gpu.md.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"

namespace {

using kernels::gpu::checked;
using kernels::gpu::Mbarrier;

constexpr int kThreads = 256;
constexpr int64_t kModel = int64_t(1) << 30, kLayer = 31 << 20, kNode = 7680 << 10;  // bytes; of Qwen3-0.6B about

__device__ __forceinline__ void wait_for_node_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_node_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ uint4 streamed(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ unsigned folded(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }
__device__ __forceinline__ void keep(unsigned sum, unsigned* out) {
  if (sum == 0x12345678u) *out = sum;  // almost never: the loads stay
}

// Every thread has kDeep vectors of 16 bytes in flight.
template <int kDeep>
__global__ void __launch_bounds__(kThreads) read_plainly(const uint4* from, int64_t vectors, unsigned* out) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  unsigned sum = 0;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += kDeep * stride) {
    uint4 v[kDeep];
#pragma unroll
    for (int j = 0; j < kDeep; ++j) v[j] = i + j * stride < vectors ? streamed(from + i + j * stride) : uint4{};
#pragma unroll
    for (int j = 0; j < kDeep; ++j) sum ^= folded(v[j]);
  }
  keep(sum, out);
}

// TMA fills a ring in shared memory, kBuffers pieces of `piece` bytes; the block's threads read it.
constexpr int kMostBuffers = 32;
__global__ void __launch_bounds__(kThreads)
    read_by_ring(const char* from, int64_t bytes, int piece, int buffers, unsigned* out) {
  extern __shared__ __align__(128) char ring[];
  __shared__ Mbarrier full[kMostBuffers];
  const int64_t pieces = bytes / piece, mine = (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const auto source = [&](int64_t i) { return from + (int64_t(blockIdx.x) + i * gridDim.x) * piece; };
  if (threadIdx.x == 0) {
    for (int b = 0; b < buffers; ++b) full[b].init(1);
    kernels::gpu::fence_mbarrier_init();
    for (int b = 0; b < buffers && b < mine; ++b) {
      full[b].arrive_expect_tx(piece);
      kernels::gpu::bulk_load(ring + b * piece, source(b), piece, full[b]);
    }
  }
  __syncthreads();
  unsigned sum = 0;
  for (int64_t i = 0; i < mine; ++i) {
    const int b = int(i % buffers);
    full[b].wait(uint32_t(i / buffers) & 1);
    for (int at = threadIdx.x * 16; at < piece; at += kThreads * 16)
      sum ^= folded(*reinterpret_cast<const uint4*>(ring + b * piece + at));
    __syncthreads();
    if (threadIdx.x == 0 && i + buffers < mine) {
      full[b].arrive_expect_tx(piece);
      kernels::gpu::bulk_load(ring + b * piece, source(i + buffers), piece, full[b]);
    }
  }
  keep(sum, out);
}

// One node of a decode step: reads its weights, then a vector that the node before it wrote, and writes its own.
enum class When { kAfterWait, kBeforeWait, kNoWeights };
template <When kWhen, int kDeep = 12>
__global__ void __launch_bounds__(kThreads)
    node(const uint4* weights, int64_t vectors, const unsigned* input, unsigned* output) {
  const int64_t stride = int64_t(gridDim.x) * kThreads, first = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  let_next_node_begin();
  if (kWhen != When::kBeforeWait) wait_for_node_before();
  unsigned sum = 0;
  if (kWhen != When::kNoWeights) {
    uint4 v[kDeep];
#pragma unroll
    for (int j = 0; j < kDeep; ++j)
      v[j] = first + j * stride < vectors ? streamed(weights + first + j * stride) : uint4{};
    if (kWhen == When::kBeforeWait) wait_for_node_before();
#pragma unroll
    for (int j = 0; j < kDeep; ++j) sum ^= folded(v[j]);
    for (int64_t i = first + kDeep * stride; i < vectors; i += stride) sum ^= folded(streamed(weights + i));
  }
  if (threadIdx.x == 0) output[blockIdx.x] = sum ^ *(volatile const unsigned*)(input + blockIdx.x);
}

__global__ void __launch_bounds__(kThreads) grid_barriers(unsigned* count, int times) {
  for (int i = 1; i <= times; ++i) {
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
      unsigned seen = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
      } while (seen < unsigned(i) * gridDim.x);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) cluster_barriers(int times) {
  for (int i = 0; i < times; ++i) cooperative_groups::this_cluster().sync();
}

__global__ void __launch_bounds__(32) fetch_into_l2(const char* from, int64_t bytes, int piece) {
  if (threadIdx.x != 0) return;
  for (int64_t at = int64_t(blockIdx.x) * piece; at + piece <= bytes; at += int64_t(gridDim.x) * piece) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at), "r"(piece) : "memory");
  }
}

struct Machine {
  cudaStream_t stream{};
  cudaEvent_t begin{}, end{};
  int sms = 0;
  char* model = nullptr;
  unsigned* out = nullptr;

  Machine() {
    checked(cudaStreamCreate(&stream), "stream");
    checked(cudaEventCreate(&begin), "event");
    checked(cudaEventCreate(&end), "event");
    checked(cudaMalloc(&model, kModel), "cudaMalloc");
    checked(cudaMemset(model, 1, kModel), "cudaMemset");
    checked(cudaMalloc(&out, 1 << 20), "cudaMalloc");
    checked(cudaMemset(out, 0, 1 << 20), "cudaMemset");
    sms = kernels::gpu::multiprocessors();
  }
  // Microseconds of one call: the median of several, each behind another, so that clocks are up.
  double time(const std::function<void()>& work, int times = 15) const {
    std::vector<float> found;
    for (int i = 0; i < times + 3; ++i) {
      checked(cudaEventRecord(begin, stream), "record");
      work();
      checked(cudaEventRecord(end, stream), "record");
      checked(cudaEventSynchronize(end), "synchronize");
      float ms = 0;
      checked(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      if (i >= 3) found.push_back(ms);
    }
    std::nth_element(found.begin(), found.begin() + times / 2, found.end());
    return found[times / 2] * 1e3;
  }
  double time_graph(const std::function<void()>& work) const {
    cudaGraph_t graph{};
    cudaGraphExec_t run{};
    checked(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    work();
    checked(cudaStreamEndCapture(stream, &graph), "capture");
    checked(cudaGraphInstantiate(&run, graph, 0), "instantiate");
    const double us = time([&] { checked(cudaGraphLaunch(run, stream), "launch"); });
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    return us;
  }
};

template <int kDeep>
void plain_reads(const Machine& m) {
  for (const int blocks : {1, 2, 4, 8}) {
    const double us = m.time([&] {
      read_plainly<kDeep><<<m.sms * blocks, kThreads, 0, m.stream>>>((const uint4*)m.model, kModel / 16, m.out);
    });
    std::printf("read, plain loads        %d blocks/SM x %2d x 16 B = %4d KB in flight/SM  %6.0f GB/s\n", blocks, kDeep,
                blocks * kDeep * kThreads * 16 / 1024, kModel / us / 1e3);
  }
}

void ring_reads(const Machine& m) {
  checked(cudaFuncSetAttribute(read_by_ring, cudaFuncAttributeMaxDynamicSharedMemorySize, 224 << 10), "shared memory");
  for (const int piece : {2048, 4096, 8192, 16384, 32768}) {
    for (const int kb : {32, 64, 96, 128, 192}) {
      const int buffers = kb * 1024 / piece;
      if (buffers < 2 || buffers > kMostBuffers) continue;
      const double us = m.time(
          [&] { read_by_ring<<<m.sms, kThreads, kb << 10, m.stream>>>(m.model, kModel, piece, buffers, m.out); });
      std::printf("read, ring of copies     pieces of %5d B, %3d KB in flight/SM  %6.0f GB/s\n", piece, kb,
                  kModel / us / 1e3);
    }
  }
}

template <When kWhen>
void chain(const Machine& m, const char* what, bool early, int64_t bytes, int blocks_per_sm) {
  constexpr int kNodes = 140;
  const auto launches = [&] {
    for (int i = 0; i < kNodes; ++i) {
      const auto* weights = (const uint4*)(m.model + i * kNode % (kModel - kNode));
      const auto* input = m.out + (i % 2) * 8192;
      auto* output = m.out + ((i + 1) % 2) * 8192;
      const int64_t blocks = m.sms * blocks_per_sm;
      if (early) {
        kernels::gpu::launch_after(node<kWhen>, blocks, kThreads, m.stream, weights, bytes / 16, input, output);
      } else {
        kernels::gpu::launch(node<kWhen>, blocks, kThreads, m.stream, weights, bytes / 16, input, output);
      }
    }
  };
  const double us = m.time_graph(launches) / kNodes;
  std::printf("chain of %d nodes, %-44s %d blocks/SM, %4.1f MB each  %5.2f us a node  %6.0f GB/s\n", kNodes, what,
              blocks_per_sm, bytes / 1e6, us, bytes / us / 1e3);
}

void barriers(const Machine& m) {
  constexpr int kTimes = 2000;
  for (const int blocks : {m.sms, 2 * m.sms}) {
    const double us = m.time(
        [&] {
          checked(cudaMemsetAsync(m.out, 0, 4, m.stream), "memset");
          grid_barriers<<<blocks, kThreads, 0, m.stream>>>(m.out, kTimes);
        },
        5);
    std::printf("barrier of the grid      %d blocks  %.2f us\n", blocks, us / kTimes);
  }
  checked(cudaFuncSetAttribute(cluster_barriers, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cluster");
  for (const unsigned size : {2u, 4u, 8u, 16u}) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(m.sms / size * size);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = 200 << 10;
    config.stream = m.stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    checked(cudaFuncSetAttribute(cluster_barriers, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10),
            "shared memory");
    int most = 0;
    checked(cudaOccupancyMaxActiveClusters(&most, cluster_barriers, &config), "occupancy");
    config.gridDim = dim3(most * size);
    const double us = m.time([&] { checked(cudaLaunchKernelEx(&config, cluster_barriers, kTimes), "launch"); }, 5);
    std::printf("barrier of a cluster     %2u blocks, at most %2d clusters = %3d of %d SMs  %.2f us\n", size, most,
                int(most * size), m.sms, us / kTimes);
  }
}

void l2(const Machine& m) {
  const auto read = [&](int64_t at, int64_t bytes) {
    read_plainly<8><<<m.sms * 2, kThreads, 0, m.stream>>>((const uint4*)(m.model + at), bytes / 16, m.out);
  };
  for (const int64_t bytes : {kNode, kLayer / 2, kLayer, 2 * kLayer}) {
    read(kModel / 2, kModel / 2);
    const double again = m.time([&] { read(0, bytes); });
    std::printf("L2, read again           %5.1f MB  %6.0f GB/s\n", bytes / 1e6, bytes / again / 1e3);
  }
  for (const int piece : {4096, 16384, 65536}) {
    int64_t at = 0;
    const double us = m.time([&] {
      at = (at + kLayer) % (kModel - kLayer);  // never there yet
      fetch_into_l2<<<m.sms, 32, 0, m.stream>>>(m.model + at, kLayer, piece);
      read(at, kLayer);
    });
    const double cold = m.time([&] {
      at = (at + kLayer) % (kModel - kLayer);
      read(at, kLayer);
    });
    std::printf("L2, fetched, then read   %5.1f MB in pieces of %5d B  %.1f us; read alone %.1f us\n", kLayer / 1e6,
                piece, us, cold);
  }
}

}  // namespace

int main() {
  const Machine m;
  plain_reads<1>(m);
  plain_reads<2>(m);
  plain_reads<4>(m);
  plain_reads<8>(m);
  plain_reads<16>(m);
  ring_reads(m);
  for (const int blocks : {1, 2, 4}) {
    chain<When::kNoWeights>(m, "nothing but the vector, plain", false, 0, blocks);
    chain<When::kNoWeights>(m, "nothing but the vector, launched early", true, 0, blocks);
    chain<When::kAfterWait>(m, "weights, plain", false, kNode, blocks);
    chain<When::kAfterWait>(m, "weights after the wait, launched early", true, kNode, blocks);
    chain<When::kBeforeWait>(m, "first weights before the wait, launched early", true, kNode, blocks);
  }
  barriers(m);
  l2(m);
  checked(cudaDeviceSynchronize(), "end");
}
