// GroupNorm on a GPU, one load and one store of every element: a group is held in the registers of a part of a warp, a
// block or a cluster of blocks (held_rows.cuh).
#include "kernels/common/gpu/held_rows.cuh"
#include "kernels/common/gpu/held_rows.h"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/norm/group_norm.h"

namespace norms::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kForward = 8, kBackward = 4;  // vectors of a thread

// Where the elements of a thread lie. Vectors of a group are counted along memory: channel by channel, or position by
// position. per_run: vectors of one channel, or of one position.
template <class T, int kEach, Hold kHold, bool kLast>
struct GroupPlace : HeldPlace<T, kEach, kHold> {
  using Held = HeldPlace<T, kEach, kHold>;
  static constexpr int N = Held::N;
  const GroupShape& s;
  Divider per_run;
  int64_t sample, group;

  __device__ GroupPlace(const GroupShape& s, int lanes, const Divider& per_run, const Divider& groups)
      : Held(s.rows(), s.channels * s.positions, lanes), s(s), per_run(per_run) {
    sample = groups(uint32_t(this->row));
    group = this->row - sample * s.groups;
  }
  __device__ __forceinline__ uint32_t run(int k) const { return per_run(uint32_t(this->col(k) / N)); }
  __device__ __forceinline__ int64_t within(int k) const {  // the run
    return this->col(k) - int64_t{run(k)} * (kLast ? s.channels : s.positions);
  }
  __device__ __forceinline__ int64_t offset(int k) const {
    if constexpr (kLast)
      return (sample * s.positions + run(k)) * s.all_channels() + group * s.channels + within(k);
    else
      return this->row * this->cols + this->col(k);
  }
  __device__ __forceinline__ int64_t channel(int k) const {  // of the vector's first element
    return group * s.channels + (kLast ? within(k) : run(k));
  }
};

template <class T, class Place, int kEach>
__device__ __forceinline__ void fetch_group(Pack<T, kPerVector<T>> (&v)[kEach], const void* data, const Place& p) {
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    v[k] = p.has(k) ? load_kept<kPerVector<T>>(static_cast<const T*>(data) + p.offset(k)) : Pack<T, kPerVector<T>>{};
}

// weight or bias of the elements of a thread, read before the blocks wait for each other. Channel by channel a vector
// has one channel; position by position all vectors of a thread have the same channels, since threads are a multiple of
// a position's vectors apart.
template <class T, int kEach, bool kLast>
struct OfChannels {
  static constexpr int N = kPerVector<T>;
  float v[kLast ? N : kEach];

  template <class Place>
  __device__ OfChannels(const void* data, DType dtype, float otherwise, const Place& p) {
#pragma unroll
    for (float& f : v) f = otherwise;
    if (data == nullptr) return;
    if constexpr (kLast) {
      if (p.has(0)) load_any<N>(data, dtype, p.channel(0), reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0, v);
    } else {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        float one[1] = {otherwise};
        if (p.has(k)) load_any<1>(data, dtype, p.channel(k), false, one);
        v[k] = one[0];
      }
    }
  }
  __device__ __forceinline__ float of(int k, int i) const { return v[kLast ? i : k]; }
};

template <class T, int kEach, Hold kHold, bool kLast>
__global__ void __launch_bounds__(held_threads(kHold), held_blocks(kHold))
    group_forward(const GroupNormForward a, int lanes, const Divider per_run, const Divider groups) {
  constexpr int N = kPerVector<T>;
  __shared__ typename RowTogether<kHold>::Memory memory;
  const GroupPlace<T, kEach, kHold, kLast> p(a.shape, lanes, per_run, groups);
  RowTogether<kHold> row(memory, lanes);
  wait_for_launch_before();
  Pack<T, N> x[kEach];
  fetch_group<T>(x, a.x, p);
  typename RowTogether<kHold>::Moments mine{};
  float total = 0.f;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    float f[N];
    unpack(x[k], f);
#pragma unroll
    for (int i = 0; i < N; ++i) total += f[i];
    mine.count += p.has(k) ? float(N) : 0.f;
  }
  mine.count = row.warp_part(mine.count);
  forget_row(x);
  total = row.warp_part(total);
  mine.mean = mine.count > 0.f ? total / mine.count : 0.f;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (!p.has(k)) continue;
    float f[N];
    unpack(x[k], f);
#pragma unroll
    for (int i = 0; i < N; ++i) mine.distances += (f[i] - mine.mean) * (f[i] - mine.mean);
  }
  forget_row(x);
  mine.distances = row.warp_part(mine.distances);
  const OfChannels<T, kEach, kLast> w(a.weight, a.shape.weight_dtype, 1.f, p), b(a.bias, a.shape.weight_dtype, 0.f, p);
  const auto all = row.moments(mine);
  const float mean = all.mean, rstd = rsqrtf(all.distances / float(p.cols) + a.eps);
  if (a.mean != nullptr && p.has_row && p.lane == 0 && p.first == 0) a.mean[p.row] = mean, a.rstd[p.row] = rstd;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (!p.has(k)) continue;
    float f[N];
    unpack(x[k], f);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = (f[i] - mean) * (rstd * w.of(k, i)) + b.of(k, i);
    store_floats<N>(static_cast<T*>(a.y) + p.offset(k), f);
  }
}

// The sums of dy and dy n over what a block has of each channel become its row of `partial`.
struct ChannelSums {
  const GroupNormBackward& a;
  float *of_n, *of_dy;  // [channels of the group]

  __device__ ChannelSums(const GroupNormBackward& a, int64_t row, int64_t group) : a(a) {
    of_n = a.partial + row * 2 * a.shape.all_channels() + group * a.shape.channels;
    of_dy = of_n + a.shape.all_channels();
  }
  // table: {dy n, dy} of each vector of the block, of which `begin` is the first in its group. A channel's vectors lie
  // side by side.
  __device__ __forceinline__ void side_by_side(const float2* table, int64_t begin, int64_t count, int64_t per_channel) {
    const int64_t channels = a.shape.channels;
    const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
    const bool by_warp = per_channel >= 32;
    for (int64_t c = by_warp ? threadIdx.x / 32 : threadIdx.x; c < channels; c += by_warp ? warps : int(blockDim.x)) {
      const int64_t from = max(c * per_channel - begin, int64_t{0}), to = min((c + 1) * per_channel - begin, count);
      float2 sum = {0.f, 0.f};
      for (int64_t v = from + (by_warp ? lane : 0); v < to; v += by_warp ? 32 : 1)
        sum.x += table[v].x, sum.y += table[v].y;
      if (by_warp) sum = {warp_sum(sum.x), warp_sum(sum.y)};
      if (!by_warp || lane == 0) of_n[c] = sum.x, of_dy[c] = sum.y;
    }
  }
};

template <class T, int kEach, Hold kHold, bool kLast>
__global__ void __launch_bounds__(held_threads(kHold), held_blocks(kHold))
    group_backward(const GroupNormBackward a, int lanes, const Divider per_run, const Divider groups, int parts) {
  constexpr int N = kPerVector<T>;
  extern __shared__ float2 table[];
  __shared__ typename RowTogether<kHold>::Memory memory;
  const GroupPlace<T, kEach, kHold, kLast> p(a.shape, lanes, per_run, groups);
  RowTogether<kHold> row(memory, lanes);
  wait_for_launch_before();
  next_launch_may_begin();
  Pack<T, N> x[kEach], dy[kEach];
  fetch_group<T>(x, a.x, p);
  fetch_group<T>(dy, a.dy, p);
  const OfChannels<T, kEach, kLast> w(a.weight, a.shape.weight_dtype, 1.f, p);
  const float mean = p.has_row ? a.mean[p.row] : 0.f, rstd = p.has_row ? a.rstd[p.row] : 0.f;
  float sums[2] = {0.f, 0.f};  // of g, of g n
  float of_n[kLast ? N : 1] = {}, of_dy[kLast ? N : 1] = {};
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    float f[N], g[N];
    unpack(x[k], f);
    unpack(dy[k], g);
    if constexpr (kLast) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (f[i] - mean) * rstd;
        of_n[i] += g[i] * n, of_dy[i] += g[i];
        const float scaled = g[i] * w.of(k, i);
        sums[0] += scaled, sums[1] += scaled * n;
      }
    } else {
      float2 both = {0.f, 0.f};
#pragma unroll
      for (int i = 0; i < N; ++i) both.x += g[i] * (f[i] - mean), both.y += g[i];
      both.x *= rstd;
      sums[0] += both.y * w.of(k, 0), sums[1] += both.x * w.of(k, 0);
      table[k * int(blockDim.x) + threadIdx.x] = both;
    }
  }
  row.sum(sums);
  const float share = 1.f / float(p.cols), level = sums[0] * share, slope = sums[1] * share;
  forget_row(x);
  forget_row(dy);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (!p.has(k)) continue;
    float f[N], g[N];
    unpack(x[k], f);
    unpack(dy[k], g);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = (g[i] * w.of(k, i) - level - (f[i] - mean) * rstd * slope) * rstd;
    store_floats<N>(static_cast<T*>(a.dx) + p.offset(k), f);
  }
  // A block's row of partial sums: its sample, and its rank in the cluster.
  const int64_t begin = p.first / N;
  ChannelSums channels(a, p.sample * parts + begin / (int64_t{kEach} * lanes), p.group);
  if constexpr (kLast) {
    // Threads whose numbers differ by a multiple of the vectors of a position have the same channels.
    const int vectors = int(a.shape.channels / N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      for (int o = 16; o >= vectors; o /= 2) {
        of_n[i] += __shfl_xor_sync(kAllLanes, of_n[i], o);
        of_dy[i] += __shfl_xor_sync(kAllLanes, of_dy[i], o);
      }
      const int lane = int(threadIdx.x) % 32;
      if (lane < vectors) table[(int(threadIdx.x) / 32 * vectors + lane) * N + i] = {of_n[i], of_dy[i]};
    }
    __syncthreads();
    for (int c = int(threadIdx.x); c < int(a.shape.channels); c += int(blockDim.x)) {
      float2 sum = {0.f, 0.f};
      for (int warp = 0; warp < int(blockDim.x) / 32; ++warp) {
        const float2 of = table[warp * int(a.shape.channels) + c];
        sum.x += of.x, sum.y += of.y;
      }
      channels.of_n[c] = sum.x, channels.of_dy[c] = sum.y;
    }
  } else {
    channels.side_by_side(table, begin, int64_t{kEach} * lanes, a.shape.positions / N);
  }
}

// dweight and dbias: 32 channels a block; strip y takes rows y, y + 32, ...; strips are added in order.
template <class W>
__global__ void __launch_bounds__(1024)
    group_sums(const float* partial, int64_t rows, int64_t channels, W* dweight, W* dbias) {
  __shared__ float strips[2][32][33];
  const int x = int(threadIdx.x) % 32, y = int(threadIdx.x) / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + x, out = int64_t{blockIdx.x} * 32 + y;
  wait_for_launch_before();
  float of_n = 0.f, of_dy = 0.f;
  if (c < channels) {
#pragma unroll 4
    for (int64_t r = y; r < rows; r += 32) {
      of_n += partial[2 * r * channels + c];
      of_dy += partial[(2 * r + 1) * channels + c];
    }
  }
  strips[0][y][x] = of_n, strips[1][y][x] = of_dy;
  __syncthreads();
  of_n = warp_sum(strips[0][x][y]), of_dy = warp_sum(strips[1][x][y]);  // transposed: warp y has channel y
  if (x == 0 && out < channels) dweight[out] = from_float<W>(of_n), dbias[out] = from_float<W>(of_dy);
}

HeldPlan plan_group(const GroupShape& s, bool aligned, int each) {
  const int64_t per_vector = kVectorBytes / size_of(s.dtype), run = s.channels_last ? s.channels : s.positions;
  const int64_t vectors = run / per_vector, cols = s.channels * s.positions;
  // Vectors that end with their channel or position; position by position, a power of two of them that divides a warp.
  if (!aligned || run % per_vector != 0 || cols >= int64_t{1} << 31) return {};
  if (s.channels_last && (vectors > 32 || (vectors & (vectors - 1)) != 0)) return {};
  HeldPlan p =
      plan_held({.rows = s.rows(), .cols = cols, .element_size = size_of(s.dtype), .aligned = true},
                {.most_cluster = most_cluster(), .vectors = each, .long_vectors = each, .cluster_vectors = each});
  if (p.vectors == 0) return {};
  if (p.groups > 1 || p.vectors < each) {  // small: a block of a warp or some
    const int64_t lanes = divide_up(divide_up(cols, per_vector * each), 32) * 32;
    p = {.vectors = each, .lanes = int(lanes), .groups = 1, .cluster = 1, .rows_per_launch = INT32_MAX};
  }
  return s.rows() > p.rows_per_launch ? HeldPlan{} : p;
}

template <class Fn>  // fn<T, kHold, kLast>()
void with_plan(const GroupShape& s, const HeldPlan& p, const Fn& fn) {
  with_dtype(s.dtype, [&]<typename T>() {
    const auto hold = [&]<bool kLast>() {
      p.cluster > 1 ? fn.template operator()<T, Hold::kCluster, kLast>()
                    : fn.template operator()<T, Hold::kBlock, kLast>();
    };
    s.channels_last ? hold.template operator()<true>() : hold.template operator()<false>();
  });
}
Divider per_run(const GroupShape& s) {
  return Divider((s.channels_last ? s.channels : s.positions) / (kVectorBytes / size_of(s.dtype)));
}

}  // namespace

int64_t group_norm_parts(const GroupShape& s, bool aligned) { return plan_group(s, aligned, kBackward).cluster; }

void group_norm_forward(const GroupNormForward& a, Stream stream) {
  const HeldPlan p = plan_group(a.shape, true, kForward);
  with_plan(a.shape, p, [&]<typename T, Hold kHold, bool kLast>() {
    launch_after_with_memory<&group_forward<T, kForward, kHold, kLast>>(0, p.blocks(a.shape.rows()), p.threads(),
                                                                        p.cluster, stream, a, p.lanes, per_run(a.shape),
                                                                        Divider(a.shape.groups));
  });
}

void group_norm_backward(const GroupNormBackward& a, int64_t parts, void* dweight, void* dbias, Stream stream) {
  const HeldPlan p = plan_group(a.shape, true, kBackward);
  const int64_t channels = a.shape.all_channels();
  with_plan(a.shape, p, [&]<typename T, Hold kHold, bool kLast>() {
    const int64_t entries = kLast ? p.threads() / 32 * a.shape.channels : int64_t{p.threads()} * kBackward;
    launch_after_with_memory<&group_backward<T, kBackward, kHold, kLast>>(
        entries * int64_t{sizeof(float2)}, p.blocks(a.shape.rows()), p.threads(), p.cluster, stream, a, p.lanes,
        per_run(a.shape), Divider(a.shape.groups), int(parts));
  });
  with_dtype(a.shape.weight_dtype, [&]<typename W>() {
    launch_after(&group_sums<W>, divide_up(channels, 32), 1024, stream, a.partial, a.shape.samples * parts, channels,
                 static_cast<W*>(dweight), static_cast<W*>(dbias));
  });
}

}  // namespace norms::cuda
