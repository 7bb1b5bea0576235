// The convolution as models have it on kernels of its own: four taps, SiLU, one sequence a row, whole vectors. Nothing
// asks which taps count, and a thread's next loads are under way while it works.
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/conv_channels.cuh"
#include "kernels/mamba/cuda/conv_steps.cuh"

namespace mamba::conv::gpu {

constexpr int kFour = 4, kBefore = kFour - 1;

// 16 bytes or more that are read once and leave L2 after what is written (docs/notes/cuda_bytes.md).
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_evict_last(const T* p) {
  Pack<T, N> out;
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T) / 16); ++i)
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(out.w[4 * i]), "=r"(out.w[4 * i + 1]), "=r"(out.w[4 * i + 2]), "=r"(out.w[4 * i + 3])
                 : "l"(reinterpret_cast<const uint4*>(p) + i), "l"(policy));
  return out;
}

// ---- steps beside each other
// A warp has kRows x 32 vectors of a row, whose loads are all under way together. The last lane keeps what comes before
// lane 0's next vector: the warp's last one, at first what is before the row.
template <class T, int kRows>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 4
                                            : kRows > 4    ? 6
                                                        : 8) forward_four_steps(const Forward a, const StepsPlan plan) {
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const int lane = int(threadIdx.x) % 32;
  const uint32_t warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (warp >= plan.items) return;
  const uint32_t row_of = plan.by_row(warp), part = warp - row_of * plan.per_row;
  const uint32_t row = uint32_t(plan.first_row + row_of), batch = plan.by_channels(row);
  const int64_t channel = row - batch * uint32_t(p.channels);
  const int first = int(part) * kRows * 32 * kVector, start = first + lane * kVector, left = int(p.length) - start;
  const T* const from = static_cast<const T*>(p.x.data) + batch * p.x.batch + channel * p.x.channel + start;
  T* const to = static_cast<T*>(a.y.data) + batch * a.y.batch + channel * a.y.channel + start;
  Pack<T, kVector> loaded[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r * 32 * kVector < left) loaded[r] = load_evict_last<kVector>(from + r * 32 * kVector);
  }
  float kept[kBefore] = {};
  if (lane == 31) {
#pragma unroll
    for (int s = 0; s < kBefore; ++s)
      kept[s] = first > 0 ? to_float(from[s - kBefore - 31 * kVector]) : before(p, batch, channel, s - kBefore);
  }
  const Filter<kFour> filter = load_filter<kFour>(p, channel);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float x[kBefore + kVector], own[kVector], y[kVector];
    unpack(loaded[r], own);
#pragma unroll
    for (int s = 0; s < kVector; ++s) x[kBefore + s] = own[s];
#pragma unroll
    for (int s = 0; s < kBefore; ++s) {
      const float last = own[kVector - kBefore + s];
      x[s] = __shfl_sync(kAllLanes, lane == 31 ? kept[s] : last, (lane + 31) % 32);
      kept[s] = last;
    }
#pragma unroll
    for (int s = 0; s < kVector; ++s) {
      y[s] = filter.bias;
#pragma unroll
      for (int j = 0; j < kFour; ++j) y[s] += filter.w[j] * x[kBefore + s - j];
      y[s] *= sigmoid(y[s]);
    }
    if (r * 32 * kVector < left) store_floats<kVector>(to + r * 32 * kVector, y);
  }
}

// Backward: a warp goes through a part of a row as backward_steps does.
template <class T>
struct alignas(16) Tile {                 // in shared memory: one is worked on, the next is under way
  T x[kPerVector<T> + kTile], dy[kTile];  // x: the last elements before the tile too
};

constexpr int kHalo = kVector / 2;  // steps before a vector that are loaded: one is there for the alignment alone

// A lane's vector of steps: x with those before it, and the gradients g of what the activation is given, of the first
// steps behind it too. Lane 31 has those from `later`, which becomes those of lane 0's vector.
__device__ __forceinline__ void steps_gradients(const Filter<kFour>& filter, const float (&before_own)[kHalo],
                                                const float (&own)[kVector], const float (&dy)[kVector], bool past,
                                                int lane, float (&x)[kHalo + kVector], float (&g)[kVector + kBefore],
                                                float (&later)[kBefore]) {
  // Beyond the length all is 0 but the last steps' x, which may be infinite.
#pragma unroll
  for (int s = 0; s < kHalo; ++s) x[s] = past ? 0.f : before_own[s];
#pragma unroll
  for (int s = 0; s < kVector; ++s) x[kHalo + s] = own[s];
#pragma unroll
  for (int s = 0; s < kVector; ++s) {
    float value = filter.bias;
#pragma unroll
    for (int j = 0; j < kFour; ++j) value += filter.w[j] * x[kHalo + s - j];
    g[s] = through_scaled_silu(dy[s], value);
  }
#pragma unroll
  for (int s = 0; s < kBefore; ++s) {
    const float behind = __shfl_sync(kAllLanes, g[s], (lane + 1) % 32);
    g[kVector + s] = lane == 31 ? later[s] : behind;
    later[s] = behind;
  }
}

// dx of these steps, and what they add to the sums of dweight and, last, dbias.
__device__ __forceinline__ void add_steps(const Filter<kFour>& filter, const float (&x)[kHalo + kVector],
                                          const float (&g)[kVector + kBefore], float (&dx)[kVector],
                                          float (&sums)[kFour + 1]) {
#pragma unroll
  for (int s = 0; s < kVector; ++s) {
    dx[s] = 0.f;
    sums[kFour] += g[s];
#pragma unroll
    for (int j = 0; j < kFour; ++j) {
      dx[s] += filter.w[j] * g[s + j];
      sums[j] += g[s] * x[kHalo + s - j];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 5 : 6)
    backward_four_steps(const Backward a, const PartsPlan plan) {
  constexpr int kSteps = int(kTile);
  __shared__ Tile<T> memory[kThreads / 32][2];
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const int lane = int(threadIdx.x) % 32;
  const uint32_t item = blockIdx.x * uint32_t(kThreads / 32) + threadIdx.x / 32;
  if (item >= plan.items) return;  // whole warps
  const uint32_t row = item / uint32_t(plan.parts), part = item - row * uint32_t(plan.parts);
  const uint32_t batch = row / uint32_t(p.channels), channel = row - batch * uint32_t(p.channels);
  const int length = int(p.length), in_part = int(plan.tiles) * kSteps;
  const int first = int(part) * in_part, end = first + in_part;
  // The tile behind the part is there for its first steps' g alone.
  int start = end < length ? end : (length - 1) / kSteps * kSteps, next = start, half = 0;
  const auto at = [&](const View& v) {
    return static_cast<T*>(v.data) + batch * v.batch + channel * v.channel + start + lane * kVector;
  };
  const T *x_next = at(p.x), *dy_next = at(a.dy);
  T* to = at(a.dx);
  const auto send = [&](int into) {
    Tile<T>& tile = memory[threadIdx.x / 32][into];
    const bool none = next < first || next + lane * kVector >= length;
#pragma unroll
    for (int i = 0; i < kVector; i += kPerVector<T>) {
      cp_async<16>(tile.x + kPerVector<T> + lane * kVector + i, x_next + i, none);
      cp_async<16>(tile.dy + lane * kVector + i, dy_next + i, none);
    }
    if (lane == 0)
      cp_async<kHalo * sizeof(T)>(tile.x + kPerVector<T> - kHalo, x_next - kHalo, next < first || next == 0);
    cp_async_commit();
    next -= kSteps, x_next -= kSteps, dy_next -= kSteps;
  };
  send(0), send(1);
  Filter<kFour> filter = load_filter<kFour>(p, channel);
  filter.bias *= kScale;
#pragma unroll
  for (int j = 0; j < kFour; ++j) filter.w[j] *= kScale;
  float sums[kFour + 1] = {}, later[kBefore] = {};  // later: lane 31's g of the steps behind a tile
  // kFirst: the row's first tile, which alone asks for what is before time 0. kBehind: the one behind the part.
  const auto work = [&]<bool kFirst, bool kBehind>() {
    float x[kHalo + kVector], before_own[kHalo], own[kVector], dy[kVector], g[kVector + kBefore];
    cp_async_wait<1>();
    __syncwarp();
    const Tile<T>& tile = memory[threadIdx.x / 32][half];
    const T* const here = tile.x + kPerVector<T> + lane * kVector;
    unpack(load_few<kHalo>(here - kHalo), before_own);
    load_floats<kVector>(here, own), load_floats<kVector>(tile.dy + lane * kVector, dy);
    __syncwarp();
    send(half);
    if (kFirst && lane == 0 && p.initial.data != nullptr) {
#pragma unroll
      for (int s = kHalo - kBefore; s < kHalo; ++s) before_own[s] = before(p, batch, channel, s - kHalo);
    }
    const bool past = start + lane * kVector >= length;
    steps_gradients(filter, before_own, own, dy, past, lane, x, g, later);
    if constexpr (!kBehind) {
      float dx[kVector];
      add_steps(filter, x, g, dx, sums);
      if (!past) store_floats<kVector>(to, dx);
      if (kFirst && lane == 0 && a.dinitial.data != nullptr) store_before<kFour>(a, batch, channel, filter, g, nullptr);
    }
    start -= kSteps, to -= kSteps, half ^= 1;
  };
  if (start >= end) work.template operator()<false, true>();
  const int last = first > 0 ? first : kSteps;
  while (start >= last) work.template operator()<false, false>();
  if (first == 0) work.template operator()<true, false>();
  cp_async_wait<0>();
#pragma unroll
  for (float& sum : sums) sum *= kScale;
  store_sums<kFour>(a, batch * plan.parts + part, channel, sums);
}

// ---- channels beside each other
template <class T>
constexpr int kBlocks = sizeof(T) == 4 ? 3 : 4;  // of a multiprocessor, which registers are shared out among

// Steps of a tensor on their way to shared memory, each thread's own: kUnrolled of them are worked on, as many more are
// under way. In registers they would be too many, and the compiler would have loads wait for stores before them.
template <class T, int kN>
class Steps {
 public:
  static constexpr int kBytes = kN * sizeof(T), kPiece = kBytes < 16 ? kBytes : 16, kWords = kPiece / 4;
  struct alignas(kPiece) Piece {
    uint32_t w[kWords];
  };
  using Memory = Piece[2][kUnrolled][kBytes / kPiece][kThreads];

  __device__ __forceinline__ Steps(Memory& memory, const View& v, int64_t batch, int64_t channel, int64_t t)
      : memory_(memory), next_(channels_at<const T>(v, batch, channel, t)), apart_(v.step) {}
  // The next kUnrolled steps, `left` of which are there; the others are zeros.
  __device__ __forceinline__ void send(int half, int left) {
#pragma unroll
    for (int s = 0; s < kUnrolled; ++s) {
#pragma unroll
      for (int i = 0; i < kBytes / kPiece; ++i) {
        const T* from = next_ + s * apart_ + i * int(kPiece / sizeof(T));
        cp_async<kPiece>(&memory_[half][s][i][threadIdx.x], from, s >= left);
      }
    }
    next_ += kUnrolled * apart_;
  }
  __device__ __forceinline__ void get(int half, int slot, float (&f)[kN]) const {
    Loaded<T, kN> elements;
#pragma unroll
    for (int i = 0; i < kBytes / kPiece; ++i) {
      const Piece piece = memory_[half][slot][i][threadIdx.x];
#pragma unroll
      for (int w = 0; w < kWords; ++w) elements.w[i * kWords + w] = piece.w[w];
    }
    unpack(elements, f);
  }

 private:
  Memory& memory_;
  const T* next_;
  int64_t apart_;
};

// Types are asked once and not for each number: a thread has so few steps that its filters' loads count.
template <int kN>
__device__ __forceinline__ Filters<kFour, kN> load_four(const Problem& p, int64_t channel) {
  Filters<kFour, kN> f;
  const auto typed = [&](auto* weights) {
    weights += channel * p.weight.channel;
    if (p.weight.channel == kFour && p.weight.step == 1 && reinterpret_cast<uintptr_t>(weights) % 16 == 0) {
      float w[kFour * kN];
      load_floats<kFour * kN>(weights, w);
#pragma unroll
      for (int i = 0; i < kFour * kN; ++i) f.w[kFour - 1 - i % kFour][i / kFour] = w[i];
      return;
    }
#pragma unroll
    for (int c = 0; c < kN; ++c) {
#pragma unroll
      for (int j = 0; j < kFour; ++j)
        f.w[j][c] = to_float(weights[int(p.weight.channel) * c + int(p.weight.step) * (kFour - 1 - j)]);
    }
  };
  if (p.weight.type == DType::kFloat32)
    typed(static_cast<const float*>(p.weight.data));
  else if (p.weight.type == DType::kBFloat16)
    typed(static_cast<const BFloat16*>(p.weight.data));
  else
    typed(static_cast<const Half*>(p.weight.data));
  uint32_t bias[kN] = {};
  if (p.bias.data != nullptr) {
#pragma unroll
    for (int c = 0; c < kN; ++c) bias[c] = read_bits(p.bias.data, p.bias.type, (channel + c) * p.bias.channel);
  }
#pragma unroll
  for (int c = 0; c < kN; ++c) f.bias[c] = value_of(bias[c], p.bias.type);
  return f;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    forward_four_channels(const Forward a, const ChannelsPlan plan) {
  constexpr int kN = kForwardChannels<T>;
  __shared__ typename Steps<T, kN>::Memory memory;
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= plan.items) return;
  const int64_t rest = item / plan.vectors, channel = item % plan.vectors * kN;
  const int64_t batch = rest / plan.parts, first = rest % plan.parts * plan.steps;
  const int count = int(p.length - first < plan.steps ? p.length - first : plan.steps);
  Steps<T, kN> x(memory, p.x, batch, channel, first);
  x.send(0, count), cp_async_commit();
  x.send(1, count - kUnrolled), cp_async_commit();
  const Filters<kFour, kN> filter = load_four<kN>(p, channel);
  History<kFour, kN> past;
  past.template fill<T, false>(p, batch, channel, first);
  T* to = channels_at<T>(a.y, batch, channel, first);
  int k = 0, half = 0;
  const auto step = [&](int slot) {
    past.push();
    x.get(half, slot, past.x[0]);
    float y[kN];
    past.template convolve<false>(filter, kFour, y);
#pragma unroll
    for (int c = 0; c < kN; ++c) y[c] *= sigmoid(y[c]);
    store_few<kN>(to, y);
    to += a.y.step;
  };
  for (; k + kUnrolled <= count; k += kUnrolled, half ^= 1) {
    cp_async_wait<1>();
#pragma unroll
    for (int s = 0; s < kUnrolled; ++s) step(s);
    x.send(half, count - k - 2 * kUnrolled), cp_async_commit();
  }
  cp_async_wait<0>();
#pragma unroll
  for (int s = 0; s + 1 < kUnrolled; ++s) {
    if (k + s < count) step(s);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    backward_four_channels(const Backward a, const ChannelsPlan plan) {
  constexpr int kN = kBackwardChannels<T>;
  __shared__ typename Steps<T, kN>::Memory memory[2];
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const auto [vector, entry, channel, batch, first, end] = backward_place<kN>(p, plan);
  float sums[kFour + 1][kN] = {};
  if (vector < plan.vectors && first < end) {
    const int count = int(end - first);
    const int known = count + int(p.length - end < kBefore ? p.length - end : kBefore);  // steps whose g reaches dx
    Steps<T, kN> x(memory[0], p.x, batch, channel, first), dy(memory[1], a.dy, batch, channel, first);
    const auto send = [&](int half, int left) { x.send(half, left), dy.send(half, left), cp_async_commit(); };
    send(0, known), send(1, known - kUnrolled);
    Filters<kFour, kN> filter = load_four<kN>(p, channel);
    if (first == 0 && a.dinitial.data != nullptr) store_initial<T, kFour, kN, false>(a, batch, channel, filter);
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      filter.bias[c] *= kScale;
#pragma unroll
      for (int j = 0; j < kFour; ++j) filter.w[j][c] *= kScale;
    }
    History<kFour, kN> past;
    past.template fill<T, false>(p, batch, channel, first);
    Due<kFour, kN, false> due = {};
    T* to = channels_at<T>(a.dx, batch, channel, first);
    int k = 0, half = 0;
    const auto step = [&](int slot, bool in_sums) {  // the next one's g, into the sums and into what is due
      float g[kN], values[kN];
      past.push();
      x.get(half, slot, past.x[0]), dy.get(half, slot, g);
      past.template convolve<false>(filter, kFour, values);
#pragma unroll
      for (int c = 0; c < kN; ++c) g[c] = through_scaled_silu(g[c], values[c]);
      due.add(past, filter, kFour, g);
      if (!in_sums) return;
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        sums[kFour][c] += g[c];
#pragma unroll
        for (int j = 0; j < kFour; ++j) sums[j][c] += g[c] * past.x[j][c];
      }
    };
    const auto store = [&](int done) {  // dx is complete kBefore steps after its x
      if (done < 0 || done >= count) return;
      store_few<kN>(to, due.dx[kBefore]);
      to += a.dx.step;
    };
    for (; k + kUnrolled <= count; k += kUnrolled, half ^= 1) {
      cp_async_wait<1>();
#pragma unroll
      for (int s = 0; s < kUnrolled; ++s) {
        step(s, true);
        store(k + s - kBefore);
      }
      send(half, known - k - 2 * kUnrolled);
    }
    cp_async_wait<0>();
    // Fewer than kUnrolled steps at the end of time, or the next part's first ones for their g; and what is still due.
#pragma unroll
    for (int s = 0; s < kBefore + kBefore; ++s) {
      if (s < kBefore && k + s < known)
        step(s < kBefore ? s : 0, k + s < count);
      else
        due.pass();
      store(k + s - kBefore);
    }
  }
#pragma unroll
  for (int c = 0; c < kN; ++c) {
#pragma unroll
    for (int j = 0; j <= kFour; ++j) sums[j][c] *= kScale;
  }
  store_partials<kFour, kN>(a, entry, channel, vector < plan.vectors, sums);
}

}  // namespace mamba::conv::gpu
