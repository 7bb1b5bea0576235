// Layouts and launches of the gated RMSNorm on a GPU.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/cuda/sm80_gated_norm.cuh"

namespace mamba::cuda {
namespace {

using namespace gated_norm;
using namespace gated_norm::gpu;
using kernels::divide_up;

constexpr int kSmallBlock = 128, kMiddleBlock = 320;

int64_t groups_of(const Problem& p) { return p.cols / p.group; }

// Vectors that a thread holds and threads of a group; 0 vectors: too many.
struct Held {
  int vectors, lanes;
};
Held held_by(const Problem& p) {
  const int64_t vectors = p.group * kernels::size_of(p.type) / kernels::kVectorBytes;
  if (vectors <= 32) {
    int lanes = 1;
    while (lanes < vectors) lanes *= 2;
    return {1, lanes};
  }
  for (const int held : {2, 4}) {
    const int64_t lanes = divide_up(divide_up(vectors, held), 32) * 32;
    if (lanes <= kWideBlock) return {held, int(lanes)};
  }
  return {0, kTwoPassThreads};
}

// Rows of a chunk where `threads` of each of 132 multiprocessors have one: by the shape alone, so that backward's sums
// have the same bits on every device.
int64_t chunk_of(const Problem& p, int64_t threads, int64_t least) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t units = kMultiprocessors * std::max<int64_t>(1, threads / held_by(p).lanes);
  return std::max(divide_up(p.rows, std::max<int64_t>(1, units / groups_of(p))), least);
}
int64_t chunk_of(const Problem& p) { return chunk_of(p, kBackwardThreads, 4); }
int64_t chunks_of(const Problem& p) { return divide_up(p.rows, chunk_of(p)); }

// By whole vectors, which a thread can hold on this device.
bool takes_vectors(const Problem& p, std::initializer_list<std::pair<const void*, int64_t>> rows) {
  const int64_t vector = kernels::kVectorBytes / kernels::size_of(p.type);
  for (const auto& [data, stride] : rows) {
    if (!kernels::gpu::aligned(data, stride, p.type, p.rows)) return false;
  }
  // Of four vectors a thread the ring of a wide block takes 192 KB.
  const bool fits =
      held_by(p).vectors < 4 || kernels::gpu::attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() > 200 << 10;
  return fits && p.group % vector == 0 && p.cols % vector == 0 &&
         reinterpret_cast<uintptr_t>(p.weight) % kernels::kVectorBytes == 0;
}

template <class Fn>  // fn<vectors that a thread holds, threads that its block has at most>()
void with_held(const Held& held, const Fn& fn) {
  if (held.vectors == 1) return fn.template operator()<1, kSmallBlock>();
  if (held.vectors == 4) return fn.template operator()<4, kWideBlock>();
  if (held.lanes <= kSmallBlock) return fn.template operator()<2, kSmallBlock>();
  if (held.lanes <= kMiddleBlock) return fn.template operator()<2, kMiddleBlock>();
  fn.template operator()<2, kWideBlock>();
}

template <class Fn>  // fn<T, kNormFirst>()
void with_kind(const Problem& p, const Fn& fn) {
  kernels::with_dtype(p.type, [&]<typename T>() {
    p.norm_first ? fn.template operator()<T, true>() : fn.template operator()<T, false>();
  });
}

// out[c] = sum of partial[., c]: slices of the chunks one after the other, then the slices.
constexpr int kSumColumns = 32, kSlices = 16;

__global__ void __launch_bounds__(kSumColumns* kSlices) sum_chunks(const Backward a, int64_t chunks) {
  __shared__ float sums[kSlices][kSumColumns];
  const int column = int(threadIdx.x) % kSumColumns, slice = int(threadIdx.x) / kSumColumns;
  const int64_t c = int64_t{blockIdx.x} * kSumColumns + column, each = (chunks + kSlices - 1) / kSlices;
  const int64_t end = (slice + 1) * each < chunks ? (slice + 1) * each : chunks;
  float total = 0.f;
  if (c < a.of.cols) {
#pragma unroll 8
    for (int64_t k = slice * each; k < end; ++k) total += a.partial[k * a.of.cols + c];
  }
  sums[slice][column] = total;
  __syncthreads();
  if (slice > 0 || c >= a.of.cols) return;
  for (int s = 1; s < kSlices; ++s) total += sums[s][column];
  write(a.dweight, a.weight_type, c, total);
}

}  // namespace

int64_t gated_norm_partials(const Problem& p) { return p.cols > 0 ? chunks_of(p) : 0; }

void gated_norm_forward(const gated_norm::Forward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.rows * p.cols == 0) return;
  const Held held = held_by(p);
  const bool vectors = held.vectors > 0 && takes_vectors(p, {{p.x, p.x_stride}, {p.z, p.z_stride}, {a.y, p.cols}});
  const int64_t chunk = vectors ? chunk_of(p, kForwardThreads, 1) : 1;
  const Layout l{held.lanes, groups_of(p), divide_up(p.rows, chunk) * groups_of(p), chunk};
  with_kind(p, [&]<typename T, bool kNormFirst>() {
    const auto go = [&]<int kHeld, int kMaxLanes>() {
      const int threads = l.lanes <= 32 ? kSmallBlock : l.lanes;
      kernels::gpu::launch_with_memory<&forward_held<T, kHeld, kMaxLanes, kNormFirst>>(
          threads * ForwardRing<T, kHeld>::kBytesOfThread, divide_up(l.units, threads / l.lanes), threads, stream, a,
          l);
    };
    if (!vectors)
      kernels::gpu::launch(&forward_two_pass<T, kNormFirst>, l.units, kTwoPassThreads, stream, a, l);
    else
      with_held(held, go);
  });
}

void gated_norm_backward(const gated_norm::Backward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.cols == 0) return;
  const int64_t chunks = chunks_of(p);
  if (p.rows > 0) {
    const Held held = held_by(p);
    const bool vectors =
        held.vectors > 0 &&
        takes_vectors(p, {{p.x, p.x_stride}, {p.z, p.z_stride}, {a.dy, a.dy_stride}, {a.dx, p.cols}, {a.dz, p.cols}});
    const Layout l{held.lanes, groups_of(p), chunks * groups_of(p), chunk_of(p)};
    with_kind(p, [&]<typename T, bool kNormFirst>() {
      const auto go = [&]<int kHeld, int kMaxLanes>() {
        const int threads = l.lanes <= 32 ? kSmallBlock : l.lanes;
        kernels::gpu::launch_with_memory<&backward_held<T, kHeld, kMaxLanes, kNormFirst>>(
            threads * BackwardRing<T, kHeld, kMaxLanes>::kBytesOfThread, divide_up(l.units, threads / l.lanes), threads,
            stream, a, l);
      };
      if (!vectors) {
        const int64_t blocks = divide_up(p.cols, kTwoPassThreads);
        kernels::gpu::launch(&backward_again<T, kNormFirst>, p.rows * l.groups, kTwoPassThreads, stream, a, l);
        kernels::gpu::launch(&weight_again<T, kNormFirst>, chunks * blocks, kTwoPassThreads, stream, a, l, blocks);
      } else {
        with_held(held, go);
      }
    });
  }
  kernels::gpu::launch(&sum_chunks, divide_up(p.cols, kSumColumns), kSumColumns * kSlices, stream, a, chunks);
}

}  // namespace mamba::cuda
