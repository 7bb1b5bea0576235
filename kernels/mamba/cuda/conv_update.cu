// The convolution of a few new tokens on a GPU: a thread has one channel of one batch entry.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/conv.cuh"
#include "kernels/mamba/cuda/mamba_cuda.h"

namespace mamba::cuda {
namespace {

using namespace conv;
using namespace conv::gpu;
using kernels::divide_up;

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

}  // namespace

void conv_update(const Update& a, Stream stream) {
  const int64_t items = a.of.batch * a.of.channels;
  if (items == 0) return;
  const auto kernel = a.of.width <= 4 ? &update<4> : &update<8>;
  kernels::gpu::launch(kernel, divide_up(items, kThreads), kThreads, stream, a);
}

}  // namespace mamba::cuda
