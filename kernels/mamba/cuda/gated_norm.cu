// Layouts and launches of the gated RMSNorm on a GPU.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/reduce/column_sums.cuh"
#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/cuda/sm80_gated_norm.cuh"

namespace mamba::cuda {
namespace {

using namespace gated_norm;
using namespace gated_norm::gpu;
using kernels::divide_up;

constexpr int kSmallBlock = kPartsBlock, kForwardBlock = 256, kMiddleBlock = 320;

int64_t groups_of(const Problem& p) { return p.cols / p.group; }

// Vectors that a thread holds and threads of a group; 0 vectors: too many.
struct Held {
  int vectors, lanes;
};
// Of one vector a thread: a part of a warp, or whole warps up to `max_lanes`.
Held held_by(const Problem& p, int64_t max_lanes) {
  const int64_t vectors = p.group * kernels::size_of(p.type) / kernels::kVectorBytes;
  if (vectors <= 32) {
    int lanes = 1;
    while (lanes < vectors) lanes *= 2;
    return {1, lanes};
  }
  for (const int held : {1, 2, 4}) {
    const int64_t lanes = divide_up(divide_up(vectors, held), 32) * 32;
    if (lanes <= (held == 1 ? max_lanes : kWideBlock)) return {held, int(lanes)};
  }
  return {0, kTwoPassThreads};
}
Held held_forward(const Problem& p) { return held_by(p, kForwardBlock); }
Held held_backward(const Problem& p) { return held_by(p, 0); }

// Backward's rows of a chunk where kBackwardThreads of each of 132 multiprocessors have one: by the shape alone, so
// that the sums have the same bits on every device.
int64_t chunk_of(const Problem& p) {
  constexpr int64_t kMultiprocessors = 132, kLeast = 4;
  const int64_t units = kMultiprocessors * std::max<int64_t>(1, kBackwardThreads / held_backward(p).lanes);
  return std::max(divide_up(p.rows, std::max<int64_t>(1, units / groups_of(p))), kLeast);
}
int64_t chunks_of(const Problem& p) { return divide_up(p.rows, chunk_of(p)); }

bool whole_vectors(const Problem& p, std::initializer_list<std::pair<const void*, int64_t>> rows) {
  const int64_t vector = kernels::kVectorBytes / kernels::size_of(p.type);
  for (const auto& [data, stride] : rows) {
    if (!kernels::gpu::aligned(data, stride, p.type, p.rows)) return false;
  }
  return p.group % vector == 0 && p.cols % vector == 0 &&
         reinterpret_cast<uintptr_t>(p.weight) % kernels::kVectorBytes == 0;
}
// Of four vectors a thread backward's ring of a wide block takes 192 KB.
bool ring_fits(const Held& held) {
  return held.vectors < 4 || kernels::gpu::attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() > 200 << 10;
}

template <class Fn>  // fn<vectors that a thread holds, threads that its block has at most>()
void with_held_forward(const Held& held, const Fn& fn) {
  if (held.vectors == 4) return fn.template operator()<4, kWideBlock>();
  if (held.vectors == 2) return fn.template operator()<2, kWideBlock>();
  if (held.lanes > 32) return fn.template operator()<1, kForwardBlock>();
  fn.template operator()<1, kPartsOfWarp>();
}
template <class Fn>  // the same
void with_held_backward(const Held& held, const Fn& fn) {
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

int threads_of(int lanes) { return lanes <= 32 ? kPartsBlock : lanes; }

}  // namespace

int64_t gated_norm_partials(const Problem& p) { return p.cols > 0 ? chunks_of(p) : 0; }

void gated_norm_forward(const gated_norm::Forward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.rows * p.cols == 0) return;
  const Held held = held_forward(p);
  const bool vectors = held.vectors > 0 && whole_vectors(p, {{p.x, p.x_stride}, {p.z, p.z_stride}, {a.y, p.cols}});
  const Layout l{held.lanes, groups_of(p), p.rows * groups_of(p), 1};
  with_kind(p, [&]<typename T, bool kNormFirst>() {
    if (!vectors) return kernels::gpu::launch(&forward_two_pass<T, kNormFirst>, l.units, kTwoPassThreads, stream, a, l);
    with_held_forward(held, [&]<int kHeld, int kMaxLanes>() {
      const int threads = threads_of(l.lanes);
      kernels::gpu::launch_after(&forward_held<T, kHeld, kMaxLanes, kNormFirst>, divide_up(l.units, threads / l.lanes),
                                 threads, stream, a, l);
    });
  });
}

void gated_norm_backward(const gated_norm::Backward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.cols == 0) return;
  const int64_t chunks = chunks_of(p);
  if (p.rows > 0) {
    const Held held = held_backward(p);
    const bool vectors =
        held.vectors > 0 && ring_fits(held) &&
        whole_vectors(p, {{p.x, p.x_stride}, {p.z, p.z_stride}, {a.dy, a.dy_stride}, {a.dx, p.cols}, {a.dz, p.cols}});
    const Layout l{held.lanes, groups_of(p), chunks * groups_of(p), chunk_of(p)};
    with_kind(p, [&]<typename T, bool kNormFirst>() {
      if (!vectors) {
        const int64_t blocks = divide_up(p.cols, kTwoPassThreads);
        kernels::gpu::launch(&backward_again<T, kNormFirst>, p.rows * l.groups, kTwoPassThreads, stream, a, l);
        kernels::gpu::launch(&weight_again<T, kNormFirst>, chunks * blocks, kTwoPassThreads, stream, a, l, blocks);
        return;
      }
      with_held_backward(held, [&]<int kHeld, int kMaxLanes>() {
        const int threads = threads_of(l.lanes);
        kernels::gpu::launch_after_with_memory<&backward_held<T, kHeld, kMaxLanes, kNormFirst>>(
            threads * BackwardRing<T, kHeld, kMaxLanes>::kBytesOfThread, divide_up(l.units, threads / l.lanes), threads,
            1, stream, a, l);
      });
    });
  }
  kernels::gpu::sum_columns({a.partial, chunks, p.cols, a.dweight, a.weight_type}, stream);
}

}  // namespace mamba::cuda
