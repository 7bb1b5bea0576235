// The gradient of value on a GPU where samples are few beside the pixels, a decoder's: what a sample gives to each of
// its corners is sorted by pixel, a stable sort by whole numbers, and the first of a pixel adds up all of them.
// sorted.cu reads a query's gradient once for four corners, but walks over all tiles of the pyramid; here nobody looks
// at a pixel to which nothing is given.
#include <cub/device/device_radix_sort.cuh>
#include <utility>

#include "kernels/deformable/sample.cuh"

namespace deformable::cuda {
namespace {

int64_t pixels_of(const Problem& p) { return p.batch * p.heads * p.rows; }
int64_t samples_of(const Problem& p) { return p.batch * p.queries * p.heads * p.samples; }

struct Sorting {
  uint32_t samples, nothing;  // keys: (image x heads + head) x rows + row; nothing: of corners that get nothing
  int key_bits;
  Divider per_row, per_head, per_query;  // by samples, heads, queries

  explicit Sorting(const Problem& p)
      : samples(uint32_t(samples_of(p))),
        nothing(uint32_t(pixels_of(p))),
        key_bits(1),
        per_row(p.samples),
        per_head(p.heads),
        per_query(p.queries) {
    while (nothing >> key_bits > 0) ++key_bits;
  }
  int corners() const { return int(4 * samples); }
};

// Corner k of sample i is 4 i + k.
template <class S>
__global__ void __launch_bounds__(kThreads)
    deformable_corners(const __grid_constant__ Backward a, const __grid_constant__ Sorting s, uint4* keys, uint4* ids,
                       S* weights) {
  __shared__ Pyramid pyramid;
  const Problem& p = a.of;
  read_pyramid(pyramid, p);
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= s.samples) return;
  const uint32_t row = s.per_row(i), of_heads = s.per_head(row), image = s.per_query(of_heads);
  const DeviceLevel level = pyramid.level[level_of(pyramid, p.levels.count, int(i - row * uint32_t(p.samples)))];
  const Raw<S> raw = read_sample<S>(p, i);
  uint32_t key[4] = {s.nothing, s.nothing, s.nothing, s.nothing};
  Place<S> at;
  if (find(level, raw.x, raw.y, at)) {
    const uint32_t plane = (image * uint32_t(p.heads) + row - of_heads * uint32_t(p.heads)) * uint32_t(p.rows);
    const S bottom = raw.a * at.fy, top = raw.a * (1 - at.fy);
    const S weight[4] = {top * (1 - at.fx), top * at.fx, bottom * (1 - at.fx), bottom * at.fx};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int y = at.y0 + k / 2, x = at.x0 + k % 2;
      if (y < 0 || y >= level.height || x < 0 || x >= level.width) continue;
      key[k] = plane + uint32_t(level.start + y * level.width + x);
      weights[4 * int64_t{i} + k] = weight[k];
    }
  }
  keys[i] = make_uint4(key[0], key[1], key[2], key[3]);
  ids[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
}

// G threads take a pixel, the first of its corners theirs, each N channels.
template <class T, int N, int G>
__global__ void __launch_bounds__(kThreads)
    deformable_pixels(const __grid_constant__ Backward a, const __grid_constant__ Sorting s,
                      const uint32_t* __restrict__ keys, const uint32_t* __restrict__ ids,
                      const SumOf<T>* __restrict__ weights) {
  using S = SumOf<T>;
  constexpr int kAtOnce = 4;  // of a pixel's corners: their loads are on their way together
  const Problem& p = a.of;
  const uint32_t corners = 4 * s.samples, first = blockIdx.x * (kThreads / G) + threadIdx.x / G;
  if (first >= corners) return;
  const uint32_t key = keys[first];
  if (key == s.nothing || (first > 0 && keys[first - 1] == key)) return;
  const int64_t plane = key / uint32_t(p.rows), pixel = key - uint32_t(plane) * uint32_t(p.rows);
  const int64_t image = plane / p.heads, head = plane - image * p.heads;
  T* const to = static_cast<T*>(a.dvalue) + ((image * p.rows + pixel) * p.heads + head) * p.channels;
  for (int64_t c = threadIdx.x % G * N; c < p.channels; c += N * G) {
    const T* const dout = static_cast<const T*>(a.dout) + c;
    S sums[N] = {};
    bool more = true;
    for (uint32_t i = first; more; i += kAtOnce) {
      S weight[kAtOnce];
      Numbers<T, N> held[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        more = more && i + u < corners && keys[i + u] == key;
        const uint32_t id = more ? ids[i + u] : 0;
        weight[u] = more ? weights[id] : S(0);
        held[u] = load_if<T, N>(more, dout + int64_t{s.per_row(id / 4)} * p.channels);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        S g[N];
        held[u].get(g);
#pragma unroll
        for (int e = 0; e < N; ++e) sums[e] += weight[u] * g[e];
      }
    }
    store_sums<T, N>(to + c, sums);
  }
}

size_t sorter_bytes(const Sorting& s) {
  size_t bytes = 0;
  cub::DoubleBuffer<uint32_t> none(nullptr, nullptr);
  checked(cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, none, s.corners(), 0, s.key_bits),
          "how much memory a sort takes");
  return bytes;
}

}  // namespace

bool few_samples(const Problem& p) { return samples_of(p) <= pixels_of(p) && 4 * pixels_of(p) < int64_t{1} << 31; }

int64_t by_pixel_bytes(const Problem& p) {
  if (samples_of(p) == 0) return 0;
  const Sorting s(p);
  const int64_t sum = p.value_type == Number::kFloat64 ? 8 : 4;
  return 4 * padded(4 * s.corners()) + padded(sum * s.corners()) + int64_t(sorter_bytes(s));
}

void backward_by_pixel(const Backward& a, void* scratch, Stream stream) {
  const Problem& p = a.of;
  const auto on = static_cast<cudaStream_t>(stream);
  checked(cudaMemsetAsync(a.dvalue, 0, size_t(pixels_of(p) * p.channels * size_of_number(p.value_type)), on), "zeros");
  if (samples_of(p) == 0) return;
  const Sorting s(p);
  char* next = static_cast<char*>(scratch);
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + padded(bytes)); };
  uint32_t* numbers[4];
  for (uint32_t*& one : numbers) one = reinterpret_cast<uint32_t*>(take(4 * s.corners()));
  cub::DoubleBuffer<uint32_t> keys(numbers[0], numbers[1]), ids(numbers[2], numbers[3]);
  const auto four = [](uint32_t* of) { return reinterpret_cast<uint4*>(of); };
  with_layout(p, pointer_aligned(a.dout) && pointer_aligned(a.dvalue), [&]<typename T, int N, int G>() {
    using S = SumOf<T>;
    S* const weights = reinterpret_cast<S*>(take(int64_t(sizeof(S)) * s.corners()));
    launch(&deformable_corners<S>, divide_up(int64_t{s.samples}, kThreads), kThreads, stream, a, s,
           four(keys.Current()), four(ids.Current()), weights);
    size_t bytes = sorter_bytes(s);
    checked(cub::DeviceRadixSort::SortPairs(next, bytes, keys, ids, s.corners(), 0, s.key_bits, on), "sort");
    launch(&deformable_pixels<T, N, G>, divide_up(int64_t{s.corners()}, kThreads / G), kThreads, stream, a, s,
           keys.Current(), ids.Current(), weights);
  });
}

}  // namespace deformable::cuda
