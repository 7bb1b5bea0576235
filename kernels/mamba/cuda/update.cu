// One step of generation of the scans on a GPU: it reads and writes the state once, and little else.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/cuda/view.cuh"
#include "kernels/mamba/update.h"

namespace mamba::cuda {
namespace {

using namespace mamba::gpu;
using kernels::divide_up;
using kernels::Divider;
using update::Heads;
using update::Problem;

constexpr int kThreads = 128, kWarps = kThreads / 32;

struct Plan {
  int lanes;                  // of a row, a power of two
  uint32_t items, per_head;   // warps, or rows
  Divider by_head, by_heads;  // item to [batch, heads], or [groups of entries, heads], and that to the first of them
};

__device__ __forceinline__ int64_t at(const Heads& t, int64_t batch, int64_t head, int64_t i) {
  return batch * t.view.batch + head * t.head + i * t.view.channel;
}

// Where a row is: of [batch, heads, dim].
struct Position {
  uint32_t batch, head, i;
  int32_t entry;  // the state's row, negative: none
};
// Of the first of `entries` rows beside each other in the batch; further_place is another of them.
__device__ __forceinline__ Position place_of(const Problem& p, const Plan& plan, uint32_t item, uint32_t each,
                                             uint32_t entries) {
  const uint32_t of_head = plan.by_head(item), group = plan.by_heads(of_head), batch = group * entries;
  const int32_t entry = p.indices != nullptr ? p.indices[batch] : int32_t(batch);
  return {batch, of_head - group * uint32_t(p.heads), (item - of_head * plan.per_head) * each, entry};
}
__device__ __forceinline__ Position further_place(const Problem& p, Position at, uint32_t entries) {
  at.batch += entries;
  at.entry = at.batch >= uint32_t(p.batch) ? -1 : p.indices != nullptr ? p.indices[at.batch] : int32_t(at.batch);
  return at;
}

// What a row has beside its state, as it lies: their loads are under way together.
__device__ __forceinline__ uint32_t bits_of(const Heads& t, int64_t batch, const Position& o) {
  return t.view.data != nullptr ? read_bits(t.view.data, t.view.type, at(t, batch, o.head, o.i)) : 0;
}
struct Weights {  // the same for all of the batch
  uint32_t a, d, bias;
  __device__ __forceinline__ Weights(const Problem& p, const Position& o)
      : a(bits_of(p.a, 0, o)), d(bits_of(p.d, 0, o)), bias(bits_of(p.dt_bias, 0, o)) {}
};
struct Inputs {
  uint32_t x, dt, z;

  __device__ __forceinline__ void load(const Problem& p, const Position& o) {
    x = bits_of(p.x, o.batch, o), dt = bits_of(p.dt, o.batch, o), z = bits_of(p.z, o.batch, o);
  }
  __device__ __forceinline__ float delta(const Problem& p, const Weights& w) const {
    const float raw = value_of(dt, p.dt.view.type) + value_of(w.bias, p.dt_bias.view.type);
    return p.softplus ? softplus(raw) : raw;
  }
  __device__ __forceinline__ void finish(const Problem& p, const Weights& w, const Position& o, float y) const {
    y += value_of(w.d, p.d.view.type) * value_of(x, p.x.view.type);
    if (p.z.view.data != nullptr) y *= gate_of(value_of(z, p.z.view.type)).value;
    store_any(p.y.view.data, p.y.view.type, at(p.y, o.batch, o.head, o.i), o.entry < 0 ? 0.f : y);
  }
};

template <int kN>  // of B or C. Whole vectors of them, which ask for the type first, were slower
__device__ __forceinline__ void coefficients(const Heads& t, int64_t batch, int64_t group, int n,
                                             uint32_t (&bits)[kN]) {
  const int64_t from = at(t, batch, group, n);
#pragma unroll
  for (int i = 0; i < kN; ++i) bits[i] = read_bits(t.view.data, t.view.type, from + i * t.view.channel);
}

// Rates of their own, as many as the state's elements, are read once for two entries of the batch.
template <bool kAlike>
constexpr int kEntries = kAlike ? 1 : 2;
// Rows of a lane whose loads are under way together.
template <class T, bool kAlike>
constexpr int kUnderWay = kAlike ? 4 : sizeof(T) / 2;
// Blocks of a multiprocessor, which registers are shared out among.
template <class T, bool kAlike>
constexpr int kBlocks = kAlike ? 6 : 4 + sizeof(T) / 4;

// A warp has 32 rows of a head. Each lane knows what one of them has beside its state; the state is gone through 16
// bytes a lane, `lanes` to a row. B and C are the rows' own, and stay. kAlike: A is the same along a row; else it lies
// beside the state's elements in float32.
template <class T, bool kAlike>
__global__ void __launch_bounds__(kThreads, kBlocks<T, kAlike>) step_rows(const Problem p, const Plan plan) {
  grid_dependency_wait();
  launch_dependents();
  constexpr int kN = kPerVector<T>, kE = kEntries<kAlike>, kAtOnce = kUnderWay<T, kAlike>;
  const int lane = int(threadIdx.x) % 32, lanes = plan.lanes, at_once = 32 / lanes;
  const int row = lane / lanes, beside = lane % lanes;  // its row of those at once, its vector of the row's
  const uint32_t item = blockIdx.x * kWarps + threadIdx.x / 32;
  if (item >= plan.items) return;
  Position own[kE];
  own[0] = place_of(p, plan, item, 32, kE);
  const uint32_t first = own[0].i, left = uint32_t(p.dim) - first;
  const int rows = left < 32 ? int(left) : 32;
  own[0].i += lane < rows ? lane : 0;
#pragma unroll
  for (int e = 1; e < kE; ++e) own[e] = further_place(p, own[0], e);
  const uint32_t head = own[0].head;
  const Weights weights(p, own[0]);
  Inputs inputs[kE] = {};
#pragma unroll
  for (int e = 0; e < kE; ++e) {
    if (own[e].batch < uint32_t(p.batch)) inputs[e].load(p, own[e]);
  }
  float y[kE] = {};
  const View& s = p.state.view;
  const int apart = at_once * int(s.channel), rates_apart = at_once * int(p.a.view.channel);
  const uint32_t group = head / uint32_t(p.heads / p.groups);
  for (int from = 0; from < p.states; from += lanes * kN) {
    const int n = from + beside * kN;
    const int end = n < p.states ? rows : 0;  // of this lane's
    T* state[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e)
      state[e] = static_cast<T*>(s.data) + at(p.state, own[e].entry < 0 ? 0 : own[e].entry, head, first + row) + n;
    const float* rates = static_cast<const float*>(p.a.view.data) + at(p.a, 0, head, first + row) + n;
    Pack<T, kN> held[kE][kAtOnce] = {};
    float a[kAlike ? 1 : kAtOnce][kN] = {};
    const auto fetch = [&](int k) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if ((k + u) * at_once + row >= end) continue;
#pragma unroll
        for (int e = 0; e < kE; ++e) {
          if (own[e].entry >= 0) held[e][u] = load<kN>(state[e] + u * apart);
        }
        if constexpr (!kAlike) load_floats<kN>(rates + u * rates_apart, a[u]);
      }
    };
    fetch(0);
    uint32_t b_bits[kE][kN] = {}, c_bits[kE][kN] = {};
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      if (end == 0 || own[e].entry < 0) continue;
      coefficients(p.b, own[e].batch, group, n, b_bits[e]);
      coefficients(p.c, own[e].batch, group, n, c_bits[e]);
    }
    float b[kE][kN], c[kE][kN], input[kE], power[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) {
#pragma unroll
      for (int i = 0; i < kN; ++i)
        b[e][i] = value_of(b_bits[e][i], p.b.view.type), c[e][i] = value_of(c_bits[e][i], p.c.view.type);
      const float delta = inputs[e].delta(p, weights), rate = delta * kLog2E;
      input[e] = delta * value_of(inputs[e].x, p.x.view.type);
      power[e] = kAlike ? exp2_approx(rate * value_of(weights.a, p.a.view.type)) : rate;
    }
    for (int k = 0; k < lanes; k += kAtOnce) {
      float sums[kE][kAtOnce];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int of = (k + u) * at_once + row;
          const float in = __shfl_sync(kAllLanes, input[e], of % 32), by = __shfl_sync(kAllLanes, power[e], of % 32);
          float h[kN];
          unpack(held[e][u], h);
          sums[e][u] = 0.f;
#pragma unroll
          for (int i = 0; i < kN; ++i) {
            h[i] = (kAlike ? by : exp2_approx(by * a[kAlike ? 0 : u][i])) * h[i] + in * b[e][i];
            sums[e][u] += h[i] * c[e][i];
          }
          if (of < end && own[e].entry >= 0) store_floats<kN>(state[e] + u * apart, h);
        }
        state[e] += kAtOnce * apart;
      }
      rates += kAtOnce * rates_apart;
      fetch(k + kAtOnce);
      for (int o = lanes / 2; o > 0; o /= 2) {
#pragma unroll
        for (int e = 0; e < kE; ++e) {
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) sums[e][u] += __shfl_xor_sync(kAllLanes, sums[e][u], o);
        }
      }
#pragma unroll
      for (int e = 0; e < kE; ++e) {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {  // to the lane that knows the rest of the row
          const float sum = __shfl_sync(kAllLanes, sums[e][u], lane % at_once * lanes);
          if (lane / at_once == k + u) y[e] += sum;
        }
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kE; ++e) {
    if (lane < rows && own[e].batch < uint32_t(p.batch)) inputs[e].finish(p, weights, own[e], y[e]);
  }
}

// Of any types and strides: some lanes have a row, each one number at a time.
__global__ void __launch_bounds__(kThreads) step_any(const Problem p, const Plan plan) {
  const int lane = int(threadIdx.x) % plan.lanes;
  const uint32_t wanted = blockIdx.x * uint32_t(kThreads / plan.lanes) + threadIdx.x / plan.lanes;
  const Position own =
      place_of(p, plan, wanted < plan.items ? wanted : plan.items - 1, 1, 1);  // all are in the shuffles
  const Weights weights(p, own);
  Inputs inputs;
  inputs.load(p, own);
  const float delta = inputs.delta(p, weights), input = delta * value_of(inputs.x, p.x.view.type);
  const uint32_t group = own.head / uint32_t(p.heads / p.groups);
  const View &s = p.state.view, &a = p.a.view;
  float y = 0.f;
  for (int n = lane; n < p.states && own.entry >= 0 && wanted < plan.items; n += plan.lanes) {
    const int64_t to = at(p.state, own.entry, own.head, own.i) + n * s.step;
    const float rate = read(a.data, a.type, at(p.a, 0, own.head, own.i) + n * a.step);
    const float b = read(p.b.view.data, p.b.view.type, at(p.b, own.batch, group, n));
    const float h = exp2_approx(delta * kLog2E * rate) * read(s.data, s.type, to) + input * b;
    y += h * read(p.c.view.data, p.c.view.type, at(p.c, own.batch, group, n));
    store_any(s.data, s.type, to, h);
  }
  y = lanes_sum(y, plan.lanes);
  if (lane == 0 && wanted < plan.items) inputs.finish(p, weights, own, y);
}

// Do vectors of `most` elements begin at multiples of their size, in all rows of states, and rows not far apart?
bool whole(const Heads& t, int64_t most, int count) {
  const uint64_t strides = uint64_t(t.view.batch) | uint64_t(t.head) | uint64_t(t.view.channel);
  return t.view.step == 1 && t.view.channel < (1 << 24) && strides % uint64_t(most) == 0 && count % most == 0 &&
         reinterpret_cast<uintptr_t>(t.view.data) % kernels::kVectorBytes == 0;
}

}  // namespace

void state_update(const Problem& p, Stream stream) {
  const int64_t rows = p.batch * p.heads * p.dim;
  if (rows == 0) return;
  if (rows >> 31 != 0)  // what Dividers take
    throw std::runtime_error("selective_state_update: expected batch x heads x dim below 2^31; got " +
                             std::to_string(rows) + "; call it for parts of the batch");
  const auto plan = [&](int64_t each, int64_t vector, int64_t entries) {
    int lanes = 1;
    while (lanes < 32 && lanes * vector < p.states) lanes *= 2;
    const int64_t per_head = divide_up(p.dim, each);
    return Plan{lanes, uint32_t(divide_up(p.batch, entries) * p.heads * per_head), uint32_t(per_head),
                Divider(per_head), Divider(p.heads)};
  };
  const DType type = p.state.view.type;
  const bool alike = p.a.view.step == 0, rates = p.a.view.type == DType::kFloat32 && whole(p.a, 4, p.states);
  if (!whole(p.state, kernels::kVectorBytes / kernels::size_of(type), p.states) || !(alike || rates)) {
    const Plan any = plan(1, 1, 1);
    return kernels::gpu::launch(&step_any, divide_up(any.items, kThreads / any.lanes), kThreads, stream, p, any);
  }
  kernels::with_dtype(type, [&]<class T>() {
    const Plan by_rows = plan(32, kPerVector<T>, alike ? kEntries<true> : kEntries<false>);
    const auto kernel = alike ? &step_rows<T, true> : &step_rows<T, false>;
    kernels::gpu::launch_after(kernel, divide_up(by_rows.items, kWarps), kThreads, stream, p, by_rows);
  });
}

}  // namespace mamba::cuda
