// Layouts and launches of the convolution on a GPU.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/cuda/sm90_conv_rows.cuh"
#include "kernels/mamba/cuda/sm90_conv_tiles.cuh"

namespace mamba::cuda {
namespace {

using namespace conv;
using namespace conv::gpu;
using kernels::divide_up;
using kernels::with_dtype;

// Do all rows of a view begin at whole vectors, in a layout where `beside` elements lie beside each other and the
// others `apart` and `batches` apart?
bool whole(const View& v, int64_t contiguous, int64_t apart, int64_t batches, const Problem& p, DType type,
           int64_t count) {
  const uint64_t rows = (count > 1 ? uint64_t(apart) : 0) | (p.batch > 1 ? uint64_t(batches) : 0);
  return v.type == type && contiguous == 1 && rows % kVector == 0 &&
         reinterpret_cast<uintptr_t>(v.data) % kernels::kVectorBytes == 0;
}
bool whole_steps(const Problem& p, const View& v) {
  return p.length % kVector == 0 && whole(v, v.step, v.channel, v.batch, p, p.x.type, p.channels);
}
bool whole_channels(const Problem& p, const View& v) {
  return p.channels % kVector == 0 && whole(v, v.channel, v.step, v.batch, p, p.x.type, p.length);
}

// Where threads walk along channels: there they lie, or steps lie further apart.
bool along_channels(const Problem& p) { return p.length > 1 && p.channels > 1 && p.x.channel < p.x.step; }

// What sm80_conv_four.cuh takes, with whole vectors.
bool four(const Problem& p) {
  constexpr int64_t kFar = 1 << 27;
  return p.width == kFour && p.silu && p.sequence.data == nullptr && p.length < kFar && p.weight.channel < kFar &&
         p.weight.step < kFar;
}

template <class Fn>  // fn<kTaps, kPacked>()
void with_taps(const Problem& p, Fn fn) {
  const auto packed = [&]<int kTaps>() {
    p.sequence.data != nullptr ? fn.template operator()<kTaps, true>() : fn.template operator()<kTaps, false>();
  };
  p.width <= 4 ? packed.template operator()<4>() : packed.template operator()<8>();
}
template <class Fn>  // fn<T>(): void where vectors are not whole
void with_access(bool vectors, DType type, Fn fn) {
  vectors ? with_dtype(type, fn) : fn.template operator()<void>();
}

// Parts of the time that shapes alone decide, so that sums have one order on every GPU: up to `longest` steps, which
// read 3 of their neighbours' for width 4, fewer where a GPU would not be full otherwise.
ChannelsPlan channels_plan(const Problem& p, int64_t width, int64_t longest) {
  constexpr int64_t kEnough = 1 << 17, kLeast = 16;  // threads, steps
  const int64_t vectors = divide_up(p.channels, width);
  int64_t steps = longest;
  while (steps > kLeast && p.batch * vectors * divide_up(p.length, steps) < kEnough) steps /= 2;
  const int64_t parts = divide_up(p.length, steps);
  return {vectors, parts, steps, p.batch * parts * vectors};
}
ChannelsPlan forward_channels_plan(const Problem& p, int64_t width) { return channels_plan(p, width, 64); }
// The backward's parts are those of four warps together, and read their neighbours' on both sides.
ChannelsPlan backward_channels_plan(const Problem& p, int64_t width) {
  ChannelsPlan plan = channels_plan(p, width, 128);
  plan.parts = divide_up(plan.parts, kWarps);
  plan.items = divide_up(plan.vectors, 32);
  return plan;
}
PartsPlan rows_plan(const Problem& p) {
  const int64_t parts = divide_up(p.length, int64_t{kRowSteps});
  return {parts, kRowSteps / kTile, p.batch * p.channels * parts};
}
PartsPlan steps_plan(const Problem& p) {
  constexpr int64_t kEnough = 1 << 13;  // warps
  const int64_t rows = p.batch * p.channels, tiles = std::max<int64_t>(1, divide_up(p.length, kTile));
  const int64_t most = std::clamp<int64_t>(divide_up(kEnough, std::max<int64_t>(rows, 1)), 1, tiles);
  const int64_t each = divide_up(tiles, most), parts = divide_up(tiles, each);
  return {parts, each, rows * parts};
}

bool backward_vectors(const Backward& a, bool channels) {
  const auto fits = channels ? whole_channels : whole_steps;
  return fits(a.of, a.of.x) && fits(a.of, a.dy) && fits(a.of, a.dx);
}
int64_t backward_channels_each(bool vectors) { return vectors ? kBackwardChannels<float> : 1; }

// Do blocks have whole rows, or most of them?
bool by_rows(const Problem& p, bool vectors) {
  const int64_t steps = divide_up(p.length, int64_t{kRowSteps}) * kRowSteps;
  return vectors && four(p) && 4 * p.length > 3 * steps &&
         p.batch * p.channels * (steps / kRowSteps) < int64_t{1} << 31;
}
int64_t backward_parts(const Problem& p, bool vectors) {
  if (along_channels(p)) return backward_channels_plan(p, backward_channels_each(vectors)).parts;
  return (by_rows(p, vectors) ? rows_plan(p) : steps_plan(p)).parts;
}

// dweight and dbias: a thread adds up a number of one channel over all entries of the partials, in order.
__global__ void __launch_bounds__(kThreads) sum_partials(const Backward a, int64_t entries) {
  grid_dependency_wait();
  launch_dependents();
  const Problem& p = a.of;
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = n / p.channels, channel = n % p.channels;
  if (row > p.width || (row == p.width && a.dbias.data == nullptr)) return;
  double sum = 0;
#pragma unroll 16
  for (int64_t e = 0; e < entries; ++e) sum += double(a.partials[(e * (p.width + 1) + row) * p.channels + channel]);
  if (row < p.width)
    write(a.dweight, 0, channel, row, float(sum));
  else
    write(a.dbias, 0, channel, 0, float(sum));
}

// What Dividers take; half of that many elements would fill any GPU.
void check_rows(int64_t rows) {
  if (rows >> 31 != 0)
    throw std::runtime_error("causal_conv1d: expected batch x channels below 2^31; got " + std::to_string(rows) +
                             "; call it for parts of the batch");
}

constexpr int kMore = 2 * kRepeat;  // vectors of a lane, where a row has as many
void launch_steps(const Forward& a, bool vectors, Stream stream) {
  const Problem& p = a.of;
  const int64_t in_row = divide_up(p.length, kVector), rows = p.batch * p.channels;
  const bool warps = vectors && in_row >= kRepeat * 32;  // items are warps, else threads
  const bool is_four = warps && four(p), longer = is_four && in_row >= kMore * 32;
  const int64_t vectors_each = longer ? kMore * 32 : kRepeat * 32;
  const int64_t per_row = warps ? divide_up(in_row, vectors_each) : in_row, in_block = warps ? kThreads / 32 : kThreads;
  check_rows(rows);
  const int64_t most = std::max<int64_t>(1, ((int64_t{1} << 31) - 1) / per_row);  // rows of a launch
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t items = std::min(most, rows - first) * per_row;
    const StepsPlan plan{uint32_t(items), uint32_t(per_row), first, Divider(per_row), Divider(p.channels)};
    const int64_t blocks = divide_up(items, in_block);
    if (is_four) {
      with_dtype(p.x.type, [&]<typename T>() {
        kernels::gpu::launch_after(longer ? &forward_four_steps<T, kMore> : &forward_four_steps<T, kRepeat>, blocks,
                                   kThreads, stream, a, plan);
      });
      continue;
    }
    with_access(vectors, p.x.type, [&]<typename T>() {
      with_taps(p, [&]<int kTaps, bool kPacked>() {
        auto kernel = &forward_steps<T, kTaps, kPacked>;
        if constexpr (!std::is_void_v<T>) {
          if (warps) kernel = &forward_long_steps<T, kTaps, kPacked>;
        }
        kernels::gpu::launch(kernel, blocks, kThreads, stream, a, plan);
      });
    });
  }
}

}  // namespace

int64_t conv_partials(const Problem& p) {  // the most of both ways to go
  return p.batch * std::max(backward_parts(p, true), backward_parts(p, false));
}

void conv_forward(const Forward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.batch * p.channels * p.length == 0) return;
  if (!along_channels(p)) return launch_steps(a, whole_steps(p, p.x) && whole_steps(p, a.y), stream);
  const bool vectors = whole_channels(p, p.x) && whole_channels(p, a.y);
  const ChannelsPlan plan = forward_channels_plan(p, vectors ? kForwardChannels<float> : 1);
  const int64_t blocks = divide_up(plan.items, kThreads);
  if (vectors && four(p)) {
    constexpr int64_t kMany = 1 << 13;  // blocks; of fewer, each thread's filters count
    const int64_t pieces = divide_up(p.channels, int64_t{kThreads} * kForwardChannels<float>);
    const int64_t parts = divide_up(p.length, int64_t{kTileSteps}), tiles = p.batch * parts * pieces;
    return with_dtype(p.x.type, [&]<typename T>() {
      if (tiles >= kMany && tiles >> 31 == 0)
        kernels::gpu::launch_after(&forward_four_tiles<T>, tiles, kThreads, stream, a, int(pieces), int(parts));
      else
        kernels::gpu::launch_after(&forward_four_channels<T>, blocks, kThreads, stream, a, plan);
    });
  }
  with_access(vectors, p.x.type, [&]<typename T>() {
    with_taps(p, [&]<int kTaps, bool kPacked>() {
      kernels::gpu::launch(&forward_channels<T, kTaps, kPacked>, blocks, kThreads, stream, a, plan);
    });
  });
}

void conv_backward(const Backward& a, Stream stream) {
  const Problem& p = a.of;
  if (p.channels == 0) return;
  const bool channels = along_channels(p), vectors = backward_vectors(a, channels);
  int64_t entries = 0;
  if (p.batch * p.length > 0) {
    entries = p.batch * backward_parts(p, vectors);
    if (!channels) check_rows(p.batch * p.channels);
    const ChannelsPlan plan = backward_channels_plan(p, backward_channels_each(vectors));
    const PartsPlan parts = by_rows(p, vectors) ? rows_plan(p) : steps_plan(p);
    const int64_t blocks = channels ? entries * plan.items : divide_up(parts.items, kThreads / 32);
    if (vectors && four(p)) {
      with_dtype(p.x.type, [&]<typename T>() {
        if (channels)
          kernels::gpu::launch_after(&backward_four_channels<T>, blocks, kThreads, stream, a, plan);
        else if (by_rows(p, vectors))
          kernels::gpu::launch_after(&backward_four_rows<T>, parts.items, kRowThreads, stream, a, parts);
        else
          kernels::gpu::launch_after(&backward_four_steps<T>, blocks, kThreads, stream, a, parts);
      });
    } else {
      with_access(vectors, p.x.type, [&]<typename T>() {
        with_taps(p, [&]<int kTaps, bool kPacked>() {
          if (channels)
            kernels::gpu::launch(&backward_channels<T, kTaps, kPacked>, blocks, kThreads, stream, a, plan);
          else
            kernels::gpu::launch(&backward_steps<T, kTaps, kPacked>, blocks, kThreads, stream, a, parts);
        });
      });
    }
  }
  const int64_t sums = (p.width + 1) * p.channels;
  kernels::gpu::launch_after(&sum_partials, divide_up(sums, kThreads), kThreads, stream, a, entries);
}

}  // namespace mamba::cuda
