// State space duality on a GPU: the first pass, of single tokens, and the last, of sums (ssd_plan.h).
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/ssd_plan.h"
#include "kernels/mamba/cuda/view.cuh"

namespace mamba::ssd::gpu {
namespace {

using namespace mamba::gpu;

constexpr int kThreads = 256, kWarps = kThreads / 32;

// ---- steps

// Of a chunk's tokens, kEach beside each other in each lane: their sequences' first rows (as ssd_cpu's Rows).
template <int kEach>
struct Begins {
  int start[kEach], last_start;  // -1: the sequence entered from the chunk before
  bool padding[kEach];
};

template <int kEach>
__device__ Begins<kEach> begins_of(const Problem& p, int64_t batch, int64_t first) {
  constexpr int kTokens = 32 * kEach;
  const int lane = int(threadIdx.x) % 32;
  Begins<kEach> out;
  int id[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t t = first + lane * kEach + e;
    id[e] = t >= p.length ? -1 : p.sequence.data == nullptr ? 0 : sequence_at(p.sequence, batch, t);
    out.padding[e] = id[e] < 0, out.start[e] = -1;
  }
  out.last_start = -1;
  if (p.sequence.data == nullptr) return out;

  int before = -1;  // the last token's that is no padding
  for (int64_t t = first - 1; t >= 0 && before < 0; t -= 32) {
    const int there = t - lane >= 0 ? sequence_at(p.sequence, batch, t - lane) : -1;
    const unsigned alive = __ballot_sync(kAllLanes, there >= 0);
    if (alive != 0) before = __shfl_sync(kAllLanes, there, __ffs(int(alive)) - 1);
  }
  int last = -1;
#pragma unroll
  for (int e = 0; e < kEach; ++e) last = id[e] >= 0 ? id[e] : last;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(kAllLanes, last, o);
    if (lane >= o && last < 0) last = other;
  }
  int current = __shfl_up_sync(kAllLanes, last, 1);
  if (lane == 0 || current < 0) current = before;
  int newest = -1;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (id[e] >= 0 && current >= 0 && id[e] != current) newest = lane * kEach + e;
    if (id[e] >= 0) current = id[e];
    out.start[e] = newest;
  }
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(kAllLanes, newest, o);
    if (lane >= o) newest = max(newest, other);
  }
  const int left = __shfl_up_sync(kAllLanes, newest, 1);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (lane > 0) out.start[e] = max(out.start[e], left);
    if (out.padding[e]) out.start[e] = kTokens;  // no column is that far
  }
  out.last_start = __shfl_sync(kAllLanes, newest, 31);
  return out;
}

// A warp has a chunk of one head.
template <int kTokens>
__global__ void __launch_bounds__(kThreads) write_steps(const Problem p, const Plan plan, float* memory) {
  constexpr int kEach = kTokens / 32;
  // S of bfloat16's steps is kept in one float; of the others' in two, for which it is summed in float64.
  constexpr bool kNarrow = kTokens == 64;
  using Sum = std::conditional_t<kNarrow, float, double>;
  launch_dependents();
  const int lane = int(threadIdx.x) % 32;
  const auto blocks = uint32_t((p.heads + kWarps - 1) / kWarps), chunk_of = blockIdx.x / blocks;
  const int64_t chunk = chunk_of, head = blockIdx.x % blocks * kWarps + threadIdx.x / 32;
  if (head >= p.heads) return;
  const auto chunks = uint32_t(plan.chunks);
  const int64_t item = chunk * p.heads + head, batch = chunk_of / chunks, first = int64_t{chunk_of % chunks} * kTokens;
  const Begins<kEach> begins = begins_of<kEach>(p, batch, first);

  const float rate = p.A[head], bias = p.dt_bias == nullptr ? 0.f : p.dt_bias[head];
  float delta[kEach], slope[kEach];
  Sum sum[kEach], total = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    delta[e] = slope[e] = 0.f;
    if (!begins.padding[e]) {
      const int64_t t = first + lane * kEach + e;
      const float v = read(p.dt.data, p.dt_type, batch * p.dt.batch + t * p.dt.step + head * p.dt.head) + bias;
      slope[e] = 1.f;
      float d = v;
      if (p.softplus && kNarrow)
        d = softplus(v, slope[e]);
      else if (p.softplus && v <= 20.f)  // to the last digits, whatever Δ's size
        d = log1pf(expf(v)), slope[e] = 1.f / (1.f + expf(-v));
      if (d < p.dt_min || d > p.dt_max) slope[e] = 0.f;
      delta[e] = d < p.dt_min ? p.dt_min : d > p.dt_max ? p.dt_max : d;  // NaN stays
    }
    total += Sum(delta[e]) * Sum(rate) * Sum(1.4426950408889634);
    sum[e] = total;
  }
  Sum left = total;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const Sum other = __shfl_up_sync(kAllLanes, left, o);
    if (lane >= o) left += other;
  }
  left = __shfl_up_sync(kAllLanes, left, 1);
#pragma unroll
  for (int e = 0; e < kEach; ++e) sum[e] += lane > 0 ? left : Sum(0);
  const Sum end = __shfl_sync(kAllLanes, sum[kEach - 1], 31);

  float* to = memory + plan.steps + item * plan.step_row;
  const auto write_all = [&](StepArray array, const auto& value) {
    if constexpr (kEach == 2)
      *reinterpret_cast<float2*>(to + array * kTokens + 2 * lane) = {value(0), value(1)};
    else
      to[array * kTokens + lane] = value(0);
  };
  float leave[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    leave[e] = lane * kEach + e >= begins.last_start ? exp2_approx(float(end - sum[e])) : 0.f;
  write_all(kSum, [&](int e) { return float(sum[e]); });
  write_all(kShifted, [&](int e) { return float(sum[e]) - __log2f(delta[e]); });
  write_all(kEnter,
            [&](int e) { return begins.start[e] < 0 && !begins.padding[e] ? exp2_approx(float(sum[e])) : 0.f; });
  write_all(kWeight, [&](int e) { return leave[e] * delta[e]; });
  if (plan.backward || plan.parts > 1) {
    write_all(kDelta, [&](int e) { return delta[e]; });
    write_all(kRest, [&](int e) { return float(sum[e] - Sum(float(sum[e]))); });
    write_all(kLeave, [&](int e) { return leave[e]; });
    write_all(kSlope, [&](int e) { return slope[e]; });
  }
  if (lane == 0)  // a vector, as it is read
    *reinterpret_cast<float4*>(to + kStepArrays * kTokens) = {begins.last_start < 0 ? exp2_approx(float(end)) : 0.f,
                                                              0.f, 0.f, 0.f};
  if (head > 0) return;
  int* starts = reinterpret_cast<int*>(memory + plan.starts) + chunk * (kTokens + 1);
#pragma unroll
  for (int e = 0; e < kEach; ++e) starts[lane * kEach + e] = begins.start[e];
}

// ---- sums

// dB and dC: a thread adds up one number of one token over the blocks of heads, in order.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_tokens(const ssd::Backward a, const Plan plan, const float* parts) {
  const Problem& p = a.of;
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x, count = p.batch * p.length * p.groups * p.state;
  if (n >= 2 * count) return;
  const bool second = n >= count;
  const int64_t at = second ? n - count : n, state = at % p.state, row = at / p.state;
  const float* from = parts + ((second ? count : 0) + row * p.state) * plan.blocks + state;
  float sum = 0.f;
#pragma unroll 8
  for (int64_t block = 0; block < plan.blocks; ++block) sum += from[block * p.state];
  const int64_t group = row % p.groups, t = row / p.groups % p.length, batch = row / p.groups / p.length;
  const Tokens& to = second ? a.dC : a.dB;
  static_cast<T*>(to.data)[batch * to.batch + t * to.step + group * to.head + state] = from_float<T>(sum);
}

// The sums of the columns of arrays [rows, columns] one behind another, in float64: a block has eight columns of one.
constexpr int kSumThreads = 1024, kSumColumns = 8, kSumRows = kSumThreads / kSumColumns;
struct Totals {
  float* to[kHeadSums];  // null: not wanted
};
__global__ void __launch_bounds__(kSumThreads)
    sum_rows(const Totals totals, const float* from, int64_t rows, int64_t columns) {
  __shared__ double parts[kSumRows][kSumColumns];
  const int blocks = int((columns + kSumColumns - 1) / kSumColumns), which = int(blockIdx.x) / blocks;
  const int in = int(threadIdx.x) % kSumColumns, first = int(threadIdx.x) / kSumColumns;
  const int64_t column = int64_t{int(blockIdx.x) % blocks} * kSumColumns + in;
  if (totals.to[which] == nullptr) return;
  from += which * rows * columns;
  double sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t row = first; row < rows; row += kSumRows) sum += double(from[row * columns + column]);
  }
  parts[first][in] = sum;
#pragma unroll
  for (int half = kSumRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (first < half) parts[first][in] += parts[first + half][in];
  }
  if (first == 0 && column < columns) totals.to[which][column] = float(parts[0][in]);
}

}  // namespace

void steps(const Problem& p, const Plan& plan, float* memory, Stream stream) {
  const int64_t blocks = p.batch * plan.chunks * divide_up(p.heads, int64_t{kWarps});
  if (blocks == 0) return;
  kernels::gpu::launch(plan.tokens == 64 ? &write_steps<64> : &write_steps<32>, blocks, kThreads, stream, p, plan,
                       memory);
}

void sums(const ssd::Backward& a, const Plan& plan, float* memory, Stream stream) {
  const Problem& p = a.of;
  const int64_t elements = 2 * p.batch * p.length * p.groups * p.state, rows = p.batch * plan.chunks;
  if (elements > 0)
    kernels::with_dtype(p.type, [&]<class T>() {
      kernels::gpu::launch(&sum_tokens<T>, divide_up(elements, int64_t{kThreads}), kThreads, stream, a, plan,
                           memory + plan.token_sums);
    });
  const auto sum = [&](const Totals& totals, int count, const float* from, int64_t rows, int64_t columns) {
    if (columns > 0)
      kernels::gpu::launch(&sum_rows, count * divide_up(columns, int64_t{kSumColumns}), kSumThreads, stream, totals,
                           from, rows, columns);
  };
  sum({{a.dA, a.ddt_bias, p.each_D ? nullptr : a.dD}}, kHeadSums, memory + plan.head_sums, rows * plan.sum_rows,
      p.heads);
  if (p.each_D && a.dD != nullptr) sum({{a.dD}}, 1, memory + plan.number_sums, rows, p.heads * p.dim);
}

}  // namespace mamba::ssd::gpu
