// Layouts and launches of the norms on a GPU.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/reduce/column_sums.cuh"
#include "kernels/norm/cuda/layer_norm.cuh"
#include "kernels/norm/cuda/norm.h"

namespace norms::cuda {
namespace {

using namespace norms::gpu;

constexpr RowLimits kForward{.max_lanes = {0, 256, 512}, .threads_per_sm = 0};
constexpr RowLimits kLayerForward{.max_lanes = {0, 32, 512}, .threads_per_sm = 0};
constexpr int kAgainPerSm = 2048;    // threads, where rows are read again
constexpr int64_t kMaxChunks = 512;  // rows of partial sums where rows are read again

template <class Fn>  // fn<T, kVectors, kMaxLanes, kFull>()
void with_forward(DType dtype, const RowPlan& p, int64_t cols, Fn fn) {
  with_dtype(dtype, [&]<typename T>() {
    if (p.vectors == 1) return fn.template operator()<T, 1, 128, false>();
    const bool full = cols == int64_t{p.lanes} * p.vectors * kPerVector<T>;
    const auto lanes = [&]<int kVectors, int kMaxLanes>() {
      return full ? fn.template operator()<T, kVectors, kMaxLanes, true>()
                  : fn.template operator()<T, kVectors, kMaxLanes, false>();
    };
    if (p.vectors == 2)
      return p.lanes <= 128 ? lanes.template operator()<2, 128>() : lanes.template operator()<2, 256>();
    return p.lanes <= 256 ? lanes.template operator()<4, 256>() : lanes.template operator()<4, 512>();
  });
}
template <class Fn>  // fn<T, kVectors, kMaxLanes, kFull>()
void with_lanes(DType dtype, const RowPlan& p, int64_t cols, Fn fn) {
  with_dtype(dtype, [&]<typename T>() {
    if (p.vectors == 1) return fn.template operator()<T, 1, 128, false>();
    if (p.vectors == 2) return fn.template operator()<T, 2, 32, false>();
    const bool full = cols == int64_t{p.lanes} * p.vectors * kPerVector<T>;
    if (p.lanes <= 128)
      return full ? fn.template operator()<T, 4, 128, true>() : fn.template operator()<T, 4, 128, false>();
    if (p.lanes <= 256)
      return full ? fn.template operator()<T, 4, 256, true>() : fn.template operator()<T, 4, 256, false>();
    return full ? fn.template operator()<T, 4, 512, true>() : fn.template operator()<T, 4, 512, false>();
  });
}
template <class Fn>  // fn<T, kVectors, kDepth, kFull>()
void with_ring(DType dtype, const RingPlan& p, int64_t cols, Fn fn) {
  with_dtype(dtype, [&]<typename T>() {
    if (p.vectors == 1)
      return p.depth == 4 ? fn.template operator()<T, 1, 4, false>() : fn.template operator()<T, 1, 2, false>();
    if (p.depth != 4) return fn.template operator()<T, 2, 2, false>();
    const bool full = cols == int64_t{p.lanes} * p.vectors * kPerVector<T>;
    return full ? fn.template operator()<T, 2, 4, true>() : fn.template operator()<T, 2, 4, false>();
  });
}
template <class Fn>  // fn<T, Y, N>(): y is of x's type or wider
void with_access(DType dtype, DType y_dtype, bool vector_access, Fn fn) {
  with_dtype(dtype, [&]<typename T>() {
    if (y_dtype == dtype)
      return vector_access ? fn.template operator()<T, T, kPerVector<T>>() : fn.template operator()<T, T, 1>();
    if constexpr (sizeof(T) == 2) {  // only "llama" widens y; its rows are not held
      return vector_access ? fn.template operator()<T, float, kPerVector<T>>() : fn.template operator()<T, float, 1>();
    }
  });
}

// fn(first row, rows, blocks) for each launch of kernels that do not loop: one, but for more rows than a grid has
// blocks.
template <class Fn>
void for_launches(const RowPlan& p, int64_t rows, const Fn& fn) {
  for (int64_t first = 0; first < rows; first += p.groups())
    fn(first, rows - first, std::min(p.blocks, divide_up(rows - first, p.rows_per_block)));
}

// The same rows where they are not held: a block a row, as many as run at once.
RowPlan again(const RowPlan& p, int64_t rows) {
  const int lanes = std::max(p.lanes, 32);
  const int64_t most = int64_t{multiprocessors()} * (kAgainPerSm / lanes);
  return {.vectors = 0,
          .vector_access = p.vector_access,
          .lanes = lanes,
          .rows_per_block = 1,
          .blocks = std::clamp<int64_t>(rows, 1, most)};
}

struct WeightPlan {
  int64_t chunk, chunks;
};
WeightPlan plan_weight(int64_t rows) {
  const int64_t chunk = std::max<int64_t>(16, divide_up(rows, kMaxChunks));
  return {chunk, std::max<int64_t>(1, divide_up(rows, chunk))};
}

template <class... Wanted, class... Given>
void launch_columns(void (*kernel)(Wanted...), int64_t cols, int64_t chunks, Stream stream, Given&&... args) {
  constexpr int kThreads = 128;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(divide_up(cols, kThreads)), unsigned(chunks));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  checked(cudaLaunchKernelEx(&config, kernel, Wanted(std::forward<Given>(args))...), "kernel launch");
}

bool rows_aligned(const RmsNormForward& a, int64_t rows) {
  return kernels::gpu::aligned(a.x, a.x_stride, a.dtype, rows) && kernels::gpu::aligned(a.y, a.cols, a.y_dtype, rows) &&
         (a.residual == nullptr || (kernels::gpu::aligned(a.residual, a.residual_stride, a.dtype, rows) &&
                                    kernels::gpu::aligned(a.h, a.cols, a.dtype, rows)));
}
bool rows_aligned(const RmsNormBackward& a) {
  return kernels::gpu::aligned(a.x, a.x_stride, a.dtype, a.rows) &&
         kernels::gpu::aligned(a.dy, a.dy_stride, a.dy_dtype, a.rows) &&
         kernels::gpu::aligned(a.dx, a.cols, a.dtype, a.rows) &&
         (a.dh == nullptr || kernels::gpu::aligned(a.dh, a.dh_stride, a.dtype, a.rows));
}

// Held weights are of x's type and at whole vectors.
bool holds(const Scale& s, DType dtype) {
  return s.weight_dtype == dtype && reinterpret_cast<uintptr_t>(s.weight) % kVectorBytes == 0;
}

constexpr int kStaticBytes = 4096;  // of shared memory, for the sums of a row
RingPlan ring(int64_t rows, int64_t cols, DType dtype, bool aligned, int tensors) {
  return plan_ring(
      {.rows = rows, .cols = cols, .element_size = size_of(dtype), .aligned = aligned},
      {.tensors = tensors, .shared_bytes = attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() - kStaticBytes},
      multiprocessors());
}

RowPlan plan(int64_t rows, int64_t cols, DType dtype, bool aligned, const RowLimits& limits) {
  return plan_rows({.rows = rows, .cols = cols, .element_size = size_of(dtype), .aligned = aligned}, limits,
                   multiprocessors());
}

}  // namespace

void rms_norm_forward(const RmsNormForward& a, const Scale& s, int64_t rows, Stream stream) {
  if (rows == 0 || a.cols == 0) return;
  RowPlan p = plan(rows, a.cols, a.dtype, rows_aligned(a, rows), kForward);
  if (p.vectors > 0 && a.y_dtype == a.dtype && holds(s, a.dtype)) {
    return for_launches(p, rows, [&](int64_t first, int64_t n, int64_t blocks) {
      RmsNormForward some = a;
      some.x = moved(a.x, first, a.x_stride, a.dtype);
      some.residual = moved(a.residual, first, a.residual_stride, a.dtype);
      some.y = moved(a.y, first, a.cols, a.dtype);
      some.h = moved(a.h, first, a.cols, a.dtype);
      if (a.rstd != nullptr) some.rstd += first;
      with_forward(a.dtype, p, a.cols, [&]<typename T, int kVectors, int kMaxLanes, bool kFull>() {
        const auto kernel = a.residual != nullptr ? &rms_forward_held<T, kVectors, kMaxLanes, true, kFull>
                                                  : &rms_forward_held<T, kVectors, kMaxLanes, false, kFull>;
        launch_after(kernel, blocks, p.threads(), stream, some, s, n, p.lanes, 1.f / float(a.cols));
      });
    });
  }
  p = again(p, rows);
  with_access(a.dtype, a.y_dtype, p.vector_access, [&]<typename T, typename Y, int N>() {
    launch(&rms_forward_two_pass<T, Y, N>, p.blocks, p.lanes, stream, a, s, rows);
  });
}

void layer_norm_forward(const LayerNormForward& a, const Scale& s, const Scale& b, int64_t rows, Stream stream) {
  if (rows == 0 || a.cols == 0) return;
  const bool aligned =
      kernels::gpu::aligned(a.x, a.x_stride, a.dtype, rows) && kernels::gpu::aligned(a.y, a.cols, a.dtype, rows);
  RowPlan p = plan(rows, a.cols, a.dtype, aligned, kLayerForward);
  if (p.vectors > 0 && holds(s, a.dtype) && (b.weight == nullptr || holds(b, a.dtype))) {
    return for_launches(p, rows, [&](int64_t first, int64_t n, int64_t blocks) {
      LayerNormForward some = a;
      some.x = moved(a.x, first, a.x_stride, a.dtype);
      some.y = moved(a.y, first, a.cols, a.dtype);
      if (a.mean != nullptr) some.mean += first, some.rstd += first;
      with_lanes(a.dtype, p, a.cols, [&]<typename T, int kVectors, int kMaxLanes, bool kFull>() {
        launch_after(&layer_forward_held<T, kVectors, kMaxLanes, kFull>, blocks, p.threads(), stream, some, s, b, n,
                     p.lanes);
      });
    });
  }
  p = again(p, rows);
  with_access(a.dtype, a.dtype, p.vector_access, [&]<typename T, typename, int N>() {
    launch(&layer_forward_two_pass<T, N>, p.blocks, p.lanes, stream, a, s, b, rows);
  });
}

int64_t partial_rows(int64_t rows, int64_t cols, DType dtype) {
  return std::max(
      {plan_weight(rows).chunks, ring(rows, cols, dtype, true, 2).blocks, ring(rows, cols, dtype, true, 3).blocks});
}

int64_t rms_norm_backward(const RmsNormBackward& given, const Scale& s, Stream stream) {
  RmsNormBackward a = given;
  if (a.cols == 0) return 0;
  const bool aligned = rows_aligned(a);
  const int tensors = a.dh != nullptr ? 3 : 2;
  const RingPlan r = ring(a.rows, a.cols, a.dtype, aligned, tensors);
  if (r.vectors > 0 && a.dy_dtype == a.dtype && holds(s, a.dtype)) {
    with_ring(a.dtype, r, a.cols, [&]<typename T, int kVectors, int kDepth, bool kFull>() {
      if (a.dh != nullptr)
        launch_with_memory<&rms_backward_ring<T, kVectors, true, kDepth, kFull>>(r.shared_bytes(tensors), r.blocks,
                                                                                 r.threads(), stream, a, s, r.lanes);
      else
        launch_with_memory<&rms_backward_ring<T, kVectors, false, kDepth, kFull>>(r.shared_bytes(tensors), r.blocks,
                                                                                  r.threads(), stream, a, s, r.lanes);
    });
    return r.blocks;
  }
  const RowPlan p = again(plan(a.rows, a.cols, a.dtype, aligned, kForward), a.rows);
  const WeightPlan w = plan_weight(a.rows);
  a.chunk = w.chunk;
  with_access(a.dtype, a.dy_dtype, p.vector_access, [&]<typename T, typename Y, int N>() {
    launch(&rms_backward_two_pass<T, Y, N>, p.blocks, p.lanes, stream, a, s);
    launch_columns(&rms_weight_two_pass<T, Y>, a.cols, w.chunks, stream, a);
  });
  return w.chunks;
}

int64_t layer_norm_backward(const LayerNormBackward& given, const Scale& s, Stream stream) {
  LayerNormBackward a = given;
  if (a.cols == 0) return 0;
  const bool aligned = kernels::gpu::aligned(a.x, a.x_stride, a.dtype, a.rows) &&
                       kernels::gpu::aligned(a.dy, a.dy_stride, a.dtype, a.rows) &&
                       kernels::gpu::aligned(a.dx, a.cols, a.dtype, a.rows);
  const RingPlan r = ring(a.rows, a.cols, a.dtype, aligned, 2);
  if (r.vectors > 0 && holds(s, a.dtype)) {
    with_ring(a.dtype, r, a.cols, [&]<typename T, int kVectors, int kDepth, bool kFull>() {
      launch_with_memory<&layer_backward_ring<T, kVectors, kDepth, kFull>>(r.shared_bytes(2), r.blocks, r.threads(),
                                                                           stream, a, s, r.lanes);
    });
    return r.blocks;
  }
  const RowPlan p = again(plan(a.rows, a.cols, a.dtype, aligned, kForward), a.rows);
  const WeightPlan w = plan_weight(a.rows);
  a.chunk = w.chunk;
  with_access(a.dtype, a.dtype, p.vector_access, [&]<typename T, typename, int N>() {
    launch(&layer_backward_two_pass<T, N>, p.blocks, p.lanes, stream, a, s);
    launch_columns(&layer_weight_two_pass<T>, a.cols, w.chunks, stream, a);
  });
  return w.chunks;
}

void column_sum(const ColumnSum& a, Stream stream) {
  kernels::gpu::sum_columns({a.partial, a.chunks, a.cols, a.out, a.dtype}, stream);
}

}  // namespace norms::cuda
