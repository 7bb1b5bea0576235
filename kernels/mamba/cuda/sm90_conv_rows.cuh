// The backward of sm80_conv_four.cuh for long rows of steps beside each other.
#pragma once

#include "kernels/mamba/cuda/sm90_conv_bytes.cuh"

namespace mamba::conv::gpu {

// A block has so many steps of a row, all of which are under way at once, so that what blocks
// move at a moment lies close together (docs/notes/mamba.md). Its warps' sums are added up in their order.
constexpr int kRowThreads = 64, kRowSteps = 4096, kRowTiles = kRowSteps / int(kTile) / (kRowThreads / 32);
template <class T>
constexpr int kRowBlocks = sizeof(T) == 4 ? 6 : 12;  // of a multiprocessor: what its shared memory holds

template <class T>
struct alignas(16) Row {  // x: the last elements before the part too; both: the first behind it
  T x[kPerVector<T> + kRowSteps + kPerVector<T>], dy[kRowSteps + kPerVector<T>];
};

// A channel's filter in one load, where it lies so.
__device__ __forceinline__ Filter<kFour> load_one(const Problem& p, int64_t channel) {
  const void* const w = static_cast<const BFloat16*>(p.weight.data) + channel * kFour;
  if (p.weight.type != DType::kBFloat16 || p.weight.channel != kFour || p.weight.step != 1 ||
      reinterpret_cast<uintptr_t>(w) % 8 != 0)
    return load_filter<kFour>(p, channel);
  const uint2 bits = *static_cast<const uint2*>(w);
  const float2 old = unpack_pair<BFloat16>(bits.x), recent = unpack_pair<BFloat16>(bits.y);
  return {{recent.y, recent.x, old.y, old.x}, read_or_zero(p.bias, channel)};
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    backward_four_rows(const Backward a, const PartsPlan plan) {
  constexpr int kWarps = kRowThreads / 32, kOwn = kRowTiles * int(kTile);
  __shared__ Row<T> memory;
  __shared__ Mbarrier full;
  __shared__ float warp_sums[kFour + 1][kWarps];
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const uint32_t row = blockIdx.x / uint32_t(plan.parts), part = blockIdx.x - row * uint32_t(plan.parts);
  const uint32_t batch = row / uint32_t(p.channels), channel = row - batch * uint32_t(p.channels);
  const int length = int(p.length), first = int(part) * kRowSteps, own = warp * kOwn + lane * kVector;
  const auto at = [&](const View& v) {
    return static_cast<T*>(v.data) + batch * v.batch + channel * v.channel + first;
  };
  const T *const x_from = at(p.x), *const dy_from = at(a.dy);
  T* const x_to = memory.x + kPerVector<T>;
  // TMA brings what there is, a vector before and behind the part too. Threads put zeros elsewhere.
  constexpr int kBeside = kPerVector<T>;
  const int left = length - first, count = left < kRowSteps ? left : kRowSteps;
  const int lead = first > 0 ? kBeside : 0, tail = left > kRowSteps ? kBeside : 0;
  if (threadIdx.x == 0) {
    expect_bytes(full, (2 * count + lead + 2 * tail) * int(sizeof(T)));
    bulk_load(x_to - lead, x_from - lead, uint32_t((lead + count + tail) * int(sizeof(T))), full);
    bulk_load(memory.dy, dy_from, uint32_t((count + tail) * int(sizeof(T))), full);
  }
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  const auto put_zeros = [&](T* to) { *reinterpret_cast<uint4*>(to) = zeros; };
  if (lead == 0 && threadIdx.x == 32) put_zeros(x_to - kBeside);
  for (int i = count + tail + int(threadIdx.x) * kBeside; i < kRowSteps + kBeside; i += kRowThreads * kBeside)
    put_zeros(x_to + i), put_zeros(memory.dy + i);
  Filter<kFour> filter = load_one(p, channel);
  filter.bias *= kScale;
#pragma unroll
  for (int j = 0; j < kFour; ++j) filter.w[j] *= kScale;
  __syncthreads();
  full.wait(0);
  float sums[kFour + 1] = {}, later[kBefore];  // later: g of the steps behind a tile
  {
    const int behind = (warp + 1) * kOwn + (lane < kBefore ? lane : 0);
    float value = filter.bias;
#pragma unroll
    for (int j = 0; j < kFour; ++j) value += filter.w[j] * to_float(x_to[behind - j]);
    const float g = first + behind < length ? through_scaled_silu(to_float(memory.dy[behind]), value) : 0.f;
#pragma unroll
    for (int s = 0; s < kBefore; ++s) later[s] = __shfl_sync(kAllLanes, g, s);
  }
  __syncthreads();  // all have read what is behind their part: dx takes dy's place
#pragma unroll 1
  for (int r = kRowTiles - 1; r >= 0; --r) {
    const int here = own + r * int(kTile), start = first + here;
    float x[kHalo + kVector], before_own[kHalo], elements[kVector], dy[kVector], g[kVector + kBefore];
    unpack(load_few<kHalo>(x_to + here - kHalo), before_own);
    load_floats<kVector>(x_to + here, elements), load_floats<kVector>(memory.dy + here, dy);
    if (start == 0 && p.initial.data != nullptr) {
#pragma unroll
      for (int s = kHalo - kBefore; s < kHalo; ++s) before_own[s] = before(p, batch, channel, s - kHalo);
    }
    const bool past = start >= length;
    steps_gradients(filter, before_own, elements, dy, past, lane, x, g, later);
    float dx[kVector];
    add_steps(filter, x, g, dx, sums);
    put_floats<kVector>(memory.dy + here, dx);
    if (start == 0 && a.dinitial.data != nullptr) store_before<kFour>(a, batch, channel, filter, g, nullptr);
  }
  fence_proxy_async_shared();
  __syncwarp();
  const int mine = count - warp * kOwn < kOwn ? count - warp * kOwn : kOwn;  // steps of the warp
  if (lane == 0 && mine > 0) {
    bulk_store(at(a.dx) + warp * kOwn, memory.dy + warp * kOwn, uint32_t(mine * int(sizeof(T))));
    bulk_commit();
  }
#pragma unroll
  for (int j = 0; j <= kFour; ++j) {
    const float sum = warp_sum(sums[j]);
    if (lane == 0) warp_sums[j][warp] = sum;
  }
  __syncthreads();
  if (lane == 0) bulk_wait_read();
  if (threadIdx.x > kFour) return;
  const int j = int(threadIdx.x), to_row = j < kFour ? kFour - 1 - j : kFour;
  float sum = warp_sums[j][0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += warp_sums[j][w];
  a.partials[((batch * plan.parts + part) * (kFour + 1) + to_row) * p.channels + channel] = sum * kScale;
}

}  // namespace mamba::conv::gpu
