// What it costs that a vector of 16-bit numbers goes from all blocks of a GPU to all blocks, while a warp of each block
// streams weights through shared memory: a persistent kernel of a decode step does nothing else between its products.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/gpu_decode_exchange.cu -o gpu_decode_exchange
//   ./gpu_decode_exchange
//
// Prints a line a case; what each block got is checked in every turn. Results: docs/notes/archive/decode_launches.md.
#include <cstdio>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"

using namespace kernels::gpu;
constexpr int kT = 512;  // threads that exchange; a warp more streams
__device__ __forceinline__ void bsync() { asm volatile("bar.sync 1, 512;" ::: "memory"); }
__device__ unsigned long long count_;
__device__ unsigned flags_[256 * 32];
// kHow: 0 to 3 a barrier of all blocks, then everybody reads; 4 two numbers and their turn in 8 bytes, asked for until
// it is this turn.
template <int kHow>
__global__ void __launch_bounds__(kT + 32, 1)
    exchange(const char* weights, long long bytes, int flight, uint4* vec, int n, int times, unsigned epoch0,
             unsigned long long base, unsigned* out, unsigned long long* moved) {
  // ---- prologue: barriers
  extern __shared__ __align__(128) char raw[];
  __shared__ Mbarrier full[16];
  __shared__ volatile int done;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 16; ++i) full[i].init(1);
    fence_mbarrier_init();
    done = 0;
  }
  __syncthreads();

  // ---- producer: one thread keeps copies of weights in flight until the others are done
  if (threadIdx.x >= kT) {
    if (flight == 0 || threadIdx.x != kT) return;
    long long pieces = bytes >> 14, at = blockIdx.x, i = 0;
    for (; !done; ++i) {
      if (i >= flight) full[(i - flight) % 12].wait(((i - flight) / 12) & 1);
      const int s = i % 12;
      full[s].arrive_expect_tx(16384);
      for (int r = 0; r < 8; ++r)
        bulk_load(raw + 16384 + s * 16384 + r * 2048, weights + (at << 14) + r * 2048, 2048, full[s]);
      at += gridDim.x;
      if (at >= pieces) at = blockIdx.x;
    }
    for (long long j = i > flight ? i - flight : 0; j < i; ++j) full[j % 12].wait((j / 12) & 1);
    atomicAdd(moved, (unsigned long long)i << 14);
    return;
  }

  // ---- consumer: `times` exchanges of a vector between all blocks
  uint4* shared = reinterpret_cast<uint4*>(raw);
  const int tid = threadIdx.x, vectors = n / 8, pairs = n / 2;  // pairs: 8 bytes each with LL
  unsigned sum = 0;
  unsigned long long target = base;
  for (int t = 1; t <= times; ++t) {
    const int buffer = t & 1;
    const unsigned tag = epoch0 + t;
    if (kHow <= 3) {
      // this block's share of the vector, then a barrier
      unsigned short* to = reinterpret_cast<unsigned short*>(vec + buffer * 4096);
      const int begin = n * blockIdx.x / gridDim.x, end = n * (blockIdx.x + 1) / gridDim.x;
      if (begin + tid < end) to[begin + tid] = (unsigned short)(tag + begin + tid);
      bsync();
      target += gridDim.x;
      if (kHow == 0 && tid == 480) {
        asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(&count_) : "memory");
        unsigned long long now;
        do {
          asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(&count_) : "memory");
        } while (now < target);
      }
      if (kHow == 1 && tid == 480) {  // three polls on their way
        asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(&count_) : "memory");
        unsigned long long a, b, c;
        auto poll = [&](unsigned long long& v) {
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(&count_) : "memory");
        };
        poll(a);
        __nanosleep(0);
        poll(b);
        poll(c);
        while (true) {
          if (a >= target) break;
          poll(a);
          if (b >= target) break;
          poll(b);
          if (c >= target) break;
          poll(c);
        }
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
      }
      if (kHow == 2 && tid == 480) {  // relaxed, no fence after it: reads below go to L2 anyway
        asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(&count_) : "memory");
        unsigned long long now;
        do {
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(&count_) : "memory");
        } while (now < target);
      }
      if (kHow == 3 && tid >= 352) {  // a flag a block, each polled by a thread
        if (tid == 480)
          asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags_ + blockIdx.x), "r"(tag) : "memory");
        if (tid - 352 < int(gridDim.x)) {
          unsigned now;
          do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(flags_ + tid - 352) : "memory");
          } while (int(now - tag) < 0);
        }
      }
      bsync();
      for (int i = tid; i < vectors; i += kT) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(vec + buffer * 4096 + i)
                     : "memory");
        shared[i] = v;
      }
      bsync();
    } else {
      uint2* to = reinterpret_cast<uint2*>(vec + 16384 + buffer * 8192);
      const int begin = pairs * blockIdx.x / gridDim.x, end = pairs * (blockIdx.x + 1) / gridDim.x;
      if (begin + tid < end) {
        const int p = begin + tid;
        const unsigned v = ((tag + 2 * p) & 0xffff) | (tag + 2 * p + 1) << 16;
        asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to + p), "r"(v), "r"(tag) : "memory");
      }
      if (kHow == 4) {
        for (int i = tid; i < pairs / 2; i += kT) {
          uint4 v;
          do {
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "l"(to + 2 * i)
                         : "memory");
          } while (v.y != tag || v.w != tag);
          reinterpret_cast<uint2*>(shared)[i] = make_uint2(v.x, v.z);
        }
      }
      bsync();
    }
    // every number must be the one of this turn
    for (int i = tid; i < pairs; i += kT) {
      const unsigned v = reinterpret_cast<unsigned*>(shared)[i], want = ((tag + 2 * i) & 0xffff) | (tag + 2 * i + 1)
                                                                                                       << 16;
      sum += v != want;
    }
    bsync();
  }

  // ---- epilogue: errors are counted, the producer ends
  if (sum) atomicAdd(out, sum);
  if (tid == 0) done = 1;
}
int main() {
  cudaStream_t s;
  cudaStreamCreate(&s);
  cudaEvent_t b, e;
  cudaEventCreate(&b);
  cudaEventCreate(&e);
  char* w;
  long long bytes = 1ll << 30;
  checked(cudaMalloc(&w, bytes), "m");
  cudaMemset(w, 1, bytes);
  uint4* vec;
  checked(cudaMalloc(&vec, 1 << 20), "m");
  cudaMemset(vec, 0, 1 << 20);
  unsigned* out;
  unsigned long long* moved;
  cudaMalloc(&out, 64);
  cudaMalloc(&moved, 64);
  cudaMemset(out, 0, 64);
  const int sms = multiprocessors(), times = 1000;
  unsigned epoch = 1000;
  unsigned long long base = 0;
  const int smem = 16384 + 12 * 16384;
  auto run = [&](auto kernel, const char* name, bool counts, int n, int flight) {
    checked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem), "attr");
    float best = 1e9;
    double rate = 0;
    for (int i = 0; i < 4; ++i) {
      cudaMemset(moved, 0, 8);
      cudaEventRecord(b, s);
      kernel<<<sms, kT + 32, smem, s>>>(w, bytes, flight, vec, n, times, epoch, base, out, moved);
      checked(cudaGetLastError(), "launch");
      cudaEventRecord(e, s);
      checked(cudaEventSynchronize(e), "sync");
      epoch += times + 1;
      if (counts) base += (unsigned long long)times * sms;
      float ms;
      cudaEventElapsedTime(&ms, b, e);
      if (ms < best) {
        best = ms;
        unsigned long long m;
        cudaMemcpy(&m, moved, 8, cudaMemcpyDeviceToHost);
        rate = m / ms / 1e9;
      }
    }
    unsigned bad;
    cudaMemcpy(&bad, out, 4, cudaMemcpyDeviceToHost);
    printf("%-34s n %5d flight %2d x 16 KB: %.2f us a turn, stream %.2f TB/s, wrong %u\n", name, n, flight,
           best * 1e3 / times, rate, bad);
  };
  for (int flight : {0, 1, 2, 3, 4, 8})
    for (int n : {1024, 4096}) {
      run(exchange<0>, "barrier, acquire polls", true, n, flight);
      if (n == 1024) run(exchange<1>, "barrier, 3 relaxed polls, fence", true, n, flight);
      if (n == 1024) run(exchange<2>, "barrier, relaxed polls", true, n, flight);
      run(exchange<3>, "barrier, flag a block", false, n, flight);
      run(exchange<4>, "numbers with their turn", false, n, flight);
    }
}
