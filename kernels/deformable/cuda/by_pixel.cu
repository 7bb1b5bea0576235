// The gradient of value on a GPU where samples are few beside the pixels, a decoder's: what a sample gives to each of
// its corners is sorted by pixel, a stable sort by whole numbers, and the first of a pixel adds up all of them.
// sorted.cu reads a query's gradient once for four corners, but walks over all tiles of the pyramid; here nobody looks
// at a pixel to which nothing is given. The corners of an image, head and level are sorted by one block, in shared
// memory, where they fit; else those of all by one sort of the whole GPU, which takes several passes over memory.
#include <algorithm>
// CUB would name its calls for a profiler, which it finds by dlopen: of a newer glibc than packages may want.
#define CCCL_DISABLE_NVTX
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <utility>

#include "kernels/deformable/cuda/sample.cuh"

namespace deformable::cuda {
namespace {

int64_t pixels_of(const Problem& p) { return p.batch * p.heads * p.rows; }
int64_t samples_of(const Problem& p) { return p.batch * p.queries * p.heads * p.samples; }

struct Sorting {
  uint32_t samples, nothing;  // keys: (image x heads + head) x rows + row; nothing: of corners that get nothing
  int key_bits, row_bits;     // row_bits: of rows, which stands for nothing where a level is sorted by itself
  Divider per_row, per_head, per_query;  // by samples, heads, queries

  explicit Sorting(const Problem& p)
      : samples(uint32_t(samples_of(p))),
        nothing(uint32_t(pixels_of(p))),
        key_bits(1),
        row_bits(1),
        per_row(p.samples),
        per_head(p.heads),
        per_query(p.queries) {
    while (nothing >> key_bits > 0) ++key_bits;
    while (p.rows >> row_bits > 0) ++row_bits;
  }
  int corners() const { return int(4 * samples); }
};

// The pixels of its level that a sample's corners are, row by row; -1: outside.
template <class S>
__device__ __forceinline__ bool corners_of(const DeviceLevel& level, const Raw<S>& raw, int (&pixel)[4],
                                           S (&weight)[4]) {
  Position<S> at;
  if (!find(level, raw.x, raw.y, at)) return false;
  const S bottom = raw.a * at.fy, top = raw.a * (1 - at.fy);
  weight[0] = top * (1 - at.fx), weight[1] = top * at.fx, weight[2] = bottom * (1 - at.fx), weight[3] = bottom * at.fx;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int y = at.y0 + k / 2, x = at.x0 + k % 2;
    pixel[k] = y >= 0 && y < level.height && x >= 0 && x < level.width ? y * level.width + x : -1;
  }
  return true;
}

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
  uint32_t key[4] = {s.nothing, s.nothing, s.nothing, s.nothing};
  int pixel[4];
  S weight[4];
  if (corners_of(level, read_sample<S>(p, i), pixel, weight)) {
    const uint32_t plane = (image * uint32_t(p.heads) + row - of_heads * uint32_t(p.heads)) * uint32_t(p.rows);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (pixel[k] < 0) continue;
      key[k] = plane + uint32_t(level.start + pixel[k]);
      weights[4 * int64_t{i} + k] = weight[k];
    }
  }
  keys[i] = make_uint4(key[0], key[1], key[2], key[3]);
  ids[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
}

// What a pixel needs of a corner.
template <class S>
struct alignas(2 * sizeof(S)) Share {
  S weight;
  uint32_t row;  // of dout
};

// A block's sort: a corner's pixel, and below it the corner's number in the block, which keeps their order and need not
// be sorted by. Beside the sort's own memory, each corner's weight.
template <class S, int kSorters, int kCorners>  // threads, and what each has: whole samples
struct BlockSort {
  // 4 bits a turn; false: counts are read again instead of kept in registers, of which there are too few.
  using Sort = cub::BlockRadixSort<uint32_t, kSorters, kCorners, cub::NullType, 4, false>;
  struct Memory {
    typename Sort::TempStorage sort;
    S weights[kSorters * kCorners];
  };
  static constexpr int bits_of(int64_t n) { return n > 0 ? 1 + bits_of(n / 2) : 0; }
  static constexpr int kNumberBits = bits_of(kSorters * kCorners - 1);
  // Every pixel of a level and `nothing` have a number; how large a level is may be known to the GPU alone.
  static bool fits(const Problem& p, int64_t samples) {
    return 4 * samples <= kSorters * kCorners && p.rows < int64_t{1} << (32 - kNumberBits) &&
           int(sizeof(Memory)) + 1024 <= attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
  }
};

// Block b: level b of the levels of a head of the heads of an image, which are one after the other in keys and shares.
// keys as by the sort of all corners, but a block's corners that give nothing are behind its others.
template <class S, int kSorters, int kCorners>
__global__ void __launch_bounds__(kSorters, 1)
    deformable_sorted_corners(const __grid_constant__ Backward a, const __grid_constant__ Sorting s, uint32_t* keys,
                              Share<S>* shares) {
  using Block = BlockSort<S, kSorters, kCorners>;
  extern __shared__ __align__(16) char memory_bytes[];
  auto& memory = *reinterpret_cast<typename Block::Memory*>(memory_bytes);
  __shared__ Pyramid pyramid;
  const Problem& p = a.of;
  read_pyramid(pyramid, p);
  const uint32_t levels = uint32_t(p.levels.count), l = blockIdx.x % levels, plane = blockIdx.x / levels;
  const uint32_t heads = uint32_t(p.heads), image = plane / heads, head = plane - image * heads;
  const DeviceLevel level = pyramid.level[l];
  const uint32_t points = uint32_t(p.levels.first[l + 1] - level.first);
  const uint32_t queries = uint32_t(p.queries), samples = queries * points;
  const auto row_of = [&](uint32_t query) { return (image * queries + query) * heads + head; };
  uint32_t items[kCorners];
#pragma unroll
  for (int u = 0; u < kCorners / 4; ++u) {
    const uint32_t number = threadIdx.x * (kCorners / 4) + u;
    int pixel[4] = {-1, -1, -1, -1};
    S weight[4] = {};
    if (number < samples) {
      const uint32_t query = number / points, id = row_of(query) * uint32_t(p.samples) + level.first + number;
      corners_of(level, read_sample<S>(p, id - query * points), pixel, weight);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      memory.weights[4 * number + k] = weight[k];
      items[4 * u + k] = uint32_t(pixel[k] < 0 ? int(p.rows) : pixel[k]) << Block::kNumberBits | (4 * number + k);
    }
  }
  typename Block::Sort(memory.sort).SortBlockedToStriped(items, Block::kNumberBits, Block::kNumberBits + s.row_bits);
  __syncthreads();
  const uint32_t first = 4 * queries * (plane * uint32_t(p.samples) + uint32_t(level.first));
#pragma unroll
  for (int u = 0; u < kCorners; ++u) {
    const uint32_t i = u * kSorters + threadIdx.x, pixel = items[u] >> Block::kNumberBits;
    if (i >= 4 * samples) continue;  // behind them are elements of no sample, last of those that give nothing
    const uint32_t corner = items[u] & ((1u << Block::kNumberBits) - 1);
    keys[first + i] = pixel == uint32_t(p.rows) ? s.nothing : plane * uint32_t(p.rows) + uint32_t(level.start) + pixel;
    shares[first + i] = {memory.weights[corner], row_of(corner / 4 / points)};
  }
}

// After the sort of all corners.
template <class S>
__global__ void __launch_bounds__(kThreads)
    deformable_corner_shares(const __grid_constant__ Sorting s, const uint32_t* ids, const S* weights,
                             Share<S>* shares) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < 4 * s.samples) shares[i] = {weights[ids[i]], s.per_row(ids[i] / 4)};
}

// Blocks look at a corner a thread, and keep those that are their pixels' first; then G threads take a pixel, each N
// channels. Without that most threads of a warp would wait for the few of them that have a pixel.
template <class T, int N, int G>
__global__ void __launch_bounds__(kThreads)
    deformable_pixels(const __grid_constant__ Backward a, const __grid_constant__ Sorting s,
                      const uint32_t* __restrict__ keys, const Share<SumOf<T>>* __restrict__ shares) {
  using S = SumOf<T>;
  constexpr int kAtOnce = 4;  // of a pixel's corners: their loads are on their way together
  constexpr int kWarps = kThreads / 32;
  __shared__ uint32_t firsts[kThreads];
  __shared__ int found[kWarps];
  const Problem& p = a.of;
  const uint32_t corners = 4 * s.samples;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t own = blockIdx.x * kThreads + threadIdx.x;
  bool is_first = false;
  if (own < corners) {
    const uint32_t key = keys[own];
    is_first = key != s.nothing && (own == 0 || keys[own - 1] != key);
  }
  const uint32_t of_warp = __ballot_sync(kAllLanes, is_first);
  if (lane == 0) found[warp] = __popc(of_warp);
  __syncthreads();
  int pixels = 0, before = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = pixels;
    pixels += found[w];
  }
  if (is_first) firsts[before + __popc(of_warp & ((1u << lane) - 1))] = own;
  __syncthreads();

  for (int one = int(threadIdx.x) / G; one < pixels; one += kThreads / G) {
    const uint32_t first = firsts[one], mine = keys[first];
    const int64_t plane = mine / uint32_t(p.rows), pixel = mine - uint32_t(plane) * uint32_t(p.rows);
    const int64_t image = plane / p.heads, head = plane - image * p.heads;
    T* const to = static_cast<T*>(a.dvalue) + ((image * p.rows + pixel) * p.heads + head) * p.channels;
    for (int64_t c = threadIdx.x % G * N; c < p.channels; c += N * G) {
      const T* const dout = static_cast<const T*>(a.dout) + c;
      S sums[N] = {};
      bool more = true;
      for (uint32_t i = first; more; i += kAtOnce) {
        uint32_t key[kAtOnce];
        Share<S> share[kAtOnce];
        Elements<T, N> held[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) key[u] = i + u < corners ? keys[i + u] : s.nothing;
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          more = more && key[u] == mine;
          share[u] = {};
          if (more) share[u] = shares[i + u];
          held[u] = load_if<T, N>(more, dout + int64_t{share[u].row} * p.channels);
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          S g[N];
          held[u].get(g);
#pragma unroll
          for (int e = 0; e < N; ++e) sums[e] += share[u].weight * g[e];
        }
      }
      store_sums<T, N>(to + c, sums);
    }
  }
}

// fn<S, threads, corners of each> where the samples of an image, head and level fit into a block; false: they do not.
template <class Fn>
bool with_block_sort(const Problem& p, const Fn& fn) {
  int64_t most = 0;
  for (int l = 0; l < p.levels.count; ++l) most = std::max<int64_t>(most, p.levels.first[l + 1] - p.levels.first[l]);
  most *= p.queries;
  const auto with = [&]<class S>() {
    if (BlockSort<S, 512, 12>::fits(p, most)) return fn.template operator()<S, 512, 12>(), true;
    if (BlockSort<S, 640, 24>::fits(p, most)) return fn.template operator()<S, 640, 24>(), true;
    return false;
  };
  return p.value_type == Number::kFloat64 ? with.template operator()<double>() : with.template operator()<float>();
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
  const int64_t sorted = padded(4 * s.corners()) + padded(2 * sum * s.corners());
  if (with_block_sort(p, [&]<class S, int kSorters, int kCorners>() {})) return sorted;
  return sorted + 3 * padded(4 * s.corners()) + padded(sum * s.corners()) + int64_t(sorter_bytes(s));
}

void backward_by_pixel(const Backward& a, void* scratch, Stream stream) {
  const Problem& p = a.of;
  const auto on = static_cast<cudaStream_t>(stream);
  checked(cudaMemsetAsync(a.dvalue, 0, size_t(pixels_of(p) * p.channels * size_of_number(p.value_type)), on), "zeros");
  if (samples_of(p) == 0) return;
  const Sorting s(p);
  char* next = static_cast<char*>(scratch);
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + padded(bytes)); };
  const auto elements = [&] { return reinterpret_cast<uint32_t*>(take(4 * s.corners())); };
  uint32_t* keys = elements();
  void* const shares = take(2 * (p.value_type == Number::kFloat64 ? 8 : 4) * int64_t{s.corners()});
  const bool sorted = with_block_sort(p, [&]<class S, int kSorters, int kCorners>() {
    launch_with_memory<&deformable_sorted_corners<S, kSorters, kCorners>>(
        sizeof(typename BlockSort<S, kSorters, kCorners>::Memory), p.batch * p.heads * p.levels.count, kSorters, stream,
        a, s, keys, static_cast<Share<S>*>(shares));
  });
  with_layout(p, pointer_aligned(a.dout) && pointer_aligned(a.dvalue), [&]<typename T, int N, int G>() {
    using S = SumOf<T>;
    auto* const laid_out = static_cast<Share<S>*>(shares);
    if (!sorted) {
      cub::DoubleBuffer<uint32_t> two_keys(keys, elements());
      uint32_t* const some = elements();
      cub::DoubleBuffer<uint32_t> ids(some, elements());
      S* const weights = reinterpret_cast<S*>(take(int64_t(sizeof(S)) * s.corners()));
      launch(&deformable_corners<S>, divide_up(int64_t{s.samples}, kThreads), kThreads, stream, a, s,
             reinterpret_cast<uint4*>(keys), reinterpret_cast<uint4*>(some), weights);
      size_t bytes = sorter_bytes(s);
      checked(cub::DeviceRadixSort::SortPairs(next, bytes, two_keys, ids, s.corners(), 0, s.key_bits, on), "sort");
      keys = two_keys.Current();
      launch(&deformable_corner_shares<S>, divide_up(int64_t{s.corners()}, kThreads), kThreads, stream, s,
             ids.Current(), weights, laid_out);
    }
    launch(&deformable_pixels<T, N, G>, divide_up(int64_t{s.corners()}, kThreads), kThreads, stream, a, s, keys,
           laid_out);
  });
}

}  // namespace deformable::cuda
