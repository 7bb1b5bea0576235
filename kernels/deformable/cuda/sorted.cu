// The gradient of value on a GPU, pixel by pixel, in an order that does not depend on time. A sample belongs to the
// cell at its upper left: cell (y, x) of a level lies between its pixels (y - 1, x - 1) and (y, x). Samples are sorted
// by cell, a stable sort by whole numbers, so that those of a cell keep their order; what a cell needs to know of them
// is laid out in that order. A block takes a tile of pixels: its warps sum up each cell around them, four corners at
// once, in shared memory; then each pixel adds up its four cells.
//
// The gradients of locations and weights are not made here, though a cell's four pixels would be read once for all its
// samples: they would be written sample by sample all over memory, and what they take of registers is worth more as
// warps (docs/notes/deformable.md).
// CUB would name its calls for a profiler, which it finds by dlopen: of a newer glibc than packages may want.
#define CCCL_DISABLE_NVTX
#include <cub/device/device_radix_sort.cuh>
#include <utility>

#include "kernels/deformable/cuda/sample.cuh"

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
  Cells cells[kMaxLevels];
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
  const Raw<S> raw = read_sample<S>(p, s.first_row * p.samples + id);
  Position<S> place;
  uint32_t key = s.nothing;
  if (find(level, raw.x, raw.y, place)) {
    const uint32_t image = s.per_query(of_heads);
    key = (image * uint32_t(p.heads) + head) * s.cells + grid.cells[l].first + (place.y0 + 1) * (level.width + 1) +
          place.x0 + 1;
  }
  keys[id] = key;
  ids[id] = id;
}

// What a cell needs of a sample.
template <class S>
struct alignas(4 * sizeof(S)) Share {
  S fx, fy, a;
  uint32_t row;  // of dout
};

// shares in the order of the keys; ranges[key]: from which to which of them its samples are; zeros before.
template <class S>
__global__ void __launch_bounds__(kThreads)
    deformable_shares(const __grid_constant__ Backward a, const __grid_constant__ Sorting s, const uint32_t* keys,
                      const uint32_t* ids, Share<S>* shares, uint2* ranges) {
  __shared__ Pyramid pyramid;
  const Problem& p = a.of;
  read_pyramid(pyramid, p);
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= s.samples) return;
  const uint32_t key = keys[i];
  if (key == s.nothing) return;
  if (i == 0 || keys[i - 1] != key) ranges[key].x = i;
  if (i + 1 == s.samples || keys[i + 1] != key) ranges[key].y = i + 1;
  const uint32_t id = ids[i], row = s.per_row(id), sample = id - row * uint32_t(p.samples);
  const Raw<S> raw = read_sample<S>(p, s.first_row * p.samples + id);
  Position<S> place{};
  find(pyramid.level[level_of(pyramid, p.levels.count, int(sample))], raw.x, raw.y, place);
  shares[i] = {place.fx, place.fy, raw.a, row};
}

// sums += what a cell's samples give to its four pixels. A group of G threads takes a sample, each thread N channels;
// kAtOnce samples of a group are on their way together.
template <class T, int N, int G>
__device__ __forceinline__ void sum_cell(const Share<SumOf<T>>* __restrict__ shares, uint2 range, int group,
                                         const T* dout, int64_t channels, bool mine, SumOf<T> (&sums)[4 * N]) {
  using S = SumOf<T>;
  constexpr int kGroups = 32 / G, kAtOnce = N == 8 ? 2 : 4;
  for (uint32_t first = range.x; first < range.y; first += kAtOnce * kGroups) {
    Share<S> share[kAtOnce];
    Elements<T, N> held[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const uint32_t i = first + u * kGroups + group;
      share[u] = {};
      if (i < range.y) share[u] = shares[i];
      held[u] = load_if<T, N>(i < range.y && mine, dout + int64_t{share[u].row} * channels);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * kGroups >= range.y) break;  // the same for the whole warp
      S g[N];
      held[u].get(g);
      const S bottom = share[u].a * share[u].fy, top = share[u].a * (1 - share[u].fy);
      const S w[4] = {top * (1 - share[u].fx), top * share[u].fx, bottom * (1 - share[u].fx), bottom * share[u].fx};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int e = 0; e < N; ++e) sums[k * N + e] += w[k] * g[e];
      }
    }
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 3)
    deformable_cells(const __grid_constant__ Backward a, const __grid_constant__ Sorting s,
                     const Share<SumOf<T>>* __restrict__ shares, const uint2* __restrict__ all_ranges) {
  using S = SumOf<T>;
  constexpr int kSide = kTile<S>, kCells = (kSide + 1) * (kSide + 1), G = kChannels / N;
  __shared__ Grid grid;
  __shared__ alignas(16) S partial[kCells][4][kChannels];
  __shared__ uint2 ranges[kCells];
  __shared__ int next_cell;
  const Problem& p = a.of;
  read_grid(grid, p, kSide);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in_group = lane % G, group = lane / G;
  const int64_t parts = (p.channels + kChannels - 1) / kChannels, turns = s.images * p.heads * grid.tiles * parts;
  for (int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    // An image after the other; coarse levels first, whose cells have the most samples; the heads of a tile together.
    const int64_t m = turn % p.heads, image = turn / p.heads / grid.tiles / parts;
    const int64_t part = turn / p.heads / grid.tiles % parts * kChannels, c = part + in_group * N;
    int tile = int(turn / p.heads % grid.tiles), l = p.levels.count - 1;
    while (tile >= grid.cells[l].tiles_y * grid.cells[l].tiles_x) {
      tile -= grid.cells[l].tiles_y * grid.cells[l].tiles_x;
      --l;
    }
    const DeviceLevel level = grid.pyramid.level[l];
    const Cells cells = grid.cells[l];
    const int first_y = tile / cells.tiles_x * kSide, first_x = tile % cells.tiles_x * kSide;

    uint2 range{};
    if (threadIdx.x < kCells) {
      const int y = first_y + threadIdx.x / (kSide + 1), x = first_x + threadIdx.x % (kSide + 1);
      if (y <= level.height && x <= level.width)
        range = all_ranges[(image * p.heads + m) * s.cells + cells.first + y * (level.width + 1) + x];
      ranges[threadIdx.x] = range;
    }
    if (threadIdx.x == 0) next_cell = 0;
    if (!__syncthreads_or(range.x < range.y)) continue;  // dvalue is 0 already

    const T* const dout = static_cast<const T*>(a.dout) + s.first_row * p.channels + c;
    while (true) {  // a warp takes the next cell: which one does is nothing to its sums
      int cell = 0;
      if (lane == 0) cell = atomicAdd(&next_cell, 1);
      cell = __shfl_sync(kAllLanes, cell, 0);
      if (cell >= kCells) break;
      const uint2 mine = ranges[cell];
      if (mine.x >= mine.y) continue;
      S sums[4 * N] = {};
      sum_cell<T, N, G>(shares, mine, group, dout, p.channels, c < p.channels, sums);
      sum_over<2 * N, 16, G>(sums);
#pragma unroll
      for (int i = 0; i < 4; ++i)  // what is left to each thread
        partial[cell][(4 * group + i) / N][in_group * N + (4 * group + i) % N] = sums[i];
    }
    __syncthreads();
    for (int pixel = warp; pixel < kSide * kSide; pixel += kWarps) {
      const int down = pixel / kSide, right = pixel % kSide, y = first_y + down, x = first_x + right;
      if (y >= level.height || x >= level.width || part + lane >= p.channels) continue;
      const auto of = [&](int cell, int corner) {
        return ranges[cell].x < ranges[cell].y ? partial[cell][corner][lane] : S(0);
      };
      const int cell = down * (kSide + 1) + right;  // of which the pixel is the lower right
      const S total = (of(cell, 3) + of(cell + 1, 2)) + (of(cell + kSide + 1, 1) + of(cell + kSide + 2, 0));
      const int64_t row = (s.first_image + image) * p.rows + level.start + y * level.width + x;
      static_cast<T*>(a.dvalue)[(row * p.heads + m) * p.channels + part + lane] = from_sum<T>(total);
    }
    __syncthreads();
  }
}

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
        "deformable_attention_bwd: expected heads x 2 (rows + levels), and queries x heads x samples, of an image "
        "below "
        "2^31; got " +
        std::to_string(each) + " and " + std::to_string(samples) +
        (each > samples ? "; split the heads" : "; take fewer queries at a time"));
  SortPlan plan{.images = images,
                .samples = images * samples,
                .cells = cells,
                .cells_in_all = images * each,
                .share_bytes = p.value_type == Number::kFloat64 ? 32 : 16,
                .key_bits = 1};
  while (plan.cells_in_all >> plan.key_bits > 0) ++plan.key_bits;
  return plan;
}

int64_t sort_bytes(const SortPlan& plan) {
  if (plan.samples == 0) return 0;
  return 4 * padded(4 * plan.samples) + padded(plan.share_bytes * plan.samples) + padded(8 * plan.cells_in_all) +
         int64_t(sorter_bytes(plan));
}

void backward_sorted(const Backward& a, const SortPlan& plan, void* scratch, Stream stream) {
  const Problem& p = a.of;
  const auto on = static_cast<cudaStream_t>(stream);
  const int64_t size = size_of_number(p.value_type);
  checked(cudaMemsetAsync(a.dvalue, 0, size_t(p.batch * p.rows * p.heads * p.channels * size), on), "zeros");
  if (plan.samples == 0) return;
  char* next = static_cast<char*>(scratch);
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + padded(bytes)); };
  uint32_t* elements[4];
  for (uint32_t*& one : elements) one = reinterpret_cast<uint32_t*>(take(4 * plan.samples));
  void* const shares = take(plan.share_bytes * plan.samples);
  uint2* const ranges = reinterpret_cast<uint2*>(take(8 * plan.cells_in_all));
  const bool whole = pointer_aligned(a.dout);
  for (int64_t first = 0; first < p.batch; first += plan.images) {
    const Sorting s(p, plan, first);
    const int64_t blocks = divide_up(s.samples, kThreads), resident = int64_t{multiprocessors()} * 3;
    cub::DoubleBuffer<uint32_t> keys(elements[0], elements[1]), ids(elements[2], elements[3]);
    with_number(p.value_type, [&]<typename T>() {
      using S = SumOf<T>;
      launch(&deformable_keys<S>, blocks, kThreads, stream, a, s, keys.Current(), ids.Current());
      size_t bytes = sorter_bytes(plan);
      checked(cub::DeviceRadixSort::SortPairs(next, bytes, keys, ids, int(s.samples), 0, plan.key_bits, on), "sort");
      checked(cudaMemsetAsync(ranges, 0, size_t(8 * plan.cells_in_all), on), "zeros");
      auto* const laid_out = static_cast<Share<S>*>(shares);
      launch(&deformable_shares<S>, blocks, kThreads, stream, a, s, keys.Current(), ids.Current(), laid_out, ranges);
      if constexpr (!kIsDouble<T>) {
        constexpr int N = kPerVector<T>;
        if (whole && p.channels % N == 0)
          return launch(&deformable_cells<T, N>, resident, kThreads, stream, a, s, laid_out, ranges);
      }
      launch(&deformable_cells<T, 1>, resident, kThreads, stream, a, s, laid_out, ranges);
    });
  }
}

}  // namespace deformable::cuda
