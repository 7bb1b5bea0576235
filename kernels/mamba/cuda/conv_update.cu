// The convolution of a few new tokens on a GPU: a thread has one channel of one batch entry, or some of the usual kind.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/conv_filter.cuh"
#include "kernels/mamba/cuda/mamba.h"

namespace mamba::cuda {
namespace {

using namespace conv;
using namespace conv::gpu;
using kernels::divide_up;
using kernels::Divider;

__device__ __forceinline__ int64_t modulo(int64_t a, int64_t n) {
  const int64_t rest = a % n;
  return rest < 0 ? rest + n : rest;
}

template <int kTaps>
__global__ void __launch_bounds__(kThreads, 8) update(const Update a) {
  const Problem& p = a.of;
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= p.batch * p.channels) return;
  const int64_t batch = n / p.channels, channel = n % p.channels;
  const int64_t row = a.indices != nullptr ? a.indices[batch] : batch;
  if (row < 0) {
    for (int64_t t = 0; t < p.length; ++t) write(a.y, batch, channel, t, 0.f);
    return;
  }
  const bool ring = a.lengths != nullptr;
  const int64_t held = ring ? a.lengths[batch] : a.columns;
  const auto column_of = [&](int64_t t) { return ring ? modulo(held + t, a.columns) : held + t; };
  const Filter<kTaps> filter = load_filter<kTaps>(p, channel);
  float past[kTaps];  // [0]: the newest
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) past[j] = j + 1 < p.width ? read(a.state, row, channel, column_of(-1 - j)) : 0.f;
  for (int64_t t = 0; t < p.length; ++t) {
#pragma unroll
    for (int j = kTaps - 1; j > 0; --j) past[j] = past[j - 1];
    past[0] = read(p.x, batch, channel, t);
    float y = filter.bias;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (j < p.width) y += filter.w[j] * past[j];
    }
    if (p.silu) y *= sigmoid(y);
    write(a.y, batch, channel, t, y);
  }
  if (ring) {
    for (int64_t t = p.length > a.columns ? p.length - a.columns : 0; t < p.length; ++t)
      write(a.state, row, channel, column_of(t), read(p.x, batch, channel, t));
    return;
  }
  // The columns move up by x's steps, first to last, and x fills what is free.
  const int64_t kept = a.columns > p.length ? a.columns - p.length : 0;
#pragma unroll 4
  for (int64_t c = 0; c < kept; ++c) write(a.state, row, channel, c, read(a.state, row, channel, c + p.length));
  for (int64_t c = kept; c < a.columns; ++c)
    write(a.state, row, channel, c, read(p.x, batch, channel, c + p.length - a.columns));
}

// One token of four taps where all has one type and channels lie beside each other, in the state kColumns elements
// each: a thread has kBeside channels, and its loads are under way together.
constexpr int kFour = 4, kBeside = 4;

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) update_one(const Update a, uint32_t items, Divider by_vectors) {
  const Problem& p = a.of;
  const uint32_t n = blockIdx.x * kThreads + threadIdx.x;
  if (n >= items) return;
  const uint32_t batch = by_vectors(n), channel = (n - batch * uint32_t(p.channels / kBeside)) * kBeside;
  const int64_t row = a.indices != nullptr ? a.indices[batch] : int64_t{batch};
  T* const to = static_cast<T*>(a.y.data) + batch * a.y.batch + channel;
  float y[kBeside] = {};
  if (row >= 0) {
    T* const state = static_cast<T*>(a.state.data) + row * a.state.batch + channel * kColumns;
    const T* const weight = static_cast<const T*>(p.weight.data) + channel * kFour;
    Loaded<T, kBeside> held[kColumns], weights[kBeside], bias = {};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) held[i] = load_few<kBeside>(state + i * kBeside);
    const auto now = load_few<kBeside>(static_cast<const T*>(p.x.data) + batch * p.x.batch + channel);
#pragma unroll
    for (int c = 0; c < kBeside; ++c) weights[c] = load_few<kFour>(weight + c * kFour);
    if (p.bias.data != nullptr) bias = load_few<kBeside>(static_cast<const T*>(p.bias.data) + channel);
    float x[kBeside], columns[kColumns][kBeside];
    unpack(now, x), unpack(bias, y);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) unpack(held[i], columns[i]);
    const auto at = [&](int c, int column) -> float& {
      return columns[(c * kColumns + column) / kBeside][(c * kColumns + column) % kBeside];
    };
#pragma unroll
    for (int c = 0; c < kBeside; ++c) {
      float w[kFour];
      unpack(weights[c], w);
      y[c] += w[kFour - 1] * x[c];
#pragma unroll
      for (int j = 1; j < kFour; ++j) y[c] += w[kFour - 1 - j] * at(c, kColumns - j);
      if (p.silu) y[c] *= sigmoid(y[c]);
#pragma unroll
      for (int i = 0; i + 1 < kColumns; ++i) at(c, i) = at(c, i + 1);
      at(c, kColumns - 1) = x[c];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) store_few<kBeside>(state + i * kBeside, columns[i]);
  }
  store_few<kBeside>(to, y);
}

bool takes_one(const Update& a) {
  const Problem& p = a.of;
  const auto fits = [&](const View& v, int64_t elements) {  // of a channel
    return v.type == p.x.type && v.channel == elements && (elements == 1 || v.step == 1) && v.batch % kBeside == 0 &&
           reinterpret_cast<uintptr_t>(v.data) % kernels::kVectorBytes == 0;
  };
  return p.length == 1 && p.width == kFour && a.lengths == nullptr && (a.columns == 3 || a.columns == 4) &&
         p.channels % kBeside == 0 && (p.batch * p.channels) >> 31 == 0 && fits(p.x, 1) && fits(a.y, 1) &&
         fits(p.weight, kFour) && (p.bias.data == nullptr || fits(p.bias, 1)) && fits(a.state, a.columns);
}

}  // namespace

void conv_update(const Update& a, Stream stream) {
  const int64_t items = a.of.batch * a.of.channels;
  if (items == 0) return;
  if (takes_one(a)) {
    const int64_t vectors = items / kBeside;
    return kernels::with_dtype(a.of.x.type, [&]<typename T>() {
      const auto kernel = a.columns == 3 ? &update_one<T, 3> : &update_one<T, 4>;
      kernels::gpu::launch(kernel, divide_up(vectors, kThreads), kThreads, stream, a, uint32_t(vectors),
                           Divider(a.of.channels / kBeside));
    });
  }
  const auto kernel = a.of.width <= 4 ? &update<4> : &update<8>;
  kernels::gpu::launch(kernel, divide_up(items, kThreads), kThreads, stream, a);
}

}  // namespace mamba::cuda
