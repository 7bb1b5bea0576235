// Assignments sorted by expert: a stable counting sort in four launches. A warp takes a stretch of consecutive
// assignments and counts, then the counts of all stretches are summed expert by expert, then each warp writes its
// stretch in order. Lanes that name the same expert find each other by match_any, so that nothing is added atomically
// and the order is always the same.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/moe/cuda/moe.h"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using kernels::divide_up;

constexpr int kWarps = 4;  // of a block, each with counters in shared memory where they fit
constexpr int kMaxStretches = 1024;
static_assert(kMaxAssignments % (32 * kMaxStretches) == 0, "else a stretch would end behind them, beyond int32");

struct Plan {
  int64_t stretch, stretches;  // assignments a warp; a multiple of 32
};
Plan plan(int64_t assignments) {
  const int64_t stretch = divide_up(divide_up(assignments, kMaxStretches), 32) * 32;
  const int64_t least = stretch < 128 ? 128 : stretch;
  return {least, divide_up(assignments, least)};
}

struct Arguments {
  const void* index;
  bool index64;
  int32_t *order, *slots, *offsets;
  int32_t* counts;  // [stretches, E]: of a stretch's assignments; then how many of the expert's come before them
  Hit* hits;
  int assignments, experts, stretch, stretches;
};

__device__ __forceinline__ int expert_of(const Arguments& a, int at) {
  if (at >= a.assignments) return -1;
  const int64_t e = a.index64 ? static_cast<const int64_t*>(a.index)[at] : static_cast<const int32_t*>(a.index)[at];
  return e >= 0 && e < a.experts ? int(e) : -1;
}

// Of all threads before this one in the block.
__device__ __forceinline__ int sum_before(int own, int32_t (&warps)[32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = own;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += other;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warps[w];
  return sum - own;
}

// fn(assignment, its expert or -1, how many of its expert's came before it in the stretch) for all of a stretch.
// counters [E]: zeros before; afterwards what the stretch has of each expert.
template <class Fn>
__device__ __forceinline__ void walk(const Arguments& a, int stretch, int32_t* counters, const Fn& fn) {
  const int lane = threadIdx.x % 32, begin = stretch * a.stretch;
  for (int at = begin + lane; at - lane < min(begin + a.stretch, a.assignments); at += 32) {
    const int expert = expert_of(a, at);
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const unsigned before = same & ((1u << lane) - 1);
    const int count = expert < 0 ? 0 : counters[expert];
    __syncwarp();
    if (expert >= 0 && before == 0) counters[expert] = count + __popc(same);
    __syncwarp();
    fn(at, expert, count + __popc(before));
  }
}

__global__ void __launch_bounds__(32 * kWarps) count_stretches(const Arguments a) {
  const int stretch = blockIdx.x * kWarps + threadIdx.x / 32;
  if (stretch >= a.stretches) return;
  int32_t* counters = a.counts + int64_t{stretch} * a.experts;
  for (int e = threadIdx.x % 32; e < a.experts; e += 32) counters[e] = 0;
  __syncwarp();
  walk(a, stretch, counters, [](int, int, int) {});
}

// A block an expert, a thread a stretch: counts become sums over the stretches before, the total goes to offsets[e +
// 1].
__global__ void __launch_bounds__(kMaxStretches) sum_stretches(const Arguments a) {
  __shared__ int32_t warps[32];
  const int stretch = threadIdx.x, expert = blockIdx.x;
  int32_t* count = a.counts + int64_t{stretch} * a.experts + expert;
  const int own = stretch < a.stretches ? *count : 0, sum = sum_before(own, warps) + own;
  if (stretch < a.stretches) *count = sum - own;
  if (stretch == kMaxStretches - 1) a.offsets[expert + 1] = sum;
}

// One warp: totals become offsets.
__global__ void __launch_bounds__(32) sum_experts(const Arguments a) {
  int before = 0, hits = 0;
  for (int first = 0; first < a.experts; first += 32) {
    const int expert = first + int(threadIdx.x), count = expert < a.experts ? a.offsets[expert + 1] : 0;
    int sum = count;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, o);
      if (int(threadIdx.x) >= o) sum += other;
    }
    if (expert < a.experts) a.offsets[expert + 1] = before + sum;
    const unsigned hit = __ballot_sync(kAllLanes, count > 0);
    if (a.hits != nullptr && count > 0)
      a.hits[1 + hits + __popc(hit & ((1u << threadIdx.x) - 1))] = {expert, before + sum - count, before + sum};
    hits += __popc(hit);
    before += __shfl_sync(kAllLanes, sum, 31);
  }
  if (threadIdx.x > 0) return;
  a.offsets[0] = 0;
  if (a.hits != nullptr) a.hits[0] = {hits, 0, 0};
}

__global__ void __launch_bounds__(32 * kWarps) write_stretches(const Arguments a) {
  const int stretch = blockIdx.x * kWarps + threadIdx.x / 32;
  if (stretch >= a.stretches) return;
  walk(a, stretch, a.counts + int64_t{stretch} * a.experts, [&](int at, int expert, int before) {
    if (at >= a.assignments) return;
    const int slot = expert < 0 ? -1 : a.offsets[expert] + before;
    a.slots[at] = slot;
    if (slot >= 0) a.order[slot] = at;
  });
}

// All of it at once where a block is enough: a decode step has a handful of assignments. Each expert has a bit for each
// of them in shared memory: how many it has, and how many come before one of them, is counted in words.
constexpr int kFew = 1024, kFewExperts = 1024, kFewWords = 10240;
struct Words {
  int of_assignments, pitch;
  __host__ __device__ explicit Words(int assignments)
      : of_assignments((assignments + 31) / 32), pitch(of_assignments | 1) {}  // odd: an expert a bank
};
__global__ void __launch_bounds__(1024) sort_few(const Arguments a) {  // as many threads as either has
  extern __shared__ uint32_t masks[];
  __shared__ int32_t starts[kFewExperts];
  __shared__ int32_t warps[32];
  grid_dependency_wait();
  if (a.hits != nullptr) launch_dependents();
  const int t = threadIdx.x;
  const Words words(a.assignments);
  for (int i = t; i < a.experts * words.pitch; i += int(blockDim.x)) masks[i] = 0;
  const int own = expert_of(a, t);
  const unsigned same = __match_any_sync(kAllLanes, own), before = same & ((1u << t % 32) - 1);
  __syncthreads();
  if (own >= 0 && before == 0) masks[own * words.pitch + t / 32] = same;
  __syncthreads();
  int count = 0;  // of expert t
  for (int w = 0; t < a.experts && w < words.of_assignments; ++w) count += __popc(masks[t * words.pitch + w]);
  const int start = sum_before(count, warps);
  if (t < a.experts) starts[t] = start, a.offsets[t + 1] = start + count;
  if (t == 0) a.offsets[0] = 0;
  const int hits = __syncthreads_count(count > 0);
  if (a.hits != nullptr) {
    const int hit = sum_before(count > 0, warps);
    if (count > 0) a.hits[1 + hit] = {t, start, start + count};
    if (t == 0) a.hits[0] = {hits, 0, 0};
  }
  if (t >= a.assignments) return;
  int slot = -1;
  if (own >= 0) {
    slot = starts[own] + __popc(before);
    for (int w = 0; w < t / 32; ++w) slot += __popc(masks[own * words.pitch + w]);
    a.order[slot] = t;
  }
  a.slots[t] = slot;
}

}  // namespace

int64_t sort_counts(int64_t assignments, int64_t experts) { return plan(assignments).stretches * experts; }

void sort(const Sort& s, Stream stream) {
  const Plan p = plan(s.assignments);
  const Arguments a{.index = s.index,
                    .index64 = s.index64,
                    .order = s.order,
                    .slots = s.slots,
                    .offsets = s.offsets,
                    .counts = s.counts,
                    .hits = s.hits,
                    .assignments = int(s.assignments),
                    .experts = int(s.experts),
                    .stretch = int(p.stretch),
                    .stretches = int(p.stretches)};
  const int64_t words = s.assignments <= kFew ? s.experts * Words(int(s.assignments)).pitch : kFewWords + 1;
  if (s.experts <= kFewExperts && words <= kFewWords)
    return launch_after_with_memory<sort_few>(words * 4, 1, int(divide_up(std::max(s.assignments, s.experts), 32) * 32),
                                              /*cluster=*/1, stream, a);
  launch(&count_stretches, divide_up(p.stretches, kWarps), 32 * kWarps, stream, a);
  launch(&sum_stretches, s.experts, kMaxStretches, stream, a);
  launch(&sum_experts, 1, 32, stream, a);
  launch(&write_stretches, divide_up(p.stretches, kWarps), 32 * kWarps, stream, a);
}

}  // namespace moe::cuda
