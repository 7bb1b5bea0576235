// Forward on a GPU. G threads share a query and head, each with N of its channels in registers. They find the places of
// G samples at once, one each, and hand them round; the loads of a sample's four corners, and of the next samples', are
// on their way together.
#include "kernels/deformable/cuda/sample.cuh"

namespace deformable::cuda {
namespace {

// What a thread found out about a sample, for the others of its group.
template <class S>
struct Found {
  int32_t row, step, in;  // of the corner at the upper left, which may lie outside; from it to the one below
  S weight[4];            // in: bit k says whether corner k lies inside; outside its weight is 0
};

template <class S>
__device__ __forceinline__ Found<S> look(const Pyramid& pyramid, int levels, int sample, const Raw<S>& raw) {
  Found<S> f{};
  const DeviceLevel level = pyramid.level[level_of(pyramid, levels, sample)];
  Position<S> at;
  if (!find(level, raw.x, raw.y, at)) return f;
  f.row = level.start + at.y0 * level.width + at.x0;
  f.step = level.width;
  const S top = raw.a * (1 - at.fy), bottom = raw.a * at.fy;
  // Chosen, not multiplied by 0: a weight of infinity must not reach beyond the level.
  const bool left_in = at.x0 >= 0, right_in = at.x0 + 1 < level.width;
  const bool top_in = at.y0 >= 0, bottom_in = at.y0 + 1 < level.height;
  f.in = int(top_in && left_in) | int(top_in && right_in) << 1 | int(bottom_in && left_in) << 2 |
         int(bottom_in && right_in) << 3;
  f.weight[0] = top_in && left_in ? top * (1 - at.fx) : S(0);
  f.weight[1] = top_in && right_in ? top * at.fx : S(0);
  f.weight[2] = bottom_in && left_in ? bottom * (1 - at.fx) : S(0);
  f.weight[3] = bottom_in && right_in ? bottom * at.fx : S(0);
  return f;
}

template <class T, int N, int G>
__global__ void __launch_bounds__(kThreads, 4) deformable_forward(const __grid_constant__ Forward a) {
  using S = SumOf<T>;
  __shared__ Pyramid pyramid;
  const Problem& p = a.of;
  read_pyramid(pyramid, p);
  Turn t;
  const bool there = my_turn<G>(p, t);
  const int lane = threadIdx.x % G, samples = int(p.samples), levels = p.levels.count;
  const int64_t first = t.row * samples;
  const T* value = static_cast<const T*>(p.value) + t.n * p.batch_stride + t.m * p.head_stride;
  T* out = static_cast<T*>(a.out) + t.row * p.channels;
  for (int64_t c0 = 0; c0 < p.channels; c0 += N * G) {
    const int64_t c = c0 + lane * N;
    const bool mine = c < p.channels;
    S sums[N] = {};
    Raw<S> raw{};
    if (lane < samples) raw = read_sample<S>(p, first + lane);
    for (int j = 0; j < samples; j += G) {
      const Found<S> f = j + lane < samples ? look(pyramid, levels, j + lane, raw) : Found<S>{};
      if (j + G + lane < samples) raw = read_sample<S>(p, first + j + G + lane);
      constexpr int kAtOnce = G < 4 ? G : 4;
#pragma unroll kAtOnce
      for (int i = 0; i < G; ++i) {
        if (G > 4 && j + i >= samples) break;  // the same for the whole warp
        const int64_t row = __shfl_sync(kAllLanes, f.row, i, G), step = __shfl_sync(kAllLanes, f.step, i, G);
        const int in = __shfl_sync(kAllLanes, f.in, i, G);
        S weight[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) weight[k] = __shfl_sync(kAllLanes, f.weight[k], i, G);
        const T* from = value + row * p.row_stride + c;
        Elements<T, N> v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
          v[k] = load_if<T, N>(mine && (in >> k & 1), from + (k / 2 * step + k % 2) * p.row_stride);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          S elements[N];
          v[k].get(elements);
#pragma unroll
          for (int e = 0; e < N; ++e) sums[e] += weight[k] * elements[e];
        }
      }
    }
    if (there && mine) store_sums<T, N>(out + c, sums);
  }
}

}  // namespace

void forward(const Forward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.batch * p.queries * p.heads * p.channels == 0) return;
  with_layout(p, value_aligned(p) && pointer_aligned(a.out), [&]<typename T, int N, int G>() {
    launch(&deformable_forward<T, N, G>, blocks_of<G>(p), kThreads, stream, a);
  });
}

}  // namespace deformable::cuda
