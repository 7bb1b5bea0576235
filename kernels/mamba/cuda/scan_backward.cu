// Launches of the selective scan's backward on a GPU.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/cuda/sm80_scan_backward.cuh"
#include "kernels/mamba/cuda/sm80_scan_plan.h"
#include "kernels/mamba/cuda/sm80_scan_split.cuh"

namespace mamba::cuda {
namespace {

using namespace scan;
using namespace scan::gpu;
using kernels::divide_up;

// dB and dC: a thread adds up one number of one step over all slots, in order.
__global__ void __launch_bounds__(kThreads) sum_tokens(const scan::Backward a, int64_t slots) {
  const Problem& p = a.of;
  const int64_t row = 2 * p.states, n = int64_t{blockIdx.x} * kThreads + threadIdx.x, step_of = n / row;
  const int64_t entry = step_of / p.length, t = step_of % p.length, which = n % row / p.states, state = n % p.states;
  const Coefficients& to = which == 0 ? a.db : a.dc;
  if (entry >= p.batch * p.groups || to.constant) return;
  const float* from = a.token_sums + (entry * slots * p.length + t) * row + n % row;
  float sum = 0.f;
#pragma unroll 8
  for (int64_t slot = 0; slot < slots; ++slot) sum += from[slot * p.length * row];
  const int64_t batch = entry / p.groups, group = entry % p.groups;
  store_any(to.view.data, to.view.type,
            batch * to.view.batch + group * to.group + state * to.view.channel + t * to.view.step, sum);
}

// What is summed over the batch: a thread has one row of one channel.
__global__ void __launch_bounds__(kThreads) sum_channels(const scan::Backward a) {
  const Problem& p = a.of;
  const int64_t rows = channel_rows(p), n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int64_t row = n / p.channels;
  const int64_t channel = n % p.channels;
  if (row >= rows) return;
  double total = 0;
  for (int64_t b = 0; b < p.batch; ++b) total += double(a.channel_sums[(b * rows + row) * p.channels + channel]);
  const auto take = [&](const View& to, int64_t count) {  // the next `count` rows are those of `to`
    if (row >= 0 && row < count && to.data != nullptr) write(to, 0, channel, row, float(total));
    row -= count;
  };
  take(a.da, p.states);
  if (p.b.constant) take(a.db.view, p.states);
  if (p.c.constant) take(a.dc.view, p.states);
  take(a.dd, 1);
  take(a.dbias, 1);
}

Contiguous contiguous_of(const scan::Backward& a) {
  const Problem& p = a.of;
  return scan::gpu::contiguous_of(p, {p.u, p.delta, p.z, a.dy, a.du, a.ddelta, a.dz});
}

// With one channel a lane and its 4 states a multiprocessor has four blocks, with two channels two.
constexpr int kBackwardEach = 2;
// As many blocks as 132 multiprocessors have at once, where there are so many: each slot's sums are memory.
constexpr int64_t kItems = 528;
BackwardPlan plan_of(const Problem& p, int64_t channels, const Tensors& tensors) {
  const int64_t blocks = divide_up(p.channels / p.groups, channels);
  const int64_t wanted = divide_up(kItems, std::max<int64_t>(1, p.batch * p.groups));
  return {blocks, std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, blocks)), token_layouts(p), tensors};
}

void whole(const scan::Backward& a, Stream stream) {
  const scan::Problem& p = a.of;
  with_shape<kBackwardEach>(p, contiguous_of(a), [&]<class T, Contiguous kContiguous, class S>() {
    const BackwardPlan plan = plan_of(p, S::kChannels,
                                      {{p.u,
                                        p.delta,
                                        p.z,
                                        a.dy,
                                        a.du,
                                        a.ddelta,
                                        a.dz,
                                        p.b.view,
                                        p.c.view,
                                        {a.token_sums, DType::kFloat32, 0, 0, 2 * p.states}}});
    with_kinds<kContiguous>(p, [&]<bool kPacked, bool kConstant>() {
      kernels::gpu::launch_with_memory<&scan::gpu::backward<T, kContiguous, S, kPacked, kConstant>>(
          sizeof(BackwardMemory<T, kContiguous, S>), p.batch * p.groups * plan.slots, kThreads, stream, a, plan);
    });
  });
}
void add_tokens(const scan::Backward& a, Stream stream) {
  const scan::Problem& p = a.of;
  const int64_t elements = p.batch * p.groups * p.length * 2 * p.states;
  if (elements > 0 && !(p.b.constant && p.c.constant))
    kernels::gpu::launch(&sum_tokens, divide_up(elements, kThreads), kThreads, stream, a, scan_slots(p));
}

scan::Backward part_of(const scan::Backward& a, int64_t entry, int64_t first, int64_t steps, int64_t parts) {
  scan::Backward part = a;
  part.of = scan::gpu::part_of(a.of, entry, first, steps, parts);
  for (View* v : {&part.dy, &part.du, &part.ddelta, &part.dz}) *v = scan::gpu::part_of(*v, entry, first, steps);
  part.db = scan::gpu::part_of(a.db, entry, first, steps), part.dc = scan::gpu::part_of(a.dc, entry, first, steps);
  const int64_t chunk = a.of.states * a.of.channels;
  part.checkpoints.data =
      static_cast<float*>(a.checkpoints.data) + entry * a.checkpoints.batch + first / kGpuChunk * chunk;
  part.checkpoints.batch = chunks_of(part.of, kGpuChunk) * chunk;
  return part;
}

Split split(const scan::Problem& p) {
  constexpr int64_t kBlocks = 264;  // two a multiprocessor
  int64_t blocks = 0;
  with_shape<kBackwardEach>(p, Contiguous::kAny, [&]<class T, Contiguous kContiguous, class S>() {
    blocks = p.groups * divide_up(p.channels / p.groups, S::kChannels);
  });
  return split_of(p, blocks, kBlocks);
}
int64_t entries_of(const scan::Problem& p, const Split& s) {
  return s.parts > 1 ? p.batch * (s.parts + (s.tail > 0 ? 1 : 0)) : p.batch;
}

}  // namespace

int64_t scan_slots(const scan::Problem& p) {
  int64_t slots = 1;
  with_shape<kBackwardEach>(p, Contiguous::kAny, [&]<class T, Contiguous kContiguous, class S>() {
    slots = plan_of(p, S::kChannels, {}).slots;
  });
  return slots;
}

int64_t scan_entries(const scan::Problem& p) { return entries_of(p, split(p)); }
int64_t scan_backward_memory(const scan::Problem& p) { return split_memory(p, split(p)); }

void scan_backward(const scan::Backward& a, float* memory, Stream stream) {
  const scan::Problem& p = a.of;
  if (p.channels == 0) return;
  const Split s = split(p);
  if (s.parts == 1) {
    if (p.batch > 0) whole(a, stream), add_tokens(a, stream);
  } else {
    const PartStates states{memory, p.channels, p.states};
    float* const sums = memory + (s.parts + 1) * p.channels * p.states;
    const int64_t entry_sums = sum_rows_of(p) * p.channels, behind = s.parts * s.steps;
    for (int64_t entry = 0; entry < p.batch; ++entry) {
      float* const channel_sums = a.channel_sums + entry * entries_of(p, s) / p.batch * entry_sums;
      View dlast = entry_of(a.dlast, entry);
      if (s.tail > 0) {
        scan::Backward tail = part_of(a, entry, behind, s.tail, 1);
        tail.channel_sums = channel_sums + s.parts * entry_sums;
        tail.dlast = dlast, tail.dinitial = states.from(s.parts);
        whole(tail, stream), add_tokens(tail, stream);
        dlast = tail.dinitial;
      }
      scan::Backward parts = part_of(a, entry, 0, s.steps, s.parts);
      parts.channel_sums = channel_sums;
      parts.dlast = {}, parts.dinitial = states.from(0);
      whole(parts, stream);  // everything but dinitial is written again
      join<true>(parts.of, states, sums, dlast, entry_of(a.dinitial, entry), stream);
      parts.dlast = states.from(0), parts.dinitial = {};
      whole(parts, stream), add_tokens(parts, stream);
    }
  }
  scan::Backward sums = a;
  sums.of.batch = entries_of(p, s);
  kernels::gpu::launch(&sum_channels, divide_up(sum_rows_of(p) * p.channels, kThreads), kThreads, stream, sums);
}

}  // namespace mamba::cuda
