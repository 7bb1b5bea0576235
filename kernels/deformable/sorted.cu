// Backward on a GPU, pixel by pixel, in an order that does not depend on time. A sample belongs to the cell at its
// upper left: cell (y, x) of a level lies between its pixels (y - 1, x - 1) and (y, x). Samples are sorted by cell, a
// stable sort by whole numbers, so that those of a cell keep their order. A block takes a tile of pixels: its warps sum
// up each cell around them, four corners at once, in shared memory; then each pixel adds up its four cells.
//
// What a cell's four pixels hold is read once for all its samples, so that their products with the queries' gradients,
// which make the gradients of locations and weights, cost no second gather.
#include <cub/device/device_radix_sort.cuh>
#include <utility>

#include "kernels/deformable/sample.cuh"

namespace deformable::cuda {
namespace {

constexpr int kChannels = 32;  // that a block sums; more of them are more blocks
constexpr int kWarps = kThreads / 32;
template <class S>
constexpr int kTile = sizeof(S) == 8 ? 4 : 8;  // pixels a side: their cells' sums fit into 48 KB

struct Cells {  // of a level: (height + 1) x (width + 1), the first of them, and tiles of its pixels
  int32_t first, tiles_y, tiles_x;
};
struct Grid {
  Pyramid pyramid;
  Cells cells[kMostLevels];
  int32_t tiles;  // of all levels
};
__device__ __forceinline__ void read_grid(Grid& grid, const Problem& p, int tile) {
  read_pyramid(grid.pyramid, p);
  if (threadIdx.x == 0) {
    int first = 0, tiles = 0;
    for (int l = 0; l < p.levels.count; ++l) {
      const DeviceLevel& level = grid.pyramid.level[l];
      grid.cells[l] = {first, (level.height + tile - 1) / tile, (level.width + tile - 1) / tile};
      first += (level.height + 1) * (level.width + 1);
      tiles += grid.cells[l].tiles_y * grid.cells[l].tiles_x;
    }
    grid.tiles = tiles;
  }
  __syncthreads();
}

struct Sorting {                                    // of some of the images
  int64_t first_image, images, samples, first_row;  // rows: of batch x queries x heads
  uint32_t cells, nothing;  // keys: (image x heads + head) x cells + cell; nothing: of samples that give nothing
  Divider per_row, per_head, per_query;  // by samples, heads, queries

  Sorting(const Problem& p, const SortPlan& plan, int64_t first)
      : first_image(first),
        images(p.batch - first < plan.images ? p.batch - first : plan.images),
        samples(images * p.queries * p.heads * p.samples),
        first_row(first * p.queries * p.heads),
        cells(uint32_t(plan.cells)),
        nothing(uint32_t(plan.cells_in_all)),
        per_row(p.samples),
        per_head(p.heads),
        per_query(p.queries) {}
};

template <class S>
__global__ void __launch_bounds__(kThreads)
    deformable_keys(const __grid_constant__ Backward a, const __grid_constant__ Sorting s, uint32_t* keys,
                    uint32_t* ids) {
  __shared__ Grid grid;
  const Problem& p = a.of;
  read_grid(grid, p, 1);
  const uint32_t id = blockIdx.x * kThreads + threadIdx.x;
  if (id >= s.samples) return;
  const uint32_t row = s.per_row(id), sample = id - row * uint32_t(p.samples);
  const uint32_t of_heads = s.per_head(row), head = row - of_heads * uint32_t(p.heads);
  const int l = level_of(grid.pyramid, p.levels.count, int(sample));
  const DeviceLevel level = grid.pyramid.level[l];
  const int64_t at = s.first_row * p.samples + id;
  const S x = read_number<S>(p.locations, p.location_type, 2 * at),
          y = read_number<S>(p.locations, p.location_type, 2 * at + 1);
  Place<S> place;
  uint32_t key = s.nothing;
  if (find(level, x, y, place)) {
    const uint32_t image = s.per_query(of_heads);
    key = (image * uint32_t(p.heads) + head) * s.cells + grid.cells[l].first + (place.y0 + 1) * (level.width + 1) +
          place.x0 + 1;
  } else {
    write_number<S>(a.dweights, p.weight_type, at, 0);
    write_number<S>(a.dlocations, p.location_type, 2 * at, 0);
    write_number<S>(a.dlocations, p.location_type, 2 * at + 1, 0);
  }
  keys[id] = key;
  ids[id] = id;
}

// ranges[key]: from which to which place its samples are; zeros before.
__global__ void __launch_bounds__(kThreads)
    deformable_ranges(const uint32_t* keys, uint32_t samples, uint32_t nothing, uint2* ranges) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= samples) return;
  const uint32_t key = keys[i];
  if (key == nothing) return;
  if (i == 0 || keys[i - 1] != key) ranges[key].x = i;
  if (i + 1 == samples || keys[i + 1] != key) ranges[key].y = i + 1;
}

// Numbers of each thread, summed over the threads that differ in bits kMask to kLast of their place in the warp. Every
// step gives half of them away: each thread ends with some of them, from the place that is returned on.
template <int kHalf, int kMask, int kLast, class S, int kAll>
__device__ __forceinline__ int sum_over(S (&v)[kAll]) {
  if constexpr (kMask < kLast) {
    return 0;
  } else {
    const bool upper = threadIdx.x & kMask;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const S kept = upper ? v[i + kHalf] : v[i], given = upper ? v[i] : v[i + kHalf];
      v[i] = kept + __shfl_xor_sync(kAllLanes, given, kMask);
    }
    return (upper ? kHalf : 0) + sum_over<kHalf / 2, kMask / 2, kLast>(v);
  }
}

template <class T, int N, bool kDots>
__global__ void __launch_bounds__(kThreads, 2)
    deformable_cells(const __grid_constant__ Backward a, const __grid_constant__ Sorting s,
                     const uint32_t* __restrict__ ids, const uint2* __restrict__ ranges) {
  using S = SumOf<T>;
  constexpr int kSide = kTile<S>, kCells = (kSide + 1) * (kSide + 1), G = kChannels / N, kGroups = 32 / G;
  __shared__ Grid grid;
  __shared__ alignas(16) S partial[kCells][4][kChannels];
  const Problem& p = a.of;
  read_grid(grid, p, kSide);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in_group = lane % G, group = lane / G;
  const int64_t parts = (p.channels + kChannels - 1) / kChannels, first_row = s.first_row;
  const int64_t turns = s.images * p.heads * grid.tiles * parts;
  for (int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    // An image after the other; coarse levels first, whose cells have the most samples; the heads of a tile together.
    const int64_t m = turn % p.heads, image = turn / p.heads / grid.tiles / parts;
    const int64_t c = turn / p.heads / grid.tiles % parts * kChannels + in_group * N;
    const bool mine = c < p.channels;
    int tile = int(turn / p.heads % grid.tiles), l = p.levels.count - 1;
    while (tile >= grid.cells[l].tiles_y * grid.cells[l].tiles_x) {
      tile -= grid.cells[l].tiles_y * grid.cells[l].tiles_x;
      --l;
    }
    const DeviceLevel level = grid.pyramid.level[l];
    const Cells cells = grid.cells[l];
    const int tile_y = tile / cells.tiles_x, tile_x = tile % cells.tiles_x;
    const uint2* const of_level = ranges + (image * p.heads + m) * s.cells + cells.first;
    const int64_t n = s.first_image + image;
    const T* const value = static_cast<const T*>(p.value) + n * p.batch_stride + m * p.head_stride + c;
    const T* const dout = static_cast<const T*>(a.dout) + first_row * p.channels + c;

    for (int cell = warp; cell < kCells; cell += kWarps) {
      const int down = cell / (kSide + 1), right = cell % (kSide + 1);
      const int y0 = tile_y * kSide + down - 1, x0 = tile_x * kSide + right - 1;
      if (y0 >= level.height || x0 >= level.width) continue;
      const uint2 range = of_level[(y0 + 1) * (level.width + 1) + x0 + 1];
      S sums[4 * N] = {};
      if (range.x < range.y) {
        // Two tiles share a cell between them; the latter's is it, or the only one's.
        const bool owned = (down < kSide || y0 + 1 == level.height) && (right < kSide || x0 + 1 == level.width);
        Numbers<T, N> v[4];
        if constexpr (kDots) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int y = y0 + k / 2, x = x0 + k % 2;
            const bool in = y >= 0 && y < level.height && x >= 0 && x < level.width;
            v[k] = load_if<T, N>(owned && mine && in, value + (level.start + y * level.width + x) * p.row_stride);
          }
        }
        const uint32_t last = range.y - 1;
        uint32_t next = ids[min(range.x + group, last)];
#pragma unroll 2
        for (uint32_t i = range.x + group; i - group < range.y; i += kGroups) {
          const bool there = i < range.y;
          const uint32_t id = next;
          next = ids[min(i + kGroups, last)];
          const int64_t at = first_row * p.samples + id;
          Raw<S> raw = read_sample<S>(p, at);
          const Numbers<T, N> held = load_if<T, N>(there && mine, dout + int64_t{s.per_row(id)} * p.channels);
          const S fx = raw.x * S(level.width) - S(0.5) - S(x0), fy = raw.y * S(level.height) - S(0.5) - S(y0);
          const S gx = 1 - fx, gy = 1 - fy, weight = there ? raw.a : S(0);
          const S w[4] = {weight * gy * gx, weight * gy * fx, weight * fy * gx, weight * fy * fx};
          S g[N];
          held.get(g);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int e = 0; e < N; ++e) sums[k * N + e] += w[k] * g[e];
          }
          if constexpr (kDots) {
            if (owned) {  // the same for the whole warp
              S dots[4] = {};
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                S numbers[N];
                v[k].get(numbers);
#pragma unroll
                for (int e = 0; e < N; ++e) dots[k] += g[e] * numbers[e];
#pragma unroll
                for (int o = G / 2; o > 0; o /= 2) dots[k] += __shfl_xor_sync(kAllLanes, dots[k], o);
              }
              if (there && in_group == 0) {
                write_number<S>(a.dweights, p.weight_type, at,
                                gy * (gx * dots[0] + fx * dots[1]) + fy * (gx * dots[2] + fx * dots[3]));
                write_number<S>(a.dlocations, p.location_type, 2 * at,
                                S(level.width) * weight * (gy * (dots[1] - dots[0]) + fy * (dots[3] - dots[2])));
                write_number<S>(a.dlocations, p.location_type, 2 * at + 1,
                                S(level.height) * weight * (gx * (dots[2] - dots[0]) + fx * (dots[3] - dots[1])));
              }
            }
          }
        }
      }
      const int first = sum_over<2 * N, 16, G>(sums);  // 4 are left
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = (first + i) / N, e = (first + i) % N;
        partial[cell][k][in_group * N + e] = sums[i];
      }
    }
    __syncthreads();
    const int64_t channel = turn / p.heads / grid.tiles % parts * kChannels + lane;
    for (int pixel = warp; pixel < kSide * kSide; pixel += kWarps) {
      const int down = pixel / kSide, right = pixel % kSide;
      const int y = tile_y * kSide + down, x = tile_x * kSide + right;
      if (y >= level.height || x >= level.width || channel >= p.channels) continue;
      const int cell = down * (kSide + 1) + right;  // of which the pixel is the lower right
      const S total = (partial[cell][3][lane] + partial[cell + 1][2][lane]) +
                      (partial[cell + kSide + 1][1][lane] + partial[cell + kSide + 2][0][lane]);
      const int64_t row = n * p.rows + level.start + y * level.width + x;
      static_cast<T*>(a.dvalue)[(row * p.heads + m) * p.channels + channel] = from_sum<T>(total);
    }
    __syncthreads();
  }
}

int64_t padded(int64_t bytes) { return divide_up(bytes, 256) * 256; }

size_t sorter_bytes(const SortPlan& plan) {
  size_t bytes = 0;
  cub::DoubleBuffer<uint32_t> none(nullptr, nullptr);
  checked(cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, none, int(plan.samples), 0, plan.key_bits),
          "how much memory a sort takes");
  return bytes;
}

}  // namespace

SortPlan plan_sort(const Problem& p) {
  // (height + 1)(width + 1) <= 2 height width + 2: their sum needs no size that the GPU alone knows.
  const int64_t cells = 2 * p.rows + 2 * p.levels.count, each = p.heads * cells;
  const int64_t samples = p.queries * p.heads * p.samples, most = (int64_t{1} << 31) - 1;
  const int64_t widest = each > samples ? each : samples;
  const int64_t all = p.batch > 0 ? p.batch : 1, fit = widest > 0 ? most / widest : all;
  const int64_t images = fit < all ? fit : all;
  if (images == 0)
    throw std::runtime_error(
        "deformable_attention_bwd: wanted heads x (rows, or queries x samples) of an image below 2^30; got " +
        std::to_string(widest) + "; take fewer queries at a time");
  SortPlan plan{
      .images = images, .samples = images * samples, .cells = cells, .cells_in_all = images * each, .key_bits = 1};
  while (plan.cells_in_all >> plan.key_bits > 0) ++plan.key_bits;
  return plan;
}

int64_t sort_bytes(const SortPlan& plan) {
  if (plan.samples == 0) return 0;
  return 4 * padded(4 * plan.samples) + padded(8 * plan.cells_in_all) + int64_t(sorter_bytes(plan));
}

void backward_sorted(const Backward& a, const SortPlan& plan, void* scratch, Stream stream) {
  const Problem& p = a.of;
  const auto on = static_cast<cudaStream_t>(stream);
  const int64_t size = size_of_number(p.value_type);
  checked(cudaMemsetAsync(a.dvalue, 0, size_t(p.batch * p.rows * p.heads * p.channels * size), on), "zeros");
  if (plan.samples == 0) return;
  char* next = static_cast<char*>(scratch);
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + padded(bytes)); };
  uint32_t* numbers[4];
  for (uint32_t*& one : numbers) one = reinterpret_cast<uint32_t*>(take(4 * plan.samples));
  uint2* ranges = reinterpret_cast<uint2*>(take(8 * plan.cells_in_all));
  const bool dots = p.channels <= kChannels;
  if (!dots) backward_gather(a, nullptr, stream);
  for (int64_t first = 0; first < p.batch; first += plan.images) {
    const Sorting s(p, plan, first);
    const int64_t blocks = divide_up(s.samples, kThreads);
    cub::DoubleBuffer<uint32_t> keys(numbers[0], numbers[1]), ids(numbers[2], numbers[3]);
    if (p.value_type == Number::kFloat64)
      launch(&deformable_keys<double>, blocks, kThreads, stream, a, s, keys.Current(), ids.Current());
    else
      launch(&deformable_keys<float>, blocks, kThreads, stream, a, s, keys.Current(), ids.Current());
    size_t bytes = sorter_bytes(plan);
    checked(cub::DeviceRadixSort::SortPairs(next, bytes, keys, ids, int(s.samples), 0, plan.key_bits, on), "sort");
    checked(cudaMemsetAsync(ranges, 0, size_t(8 * plan.cells_in_all), on), "zeros");
    launch(&deformable_ranges, blocks, kThreads, stream, keys.Current(), uint32_t(s.samples), s.nothing, ranges);
    const bool whole = value_aligned(p) && pointer_aligned(a.dout);
    const int64_t resident = int64_t{multiprocessors()} * 3;
    with_number(p.value_type, [&]<typename T>() {
      const auto run = [&]<int N>() {
        launch(dots ? &deformable_cells<T, N, true> : &deformable_cells<T, N, false>, resident, kThreads, stream, a, s,
               ids.Current(), ranges);
      };
      if constexpr (!kIsDouble<T>) {
        if (whole && p.channels % kPerVector<T> == 0) return run.template operator()<kPerVector<T>>();
      }
      run.template operator()<1>();
    });
  }
}

}  // namespace deformable::cuda
