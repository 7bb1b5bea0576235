// One step of generation of the scans on a GPU: it reads and writes the state once, and little else. Some lanes have a
// row of states, each 16 bytes of it at a time; a warp has as many rows as fit.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba_cuda.h"
#include "kernels/mamba/cuda/view.cuh"
#include "kernels/mamba/update.h"

namespace mamba::cuda {
namespace {

using namespace mamba::gpu;
using kernels::divide_up;
using kernels::Divider;
using update::Heads;
using update::Problem;

constexpr int kThreads = 128;
constexpr int kRows = 2;  // of a lane: their loads are under way together

struct Plan {
  int lanes;    // of a row
  int64_t end;  // rows: [batch, heads, dim]
  Divider by_dim, by_heads;
  bool rates, tokens;  // A, and B and C, in vectors; else one number at a time
};

__device__ __forceinline__ int64_t at(const Heads& t, int64_t batch, int64_t head, int64_t i) {
  return batch * t.view.batch + head * t.head + i * t.view.channel;
}
__device__ __forceinline__ float number(const Heads& t, int64_t batch, int64_t head, int64_t i) {
  return t.view.data != nullptr ? read(t.view.data, t.view.type, at(t, batch, head, i)) : 0.f;
}
template <int kN>
__device__ __forceinline__ void numbers(const View& v, int64_t from, int64_t stride, bool vectors, float (&f)[kN]) {
  if constexpr (kN > 1) {
    if (vectors) return load_any<kN>(v.data, v.type, from, true, f);
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) f[i] = read(v.data, v.type, from + i * stride);
}

// T = void: a state of any type and strides, a number at a time.
template <class T>
constexpr int kStateVector = 16 / sizeof(T);
template <>
constexpr int kStateVector<void> = 1;

struct Row {
  int64_t batch, head, i, entry;  // entry: the state's row, negative: none
  float delta, input;             // Δ and Δ x
};

template <class T>
__global__ void __launch_bounds__(kThreads) step_states(const Problem p, const Plan plan) {
  constexpr int kN = kStateVector<T>;
  const int lane = int(threadIdx.x) % plan.lanes, rows = kThreads / plan.lanes;
  const int64_t first = int64_t{blockIdx.x} * rows * kRows + threadIdx.x / plan.lanes;
  const int64_t group_heads = p.heads / p.groups;
  Row row[kRows];
  float y[kRows] = {}, decay[kRows];
  const bool alike = p.a.view.step == 0 || p.states == 1;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // Lanes beyond the end take part in shuffles.
    const int64_t n = first + r * rows < plan.end ? first + r * rows : plan.end - 1;
    const uint32_t of_head = plan.by_dim(uint32_t(n)), batch = plan.by_heads(of_head);
    Row& own = row[r];
    own.batch = batch, own.head = of_head - batch * p.heads, own.i = n - int64_t{of_head} * p.dim;
    own.entry = p.indices != nullptr ? p.indices[batch] : int64_t{batch};
    const float raw = number(p.dt, batch, own.head, own.i) + number(p.dt_bias, 0, own.head, own.i);
    own.delta = p.softplus ? softplus(raw) : raw;
    own.input = own.delta * number(p.x, batch, own.head, own.i);
    decay[r] = alike ? exp2(own.delta * kLog2E * number(p.a, 0, own.head, own.i)) : 0.f;
  }
  for (int n = lane * kN; n < p.states; n += plan.lanes * kN) {
    float h[kRows][kN], a[kRows][kN], b[kRows][kN], c[kRows][kN];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Row& own = row[r];
      if (own.entry < 0) continue;
      const View& s = p.state.view;
      numbers<kN>(s, at(p.state, own.entry, own.head, own.i) + n * s.step, s.step, true, h[r]);
      if (!alike)
        numbers<kN>(p.a.view, at(p.a, 0, own.head, own.i) + n * p.a.view.step, p.a.view.step, plan.rates, a[r]);
      const int64_t group = own.head / group_heads, step = p.b.view.channel, step_c = p.c.view.channel;
      numbers<kN>(p.b.view, at(p.b, own.batch, group, n), step, plan.tokens, b[r]);
      numbers<kN>(p.c.view, at(p.c, own.batch, group, n), step_c, plan.tokens, c[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Row& own = row[r];
      if (own.entry < 0) continue;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float power = alike ? decay[r] : exp2(own.delta * kLog2E * a[r][i]);
        h[r][i] = power * h[r][i] + own.input * b[r][i];
        y[r] += h[r][i] * c[r][i];
      }
      const View& s = p.state.view;
      const int64_t to = at(p.state, own.entry, own.head, own.i) + n * s.step;
      if (first + r * rows >= plan.end) continue;
      if constexpr (kN == 1)
        write(s.data, s.type, to, h[r][0]);
      else
        store_floats<kN>(static_cast<T*>(s.data) + to, h[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Row& own = row[r];
    float sum = lanes_sum(y[r], plan.lanes);
    if (lane != 0 || first + r * rows >= plan.end) continue;
    sum += number(p.d, 0, own.head, own.i) * number(p.x, own.batch, own.head, own.i);
    if (p.z.view.data != nullptr) sum *= gate_of(number(p.z, own.batch, own.head, own.i)).value;
    write(p.y.view.data, p.y.view.type, at(p.y, own.batch, own.head, own.i), own.entry < 0 ? 0.f : sum);
  }
}

// Do vectors of kN numbers begin at multiples of their size, in all rows?
bool whole(const Heads& t, int64_t beside, int64_t apart, int64_t most, int count) {
  const uint64_t strides = uint64_t(t.view.batch) | uint64_t(t.head) | uint64_t(apart);
  return beside == 1 && strides % uint64_t(most) == 0 && count % most == 0 &&
         reinterpret_cast<uintptr_t>(t.view.data) % kernels::kVectorBytes == 0;
}

}  // namespace

void state_update(const Problem& p, Stream stream) {
  const int64_t rows = p.batch * p.heads * p.dim;
  if (rows == 0) return;
  if (rows >> 31 != 0)  // what Dividers take
    throw std::runtime_error("selective_state_update: wanted batch x heads x dim below 2^31; got " +
                             std::to_string(rows) + "; call it for parts of the batch");
  const auto go = [&]<class T>() {
    constexpr int kN = kStateVector<T>;
    int lanes = 1;
    while (lanes < 32 && lanes * kN < p.states) lanes *= 2;
    const int64_t each = int64_t{kThreads / lanes} * kRows;
    const Plan plan{lanes,
                    rows,
                    Divider(p.dim),
                    Divider(p.heads),
                    whole(p.a, p.a.view.step, p.a.view.channel, kN, p.states),
                    whole(p.b, p.b.view.channel, 0, kN, p.states) && whole(p.c, p.c.view.channel, 0, kN, p.states)};
    kernels::gpu::launch(&step_states<T>, divide_up(rows, each), kThreads, stream, p, plan);
  };
  const View& s = p.state.view;
  const int64_t vector = kernels::kVectorBytes / kernels::size_of(s.type);
  if (!whole(p.state, s.step, s.channel, vector, p.states)) return go.template operator()<void>();
  kernels::with_dtype(s.type, go);
}

}  // namespace mamba::cuda
