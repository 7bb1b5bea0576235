// A scan whose batch and channels do not fill a GPU goes through parts of the time beside each other, one entry of the
// batch after another. To a kernel the parts are a batch. They are gone through twice: from zero, for what each leaves
// behind, and from what all before it leave, which is a sum:
//   forward: the state before part i + 1 = exp(A sum of Δ over part i) (the state before part i) + what part i leaves
//   backward: the same of the state's gradient, from the last part to the first
// What is behind the last whole part is a part of its own, after the others (in backward before them).
#pragma once

#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/sm80_scan.cuh"

namespace mamba::scan::gpu {

// Shapes alone decide, so that sums have one order on every GPU.
struct Split {
  int64_t parts, steps, tail;  // parts of so many steps, and behind them
};
// `blocks` of an entry of the batch, of which a GPU of 132 multiprocessors has `at_once`.
inline Split split_of(const Problem& p, int64_t blocks, int64_t at_once) {
  constexpr int64_t kLeast = 256;  // steps: below, launches are all that there is
  const int64_t parts = std::min(at_once / std::max<int64_t>(1, blocks), p.length / kLeast);
  const bool worth = parts >= 4 * p.batch && p.batch > 0;  // every step is gone through twice
  if (!worth || p.sequence.data != nullptr || p.b.constant || p.c.constant) return {1, p.length, 0};
  const int64_t steps = p.length / parts / kGpuChunk * kGpuChunk;
  return {parts, steps, p.length - parts * steps};
}

// States of all parts and of the tail, and a sum of Δ for each part and channel.
inline int64_t split_memory(const Problem& p, const Split& s) {
  return s.parts > 1 ? ((s.parts + 1) * p.states + s.parts) * p.channels : 0;
}

// Where the entry's step `first` is, as a batch of `apart` steps each.
inline View part_of(View v, int64_t entry, int64_t first, int64_t apart) {
  if (v.data == nullptr) return v;
  v.data = static_cast<char*>(v.data) + (entry * v.batch + first * v.step) * int64_t(kernels::size_of(v.type));
  v.batch = apart * v.step;
  return v;
}
inline Coefficients part_of(Coefficients c, int64_t entry, int64_t first, int64_t apart) {
  c.view = part_of(c.view, entry, first, apart);
  return c;
}
// [batch, channels, states] of one entry.
inline View entry_of(View v, int64_t entry) {
  if (v.data != nullptr) v.data = static_cast<char*>(v.data) + entry * v.batch * int64_t(kernels::size_of(v.type));
  return v;
}
inline Problem part_of(Problem p, int64_t entry, int64_t first, int64_t steps, int64_t parts) {
  for (View* v : {&p.u, &p.delta, &p.z}) *v = part_of(*v, entry, first, steps);
  p.b = part_of(p.b, entry, first, steps), p.c = part_of(p.c, entry, first, steps);
  p.batch = parts, p.length = steps;
  return p;
}

struct PartStates {
  float* memory;
  int64_t channels;
  int states;

  View from(int64_t part) const {  // [parts, channels, states]
    return {memory + part * channels * states, DType::kFloat32, channels * states, states, 1};
  }
};

// Sums of Δ over the parts of p, a batch: [parts, channels]. A warp has 32 channels of some steps where channels lie
// beside each other (kChannels), else a channel.
template <bool kChannels>
__global__ void __launch_bounds__(kThreads) sum_delta(const Problem p, float* to) {
  __shared__ float memory[kWarps][32];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  constexpr int kEach = kChannels ? 32 : kWarps, kApart = kChannels ? kWarps : 32;
  const int64_t blocks = (p.channels + kEach - 1) / kEach;
  const int64_t part = blockIdx.x / blocks, channel = blockIdx.x % blocks * kEach + (kChannels ? lane : warp);
  const bool inside = channel < p.channels;
  const float bias = inside ? read_or_zero(p.delta_bias, channel) : 0.f;
  float sum = 0.f;
#pragma unroll 8
  for (int64_t t = kChannels ? warp : lane; t < p.length; t += kApart) {
    const float raw = inside ? read(p.delta, part, channel, t) + bias : 0.f;
    sum += p.softplus ? softplus(raw) : raw;
  }
  if constexpr (kChannels) {
    memory[warp][lane] = sum;
    __syncthreads();
    sum = memory[0][lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += memory[w][lane];
    if (warp == 0 && inside) to[part * p.channels + channel] = sum;
  } else {
    sum = warp_sum(sum);
    if (lane == 0 && inside) to[part * p.channels + channel] = sum;
  }
}

// Over what each part leaves from zero it writes what the part begins with; `begin` is what the first begins with,
// `end` what the last leaves. A thread has one number of one channel. kBack: the last part is the first.
template <bool kBack>
__global__ void __launch_bounds__(kThreads)
    join_parts(const Problem p, const PartStates states, const float* sums, View begin, View end) {
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x, channel = n / p.states, state = n % p.states;
  if (channel >= p.channels) return;
  const float rate = kLog2E * read(p.a, 0, channel, state);
  float h = begin.data != nullptr ? read(begin, 0, channel, state) : 0.f;
  for (int64_t i = 0; i < p.batch; ++i) {
    const int64_t part = kBack ? p.batch - 1 - i : i;
    float& at = states.memory[part * p.channels * p.states + n];
    const float left = at;
    at = h;
    h = exp2_approx(sums[part * p.channels + channel] * rate) * h + left;
  }
  if (end.data != nullptr) write(end, 0, channel, state, h);
}

// The sums of Δ, and the parts joined.
template <bool kBack>
void join(const Problem& parts, const PartStates& states, float* sums, const View& begin, const View& end,
          kernels::Stream stream) {
  const bool channels = parts.delta.channel < parts.delta.step;
  kernels::gpu::launch(channels ? &sum_delta<true> : &sum_delta<false>,
                       parts.batch * kernels::divide_up(parts.channels, channels ? 32 : kWarps), kThreads, stream,
                       parts, sums);
  kernels::gpu::launch(&join_parts<kBack>, kernels::divide_up(parts.channels * parts.states, kThreads), kThreads,
                       stream, parts, states, sums, begin, end);
}

}  // namespace mamba::scan::gpu
