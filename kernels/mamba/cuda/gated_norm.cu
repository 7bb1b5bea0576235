// Layouts and launches of the gated RMSNorm on a GPU.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/gated_norm.cuh"
#include "kernels/mamba/cuda/mamba_cuda.h"

namespace mamba::cuda {
namespace {

using namespace gated_norm;
using namespace gated_norm::gpu;
using kernels::divide_up;

constexpr int kSmallBlock = 128;
constexpr int64_t kUnits = 528;  // of the backward: blocks of a few waves, each with sums of its own

int64_t groups_of(const Problem& p) { return p.cols / p.group; }
int64_t chunk_of(const Problem& p) {  // rows, by the shape alone
  const int64_t most = std::max<int64_t>(1, kUnits / groups_of(p));
  return std::max<int64_t>(divide_up(p.rows, most), 4);
}
int64_t chunks_of(const Problem& p) { return divide_up(p.rows, chunk_of(p)); }

bool aligned(const Problem& p, std::initializer_list<std::pair<const void*, int64_t>> rows) {
  const int64_t vector = kernels::kVectorBytes / kernels::size_of(p.type);
  for (const auto& [data, stride] : rows) {
    if (!kernels::gpu::aligned(data, stride, p.type, p.rows)) return false;
  }
  return p.group % vector == 0 && p.cols % vector == 0 &&
         reinterpret_cast<uintptr_t>(p.weight) % kernels::kVectorBytes == 0;
}

// Vectors that a thread holds and threads of a group; 0 vectors: too many.
struct Held {
  int vectors, lanes;
};
Held held_by(const Problem& p, int64_t most_lanes_of_four) {
  const int64_t vectors = p.group * kernels::size_of(p.type) / kernels::kVectorBytes;
  if (vectors <= 32) {
    int lanes = 1;
    while (lanes < vectors) lanes *= 2;
    return {1, lanes};
  }
  const auto warps = [&](int each) { return int(divide_up(divide_up(vectors, each), 32) * 32); };
  if (warps(2) <= 256) return {2, warps(2)};
  return warps(4) <= most_lanes_of_four ? Held{4, warps(4)} : Held{0, 0};
}

template <class Fn>  // fn<T, kNormFirst>()
void with_kind(const Problem& p, const Fn& fn) {
  kernels::with_dtype(p.type, [&]<typename T>() {
    p.norm_first ? fn.template operator()<T, true>() : fn.template operator()<T, false>();
  });
}

// out[c] = sum of partial[., c], in order.
__global__ void __launch_bounds__(kSmallBlock) sum_chunks(const Backward a, int64_t chunks) {
  const int64_t c = int64_t{blockIdx.x} * kSmallBlock + threadIdx.x;
  if (c >= a.of.cols) return;
  float total = 0.f;
#pragma unroll 8
  for (int64_t k = 0; k < chunks; ++k) total += a.partial[k * a.of.cols + c];
  write(a.dweight, a.weight_type, c, total);
}

}  // namespace

int64_t gated_norm_partials(const Problem& p) { return p.cols > 0 ? chunks_of(p) : 0; }

void gated_norm_forward(const gated_norm::Forward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.rows * p.cols == 0) return;
  const Held held = held_by(p, 512);
  const bool vectors = aligned(p, {{p.x, p.x_stride}, {p.z, p.z_stride}, {a.y, p.cols}}) && held.vectors > 0;
  const Layout l{held.lanes, groups_of(p), p.rows * groups_of(p), 0};
  with_kind(p, [&]<typename T, bool kNormFirst>() {
    const auto go = [&](auto kernel) {
      const int threads = l.lanes <= 32 ? kSmallBlock : l.lanes;
      kernels::gpu::launch(kernel, divide_up(l.units, threads / l.lanes), threads, stream, a, l);
    };
    if (!vectors)
      kernels::gpu::launch(&forward_again<T, kNormFirst>, l.units, kAgainThreads, stream, a, l);
    else if (held.vectors == 1)
      go(&forward_held<T, 1, kSmallBlock, kNormFirst>);
    else if (held.vectors == 2)
      go(&forward_held<T, 2, 256, kNormFirst>);
    else
      go(&forward_held<T, 4, 512, kNormFirst>);
  });
}

void gated_norm_backward(const gated_norm::Backward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.cols == 0) return;
  const int64_t chunks = chunks_of(p);
  if (p.rows > 0) {
    const Held held = held_by(p, 256);
    const bool vectors =
        held.vectors > 0 &&
        aligned(p, {{p.x, p.x_stride}, {p.z, p.z_stride}, {a.dy, a.dy_stride}, {a.dx, p.cols}, {a.dz, p.cols}});
    const Layout l{held.lanes, groups_of(p), chunks * groups_of(p), chunk_of(p)};
    with_kind(p, [&]<typename T, bool kNormFirst>() {
      const auto go = [&](auto kernel) {
        const int threads = l.lanes <= 32 ? kSmallBlock : l.lanes;
        kernels::gpu::launch(kernel, divide_up(l.units, threads / l.lanes), threads, stream, a, l);
      };
      if (!vectors) {
        const int64_t blocks = divide_up(p.cols, kAgainThreads);
        kernels::gpu::launch(&backward_again<T, kNormFirst>, p.rows * l.groups, kAgainThreads, stream, a, l);
        kernels::gpu::launch(&weight_again<T, kNormFirst>, chunks * blocks, kAgainThreads, stream, a, l, blocks);
      } else if (held.vectors == 1) {
        go(&backward_held<T, 1, kSmallBlock, kNormFirst>);
      } else if (held.vectors == 2) {
        go(&backward_held<T, 2, 256, kNormFirst>);
      } else {
        go(&backward_held<T, 4, 256, kNormFirst>);
      }
    });
  }
  kernels::gpu::launch(&sum_chunks, divide_up(p.cols, kSmallBlock), kSmallBlock, stream, a, chunks);
}

}  // namespace mamba::cuda
