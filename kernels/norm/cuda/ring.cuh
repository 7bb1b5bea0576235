// What backward's blocks go through rows with: a ring in shared memory that every thread fills for itself, so that no
// barrier stands between a row's arrival and its use; sums over the threads of a row; sums over the rows of a block.
#pragma once

#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/tile/copy_async.cuh"
#include "kernels/norm/cuda/rows.cuh"

namespace norms::gpu {

constexpr int kRingThreads = 512;  // most threads a block, plan_ring's

extern __shared__ uint4 ring_memory[];  // [depth][tensors][vectors][threads]

// kDepth rows of kTensors tensors; kDepth - 1 of them are on their way while one is worked on.
template <class T, int kVectors, int kTensors, int kDepth, bool kFull>
class Ring {
 public:
  static_assert((kDepth & (kDepth - 1)) == 0);
  static constexpr int N = kPerVector<T>;
  using At = Position<T, kVectors, true, kFull>;
  struct Source {
    const void* data;
    int64_t stride;
  };
  __device__ Ring(const At& place, const Source (&from)[kTensors]) : p_(place) {
#pragma unroll
    for (int t = 0; t < kTensors; ++t) from_[t] = from[t];
#pragma unroll
    for (int d = 0; d + 1 < kDepth; ++d) send(d);
  }
  // The next row arrives; the one kDepth - 1 rows on sets out.
  __device__ __forceinline__ void advance() {
    copy_async_wait<kDepth - 2>();
    send(kDepth - 1);
    slot_ = (slot_ + 1) % kDepth;
    row_ += p_.step;
  }
  // Vector k of the row that advance() brought.
  __device__ __forceinline__ Pack<T, N> get(int tensor, int k) const {
    const uint4 v = *at((slot_ + kDepth - 1) % kDepth, tensor, k);
    Pack<T, N> out;
    out.w[0] = v.x, out.w[1] = v.y, out.w[2] = v.z, out.w[3] = v.w;
    return out;
  }

 private:
  __device__ __forceinline__ uint4* at(int slot, int tensor, int k) const {
    return ring_memory + ((slot * kTensors + tensor) * kVectors + k) * int(blockDim.x) + threadIdx.x;
  }
  __device__ __forceinline__ void send(int ahead) {
    const int64_t row = p_.first + p_.group + row_ + ahead * p_.step;
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const bool has = row < p_.rows && p_.has(k);
        const int64_t from = has ? row * from_[t].stride + p_.col(k) : 0;
        copy_async(at((slot_ + ahead) % kDepth, t, k), static_cast<const T*>(from_[t].data) + from, has);
      }
    }
    copy_async_commit();
  }

  const At& p_;
  Source from_[kTensors];
  int slot_ = 0;
  int64_t row_ = 0;
};

// Sums of kSums elements at once over the threads of each row of a block: RowSum for groups of warps, each with a
// barrier of its own. Two buffers take turns, so that nobody writes where another still reads.
template <int kSums>
class GroupSum {
 public:
  static constexpr int kWarps = kRingThreads / 32, kMaxGroups = kRingThreads / 64;
  struct Memory {
    float4 parts[2][kSums][kMaxGroups][kWarps / 4];  // zeros stay where a row has no warp
  };
  __device__ GroupSum(Memory& memory, int lanes, int group) : memory_(memory), lanes_(lanes), group_(group) {
    if (lanes <= 32) return;
    auto* all = reinterpret_cast<float*>(&memory);
    for (unsigned i = threadIdx.x; i < sizeof(Memory) / 4; i += blockDim.x) all[i] = 0.f;
    __syncthreads();
  }
  __device__ __forceinline__ void operator()(float (&v)[kSums]) {
    if (lanes_ <= 32) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) v[s] = lanes_sum(v[s], lanes_);
      return;
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) v[s] = warp_sum(v[s]);
    if (threadIdx.x % 32 == 0) {
      const int warp = (int(threadIdx.x) - group_ * lanes_) / 32;
#pragma unroll
      for (int s = 0; s < kSums; ++s) reinterpret_cast<float*>(memory_.parts[turn_][s][group_])[warp] = v[s];
    }
    barrier_wait(group_ + 1, lanes_);
#pragma unroll
    for (int s = 0; s < kSums; ++s) v[s] = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps / 4; ++i) {
      if (i * 128 >= lanes_) continue;
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        const float4 four = memory_.parts[turn_][s][group_][i];
        v[s] += (four.x + four.y) + (four.z + four.w);
      }
    }
    turn_ ^= 1;
  }

 private:
  Memory& memory_;
  int lanes_, group_, turn_ = 0;
};

// The block's sums of its columns become its row of `partial`, group after group, through the ring's memory, which
// nobody uses any more.
template <int kVectors, int N, class P>
__device__ __forceinline__ void write_partial(float* partial, const P& p, float (&sum)[kVectors][N]) {
  auto* memory = reinterpret_cast<float*>(ring_memory);  // [kVectors * N][threads]
  if (p.groups() > 1) {
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) memory[(k * N + i) * blockDim.x + threadIdx.x] = sum[k][i];
    }
    __syncthreads();
    if (p.group > 0) return;
    for (int g = 1; g < p.groups(); ++g) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[k][i] += memory[(k * N + i) * blockDim.x + g * p.lanes + p.lane];
      }
    }
  }
  float* out = partial + int64_t{blockIdx.x} * p.cols;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!p.has(k)) continue;
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<float4*>(out + p.col(k) + i) =
          make_float4(sum[k][i], sum[k][i + 1], sum[k][i + 2], sum[k][i + 3]);
  }
}

}  // namespace norms::gpu
