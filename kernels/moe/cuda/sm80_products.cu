// Grouped products by mma.sync (sm_80 on), or by plain multiplications (float32, sm_75): every size, layout and
// alignment. Tiles of 64 x 64, 32 deep; the next ones are read into registers while these are multiplied.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/moe/cuda/moe.h"
#include "kernels/moe/cuda/tiles.cuh"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using namespace moe::gpu;
using kernels::divide_up;

constexpr int kTile = 64, kDepth = 32, kThreads = 128;
constexpr int kPitch = kDepth + 8;  // elements between rows in shared memory: eight rows lie in different banks

// Numbers (outer, inner) of a matrix, inner running along the sums. One of the two strides is 1. Rows may be found
// through `order`: they are outer's (kRows) or inner's.
struct Operand {
  const void* data;
  int64_t outer_stride, inner_stride;
  const int32_t* order;  // of the slots that `gathered` counts from, or null
  int top_k;
  int outer, inner;  // how many there are
  bool whole;        // vectors of 16 bytes along the stride of 1 lie whole at every row, and none is cut by an end
};
enum class Gathered { kNothing, kOuter, kInner };

template <class T>
struct Fragment {  // what a thread has on its way to shared memory: 16 elements, in two runs of 8
  T v[2][8];
};

template <Gathered kGathered, class T>
__device__ __forceinline__ int64_t offset_of(const Operand& m, int outer, int inner) {
  int64_t o = outer, i = inner;
  if (m.order != nullptr) {
    if constexpr (kGathered == Gathered::kOuter) o = m.order[outer] / m.top_k;
    if constexpr (kGathered == Gathered::kInner) i = m.order[inner] / m.top_k;
  }
  return o * m.outer_stride + i * m.inner_stride;
}

// Along which dimension a thread's runs of 8 go, and where they begin.
struct Run {
  int outer, inner, step_outer, step_inner;
};
__device__ __forceinline__ Run run_of(const Operand& m, int which) {
  const int t = threadIdx.x;
  if (m.inner_stride == 1) return {t / 4 + 32 * which, t % 4 * 8, 0, 1};
  return {t % 8 * 8, t / 8 + 16 * which, 1, 0};
}

template <Gathered kGathered, class T>
__device__ __forceinline__ void read(Fragment<T>& f, const Operand& m, int outer0, int inner0) {
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const Run run = run_of(m, which);
    const int outer = outer0 + run.outer, inner = inner0 + run.inner;
    const T* data = static_cast<const T*>(m.data);
    if (m.whole) {
      uint4 v[sizeof(T) / 2] = {};
      if (outer < m.outer && inner < m.inner) {
        const auto* from = reinterpret_cast<const uint4*>(data + offset_of<kGathered, T>(m, outer, inner));
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 2); ++i) v[i] = from[i];
      }
      memcpy(f.v[which], v, sizeof v);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int o = outer + i * run.step_outer, n = inner + i * run.step_inner;
      f.v[which][i] = o < m.outer && n < m.inner ? data[offset_of<kGathered, T>(m, o, n)] : T{};
    }
  }
}

template <class T>
__device__ __forceinline__ void keep(T (&tile)[kTile][kPitch], const Fragment<T>& f, const Operand& m) {
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const Run run = run_of(m, which);
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[run.outer + i * run.step_outer][run.inner + i * run.step_inner] = f.v[which][i];
  }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kHasMma = false;
#else
constexpr bool kHasMma = true;
#endif

// A warp's quarter of the tile, 32 x 32, as fragments of mma.
template <class T>
struct MmaSums {
  float d[2][4][4] = {};
  __device__ __forceinline__ void add(const T (&a)[kTile][kPitch], const T (&b)[kTile][kPitch]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = warp / 2 * 32, n0 = warp % 2 * 32;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t left[2][4], right[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ldmatrix_x4(left[i], &a[m0 + 16 * i + lane % 16][k + lane / 16 * 8]);
        ldmatrix_x4(right[i], &b[n0 + 16 * i + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          mma_m16n8k16<T>(d[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
  }
  // fn(row, column, number)
  template <class Fn>
  __device__ __forceinline__ void each(const Fn& fn) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          fn(warp / 2 * 32 + 16 * i + lane / 4 + n / 2 * 8, warp % 2 * 32 + 8 * j + lane % 4 * 2 + n % 2, d[i][j][n]);
  }
};

// 8 rows by 4 columns a thread.
template <class T>
struct PlainSums {
  float d[8][4] = {};
  __device__ __forceinline__ void add(const T (&a)[kTile][kPitch], const T (&b)[kTile][kPitch]) {
    const int m = threadIdx.x / 16, n = threadIdx.x % 16;
    for (int k = 0; k < kDepth; ++k) {
      float right[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) right[j] = to_float(b[n + 16 * j][k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float left = to_float(a[m + 8 * i][k]);
#pragma unroll
        for (int j = 0; j < 4; ++j) d[i][j] += left * right[j];
      }
    }
  }
  template <class Fn>
  __device__ __forceinline__ void each(const Fn& fn) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) fn(int(threadIdx.x / 16) + 8 * i, int(threadIdx.x % 16) + 16 * j, d[i][j]);
  }
};
template <class T>
using Sums = std::conditional_t<sizeof(T) == 2 && kHasMma, MmaSums<T>, PlainSums<T>>;

template <class T>
struct Tiles {
  T a[kTile][kPitch], b[kTile][kPitch];
};

template <Gathered kOfA, Gathered kOfB, class T>
__device__ __forceinline__ void multiply_tile(Sums<T>& sums, Tiles<T>& m, const Operand& a, const Operand& b, int row,
                                              int col, int inner0) {
  Fragment<T> next_a, next_b;
  read<kOfA>(next_a, a, row, inner0);
  read<kOfB>(next_b, b, col, inner0);
  for (int inner = inner0; inner < a.inner; inner += kDepth) {
    __syncthreads();
    keep(m.a, next_a, a);
    keep(m.b, next_b, b);
    __syncthreads();
    if (inner + kDepth < a.inner) {
      read<kOfA>(next_a, a, row, inner + kDepth);
      read<kOfB>(next_b, b, col, inner + kDepth);
    }
    sums.add(m.a, m.b);
  }
}

// The rows of an expert are outer in a: m.outer is the end of its slots.
template <class T>
__global__ void __launch_bounds__(kThreads) multiply_rows(Operand a, Operand b, const int32_t* offsets, int experts,
                                                          int64_t weight, const void* bias, void* y, int col_tiles) {
  __shared__ Tiles<T> memory;
  const RowTile tile = find_row_tile<kTile>(offsets, experts, int(blockIdx.x) / col_tiles);
  if (tile.expert < 0) return;
  const int col = int(blockIdx.x) % col_tiles * kTile, cols = b.outer;
  a.outer = tile.end;
  b.data = static_cast<const T*>(b.data) + tile.expert * weight;
  Sums<T> sums;
  multiply_tile<Gathered::kOuter, Gathered::kNothing>(sums, memory, a, b, tile.slot, col, 0);
  const T* b1 = static_cast<const T*>(bias) + int64_t{tile.expert} * cols;
  sums.each([&](int r, int c, float v) {
    if (tile.slot + r >= tile.end || col + c >= cols) return;
    static_cast<T*>(y)[int64_t{tile.slot + r} * cols + col + c] =
        from_float<T>(bias == nullptr ? v : v + to_float(b1[col + c]));
  });
}

// The slots of an expert are inner in both. An expert without any: zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    multiply_weights(Operand a, Operand b, const int32_t* offsets, void* dw, int row_tiles, int col_tiles) {
  __shared__ Tiles<T> memory;
  const int expert = int(blockIdx.x) / (row_tiles * col_tiles), tile = int(blockIdx.x) % (row_tiles * col_tiles);
  const int row = tile / col_tiles * kTile, col = tile % col_tiles * kTile;
  a.inner = b.inner = offsets[expert + 1];
  Sums<T> sums;
  multiply_tile<Gathered::kInner, Gathered::kInner>(sums, memory, a, b, row, col, offsets[expert]);
  T* to = static_cast<T*>(dw) + int64_t{expert} * a.outer * b.outer;
  sums.each([&](int r, int c, float v) {
    if (row + r < a.outer && col + c < b.outer) to[int64_t{row + r} * b.outer + col + c] = from_float<T>(v);
  });
}

bool whole(const void* data, std::initializer_list<int64_t> numbers, int64_t size) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data);
  for (const int64_t n : numbers) bits |= uint64_t(n * size);
  // Runs are of 8 elements: 16 bytes, or twice as many of float32, of which each half is a vector.
  return bits % uint64_t(8 * size) == 0;
}

}  // namespace

void multiply_tiles(const Product& a, Stream stream) {
  const Source& s = a.rows;
  const int64_t slots = a.p.assignments(), size = size_of(a.p.dtype), col_tiles = divide_up(a.out, kTile);
  if (slots == 0) return;
  const Operand left{.data = s.data,
                     .outer_stride = s.stride,
                     .inner_stride = 1,
                     .order = s.tokens ? a.index.order : nullptr,
                     .top_k = int(a.p.top_k),
                     .outer = 0,
                     .inner = int(s.cols),
                     .whole = whole(s.data, {s.stride, s.cols}, size)};
  const Operand right{.data = a.w,
                      .outer_stride = a.by_inputs ? 1 : s.cols,
                      .inner_stride = a.by_inputs ? a.out : 1,
                      .order = nullptr,
                      .top_k = 1,
                      .outer = int(a.out),
                      .inner = int(s.cols),
                      .whole = whole(a.w, {a.by_inputs ? a.out : s.cols}, size)};
  with_dtype(a.p.dtype, [&]<typename T>() {
    launch(&multiply_rows<T>, max_row_tiles(slots, a.p.experts, kTile) * col_tiles, kThreads, stream, left, right,
           a.index.offsets, int(a.p.experts), a.out * s.cols, a.bias, a.y, int(col_tiles));
  });
}

void multiply_tiles(const WeightGradient& a, Stream stream) {
  const int64_t size = size_of(a.p.dtype), rows = divide_up(a.left.cols, kTile), cols = divide_up(a.right.cols, kTile);
  const auto operand = [&](const Source& s) {
    return Operand{.data = s.data,
                   .outer_stride = 1,
                   .inner_stride = s.stride,
                   .order = s.tokens ? a.index.order : nullptr,
                   .top_k = int(a.p.top_k),
                   .outer = int(s.cols),
                   .inner = 0,
                   .whole = whole(s.data, {s.stride, s.cols}, size)};
  };
  with_dtype(a.p.dtype, [&]<typename T>() {
    launch(&multiply_weights<T>, a.p.experts * rows * cols, kThreads, stream, operand(a.left), operand(a.right),
           a.index.offsets, a.dw, int(rows), int(cols));
  });
}

bool can_activate(const Product& a) { return !a.p.scale_input && (few_take(a) || hopper_activates(a)); }
void multiply_and_activate(const Product& a, void* activated, Stream stream) {
  few_take(a) ? multiply_few_rows(a, activated, stream) : activate_hopper(a, activated, stream);
}
void multiply(const Product& a, Stream stream) {
  if (few_take(a)) return multiply_few_rows(a, nullptr, stream);
  hopper_takes(a) ? multiply_hopper(a, stream) : multiply_tiles(a, stream);
}
void multiply(const WeightGradient& a, Stream stream) {
  if (a.p.assignments() == 0) {
    const int64_t bytes = a.p.experts * a.left.cols * a.right.cols * size_of(a.p.dtype);
    return checked(cudaMemsetAsync(a.dw, 0, size_t(bytes), static_cast<cudaStream_t>(stream)), "zeros");
  }
  hopper_takes(a) ? multiply_hopper(a, stream) : multiply_tiles(a, stream);
}

}  // namespace moe::cuda
