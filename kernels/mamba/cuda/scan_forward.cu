// Layouts and launches of the selective scan's forward on a GPU.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/cuda/sm80_scan_forward.cuh"
#include "kernels/mamba/cuda/sm80_scan_plan.h"
#include "kernels/mamba/cuda/sm80_scan_split.cuh"

namespace mamba::cuda {
namespace {

using namespace scan;
using namespace scan::gpu;

// Two share what a lane reads of B and C; one leaves registers for twice the warps.
constexpr int kForwardEach = 2;

// kStates: the last state alone, of one sequence a row whose B and C are not constant.
template <bool kStates>
void go(const scan::Forward& a, Stream stream) {
  const scan::Problem& p = a.of;
  const Contiguous contiguous = contiguous_of(p, {p.u, p.delta, p.z, a.y});
  with_shape<kForwardEach>(p, contiguous, [&]<class T, Contiguous kContiguous, class S>() {
    const int64_t blocks = kernels::divide_up(p.channels / p.groups, S::kChannels);
    const auto launch = [&]<bool kPacked, bool kConstant, bool kOnly>() {
      kernels::gpu::launch_with_memory<&scan::gpu::forward<T, kContiguous, S, kPacked, kConstant, kOnly>>(
          sizeof(ForwardMemory<T, kContiguous, S>), p.batch * p.groups * blocks, kThreads, stream, a, blocks,
          token_layouts(p));
    };
    if constexpr (kStates && kContiguous != Contiguous::kAny)
      launch.template operator()<false, false, true>();
    else
      with_kinds<kContiguous>(
          p, [&]<bool kPacked, bool kConstant>() { launch.template operator()<kPacked, kConstant, false>(); });
  });
}

// What is behind a split's first `first` steps.
scan::Forward part_of(const scan::Forward& a, int64_t entry, int64_t first, int64_t steps, int64_t parts) {
  scan::Forward part = a;
  part.of = scan::gpu::part_of(a.of, entry, first, steps, parts);
  part.y = scan::gpu::part_of(a.y, entry, first, steps);
  if (part.checkpoints.data != nullptr) {  // [batch, chunks, states, channels]
    const int64_t chunk = a.of.states * a.of.channels, before = first / kGpuChunk * chunk;
    part.checkpoints.data = static_cast<float*>(a.checkpoints.data) + entry * a.checkpoints.batch + before;
    part.checkpoints.batch = chunks_of(part.of, kGpuChunk) * chunk;
  }
  return part;
}

Split split(const scan::Problem& p) {
  constexpr int64_t kBlocks = 528;
  int64_t blocks = 0;
  with_shape<kForwardEach>(p, Contiguous::kAny, [&]<class T, Contiguous kContiguous, class S>() {
    blocks = p.groups * kernels::divide_up(p.channels / p.groups, S::kChannels);
  });
  return split_of(p, blocks, kBlocks);
}

}  // namespace

int64_t scan_memory(const scan::Problem& p) { return split_memory(p, split(p)); }

void scan_forward(const scan::Forward& a, float* memory, Stream stream) {
  const scan::Problem& p = a.of;
  if (p.batch * p.channels == 0) return;
  const Split s = split(p);
  if (s.parts == 1) return go<false>(a, stream);
  const PartStates states{memory, p.channels, p.states};
  float* const sums = memory + (s.parts + 1) * p.channels * p.states;
  for (int64_t entry = 0; entry < p.batch; ++entry) {
    scan::Forward parts = part_of(a, entry, 0, s.steps, s.parts), alone = parts;
    alone.of.z = alone.of.d = alone.of.initial = alone.checkpoints = {};
    alone.last = states.from(0);
    go<true>(alone, stream);  // y, where it is written, is written again
    const View last = entry_of(a.last, entry), behind = s.tail > 0 ? states.from(s.parts) : last;
    join<false>(parts.of, states, sums, entry_of(p.initial, entry), behind, stream);
    parts.of.initial = parts.last = states.from(0);  // a lane reads its elements before it writes them
    go<false>(parts, stream);
    if (s.tail == 0) continue;
    scan::Forward tail = part_of(a, entry, s.parts * s.steps, s.tail, 1);
    tail.of.initial = behind, tail.last = last;
    go<false>(tail, stream);
  }
}

}  // namespace mamba::cuda
