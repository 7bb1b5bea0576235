// Backward on a GPU, query by query: the four corners of a sample are gathered as in forward, and their products with
// the query's gradient give those of the sample's place and weight. Where it is asked for, value's gradient is added up
// in memory on the way.
#include <algorithm>

#include "kernels/deformable/cuda/sample.cuh"

namespace deformable::cuda {
namespace {

template <class S>
struct Found {
  int32_t row, step, in;  // in: bit k says whether corner k lies inside
  S fx, fy, a;
};

template <class S>
__device__ __forceinline__ Found<S> look(const DeviceLevel& level, const Raw<S>& raw) {
  Found<S> f{};
  Position<S> at;
  if (!find(level, raw.x, raw.y, at)) return f;
  const int top = at.y0 >= 0, bottom = at.y0 + 1 < level.height, left = at.x0 >= 0, right = at.x0 + 1 < level.width;
  f.row = level.start + at.y0 * level.width + at.x0;
  f.step = level.width;
  f.in = (top & left) | (top & right) << 1 | (bottom & left) << 2 | (bottom & right) << 3;
  f.fx = at.fx, f.fy = at.fy, f.a = raw.a;
  return f;
}

// to[0, N) += v, in memory, 16 bytes at once where the GPU can.
template <int N, class S>
__device__ __forceinline__ void add(S* to, const S (&v)[N]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (N == 4) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < N; ++i) atomicAdd(to + i, v[i]);
}

// A thread's part of a query's gradient where it adds it up: of N elements 4 at a time, so that the threads of a group
// write next to each other.
template <class T, int N, int G>
struct Added {
  static constexpr int kOnce = N < 4 ? N : 4, kTimes = N / kOnce;
  SumOf<T> g[kTimes][kOnce];
  __device__ __forceinline__ static int64_t channel(int64_t c0, int lane, int i) {
    return c0 + i * G * kOnce + lane * kOnce;
  }
  __device__ __forceinline__ Added(const T* dout, int64_t c0, int lane, int64_t channels, bool there) {
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const int64_t c = channel(c0, lane, i);
#pragma unroll
      for (int e = 0; e < kOnce; ++e) g[i][e] = there && c < channels ? to_sum(dout[c + e]) : SumOf<T>(0);
    }
  }
  __device__ __forceinline__ void add_to(SumOf<T>* to, SumOf<T> weight, int64_t c0, int lane, int64_t channels) const {
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const int64_t c = channel(c0, lane, i);
      SumOf<T> v[kOnce];
#pragma unroll
      for (int e = 0; e < kOnce; ++e) v[e] = weight * g[i][e];
      if (c < channels) add<kOnce>(to + c, v);
    }
  }
};

template <class T, int N, int G, bool kAdd>
__global__ void __launch_bounds__(kThreads, kAdd || G == 8 ? 2 : 3)
    deformable_gather(const __grid_constant__ Backward a, SumOf<T>* sums) {
  using S = SumOf<T>;
  constexpr bool kTogether = G <= 8;  // a batch's products are summed over the group at once: they fit into registers
  __shared__ Pyramid pyramid;
  const Problem& p = a.of;
  read_pyramid(pyramid, p);
  Turn t;
  const bool there = my_turn<G>(p, t);
  const int lane = threadIdx.x % G, samples = int(p.samples);
  const int64_t first = t.row * samples, sum_stride = p.heads * p.channels;
  const T* value = static_cast<const T*>(p.value) + t.n * p.batch_stride + t.m * p.head_stride;
  const T* dout = static_cast<const T*>(a.dout) + t.row * p.channels;
  S* const to = kAdd ? sums + (t.n * p.rows * p.heads + t.m) * p.channels : nullptr;
  const bool once = p.channels <= N * G;
  const Elements<T, N> held = load_if<T, N>(there && lane * N < p.channels, dout + lane * N);
  const Added<T, N, G> held_to_add(dout, 0, lane, kAdd ? p.channels : 0, there);
  Raw<S> raw{};
  if (lane < samples) raw = read_sample<S>(p, first + lane);
  for (int j = 0; j < samples; j += G) {
    const DeviceLevel level = pyramid.level[level_of(pyramid, p.levels.count, j + lane)];
    const Found<S> f = j + lane < samples ? look(level, raw) : Found<S>{};
    if (j + G + lane < samples) raw = read_sample<S>(p, first + j + G + lane);
    S products[kTogether ? 4 * G : 4] =
        {};  // of sample i of the batch and corner k: 4 i + k; else this thread's sample's
    const auto take = [&](int i, S(&of)[4]) {
      const int64_t row = __shfl_sync(kAllLanes, f.row, i, G), step = __shfl_sync(kAllLanes, f.step, i, G);
      const int in = __shfl_sync(kAllLanes, f.in, i, G);
      S weight[4] = {};
      if constexpr (kAdd) {
        const S fx = __shfl_sync(kAllLanes, f.fx, i, G), fy = __shfl_sync(kAllLanes, f.fy, i, G);
        const S weight_of_all = __shfl_sync(kAllLanes, f.a, i, G);
        const S top = weight_of_all * (1 - fy), bottom = weight_of_all * fy;
        weight[0] = top * (1 - fx), weight[1] = top * fx, weight[2] = bottom * (1 - fx), weight[3] = bottom * fx;
      }
      for (int64_t c0 = 0; c0 < p.channels; c0 += N * G) {
        const int64_t c = c0 + lane * N;
        const bool mine = c < p.channels;
        S g[N];
        (once ? held : load_if<T, N>(there && mine, dout + c)).get(g);
        Elements<T, N> v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
          v[k] = load_if<T, N>(mine && (in >> k & 1), value + (row + k / 2 * step + k % 2) * p.row_stride + c);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          S elements[N];
          v[k].get(elements);
#pragma unroll
          for (int e = 0; e < N; ++e) of[k] += g[e] * elements[e];
        }
        if constexpr (kAdd) {
          const Added<T, N, G> to_add = once ? held_to_add : Added<T, N, G>(dout, c0, lane, p.channels, there);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (there && (in >> k & 1))
              to_add.add_to(to + (row + k / 2 * step + k % 2) * sum_stride, weight[k], c0, lane, p.channels);
          }
        }
      }
    };
    if constexpr (kTogether) {
#pragma unroll
      for (int i = 0; i < G; ++i) {
        S of[4] = {};
        take(i, of);
#pragma unroll
        for (int k = 0; k < 4; ++k) products[4 * i + k] = of[k];
      }
      sum_over<2 * G, G / 2, 1>(products);
    } else {
#pragma unroll 2
      for (int i = 0; i < G; ++i) {
        if (j + i >= samples) break;  // the same for the whole warp
        S of[4] = {};
        take(i, of);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int o = G / 2; o > 0; o /= 2) of[k] += __shfl_xor_sync(kAllLanes, of[k], o);
          if (i == lane) products[k] = of[k];
        }
      }
    }
    if (there && j + lane < samples) {
      const S fx = f.fx, fy = f.fy, gx = 1 - fx, gy = 1 - fy;
      S s[4];  // a corner outside counts 0, where dout is infinite too: its 0 was multiplied
#pragma unroll
      for (int k = 0; k < 4; ++k) s[k] = f.in >> k & 1 ? products[k] : S(0);
      const int64_t at = first + j + lane;
      write_number<S>(a.dweights, p.weight_type, at, gy * (gx * s[0] + fx * s[1]) + fy * (gx * s[2] + fx * s[3]));
      write_number<S>(a.dlocations, p.location_type, 2 * at,
                      S(level.width) * f.a * (gy * (s[1] - s[0]) + fy * (s[3] - s[2])));
      write_number<S>(a.dlocations, p.location_type, 2 * at + 1,
                      S(level.height) * f.a * (gx * (s[2] - s[0]) + fx * (s[3] - s[1])));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) deformable_round(T* out, const SumOf<T>* sums, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) out[i] = from_sum<T>(sums[i]);
}

}  // namespace

void backward_gather(const Backward& a, void* sums, Stream stream) {
  const Problem& p = a.of;
  if (p.batch * p.queries * p.heads * p.samples == 0) return;
  with_layout(p, value_aligned(p) && pointer_aligned(a.dout), [&]<typename T, int N, int G>() {
    const auto kernel = sums == nullptr ? &deformable_gather<T, N, G, false> : &deformable_gather<T, N, G, true>;
    launch(kernel, blocks_of<G>(p), kThreads, stream, a, static_cast<SumOf<T>*>(sums));
  });
}

void round_sums(const Backward& a, const void* sums, Stream stream) {
  const Problem& p = a.of;
  const int64_t n = p.batch * p.rows * p.heads * p.channels;
  if (n == 0) return;
  with_number(p.value_type, [&]<typename T>() {
    const int64_t blocks = std::min<int64_t>(divide_up(n, kThreads), int64_t{multiprocessors()} * 32);
    launch(&deformable_round<T>, blocks, kThreads, stream, static_cast<T*>(a.dvalue),
           static_cast<const SumOf<T>*>(sums), n);
  });
}

}  // namespace deformable::cuda
