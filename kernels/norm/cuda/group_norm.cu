// GroupNorm on a GPU, one load and one store of every element: groups are streamed through blocks, or clusters of them
// (streamed_rows.cuh). Channels last, a group's part of a position is short: then up to four neighbours make one row.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/tile/copy_async.cuh"
#include "kernels/common/gpu/tile/streamed_rows.cuh"
#include "kernels/common/gpu/tile/streamed_rows.h"
#include "kernels/norm/group_norm.h"

namespace norms::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

struct Streams {
  int each;                  // vectors of a thread in a row
  int depth, cluster_depth;  // rows of a ring, without and with a cluster
  int cluster_threads;       // of the blocks of a cluster, where that is enough
  HOTSWAP_HOST_DEVICE constexpr int depth_of(bool cluster) const { return cluster ? cluster_depth : depth; }
};
constexpr int kThreads = 512;  // at most, of a block
constexpr Streams kForward{.each = 8, .depth = 3, .cluster_depth = 3, .cluster_threads = kThreads};
constexpr Streams kBackward{.each = 4, .depth = 2, .cluster_depth = 3, .cluster_threads = 256};

// Rows: a bundle of groups of one sample, all samples of a bundle one after another. A cluster has `per_cluster` of
// them in a row, so that its sums over samples are few.
struct Walk {
  Divider samples, per_run;  // per_run: vectors of a channel; channels last, of a position
  int rows, per_cluster, row_vectors, run_vectors, group_vectors;  // group_vectors: of a position of one group
};

// What a thread knows of its rows.
template <class T, bool kLast, int kBundle>
struct GroupRows {
  static constexpr int N = kPerVector<T>;
  const GroupShape& s;
  const Walk& w;
  int first, last;            // rows of this cluster
  int within, of_bundle;      // channels last: vector of a position, group of a bundle
  int64_t to_first, to_next;  // from where a row begins to the thread's first vector, and on to the next ones

  template <bool kCluster>
  __device__ GroupRows(const GroupShape& s, const Walk& w, std::bool_constant<kCluster>) : s(s), w(w) {
    first = int(blockIdx.x) / blocks_of_row<kCluster>() * w.per_cluster;
    last = min(first + w.per_cluster, w.rows);
    within = kLast ? int(threadIdx.x) & (w.run_vectors - 1) : 0;
    of_bundle = kBundle > 1 ? within / w.group_vectors : 0;
  }
  template <class Stream>
  __device__ __forceinline__ void place(const Stream& stream) {
    to_first = int64_t{stream.vector(0)} * N, to_next = int64_t{blockDim.x} * N;
    if constexpr (kLast) {
      to_first = int64_t(w.per_run(uint32_t(stream.vector(0)))) * s.all_channels() + within * N;
      to_next = int64_t(w.per_run(blockDim.x)) * s.all_channels();
    }
  }
  struct Row {
    int bundle, sample;
  };
  __device__ __forceinline__ Row row(int i) const {
    const int bundle = int(w.samples(uint32_t(i)));
    return {bundle, i - bundle * int(s.samples)};
  }
  // Of the element where the row begins, and from there to vector v of it.
  __device__ __forceinline__ int64_t begin(const Row& r) const {
    if constexpr (kLast) return r.sample * s.positions * s.all_channels() + int64_t{r.bundle} * kBundle * s.channels;
    return (int64_t{r.sample} * s.groups + r.bundle) * s.channels * s.positions;
  }
  __device__ __forceinline__ int64_t channel(const Row& r, int v) const {  // of the vector's first element
    const int64_t from = int64_t{r.bundle} * kBundle * s.channels;
    return from + (kLast ? within * N : int64_t(w.per_run(uint32_t(v))));
  }
  __device__ __forceinline__ int64_t statistic(const Row& r) const {
    return int64_t{r.sample} * s.groups + r.bundle * kBundle + of_bundle;
  }
  // The lane of a warp that has what the warp knows of a group.
  __device__ __forceinline__ bool writes() const {
    const int lane = int(threadIdx.x) % 32;
    return kBundle == 1 ? lane == 0 : lane < w.run_vectors && lane % w.group_vectors == 0;
  }
  // Over the lanes of a warp that have the same group.
  __device__ __forceinline__ float of_group(float v) const {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
      if (kBundle == 1 || o >= w.run_vectors || o < w.group_vectors) v += __shfl_xor_sync(kAllLanes, v, o);
    }
    return v;
  }
};

// weight or bias of a thread's elements. Channel by channel a vector has one channel; channels last all vectors of a
// thread have the same, since threads are a multiple of a position's vectors apart.
template <class T, int kEach, bool kLast>
struct OfChannels {
  static constexpr int N = kPerVector<T>;
  float v[kLast ? N : kEach];

  __device__ __forceinline__ explicit OfChannels(float otherwise) {
#pragma unroll
    for (float& f : v) f = otherwise;
  }
  template <class Rows, class Stream>
  __device__ __forceinline__ void read(const void* data, DType dtype, const Rows& rows, const typename Rows::Row& r,
                                       const Stream& stream) {
    if (data == nullptr) return;
    if constexpr (kLast) {
      load_any<N>(data, dtype, rows.channel(r, 0), reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0, v);
    } else {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        float one[1] = {};
        if (stream.has(k)) load_any<1>(data, dtype, rows.channel(r, stream.vector(k)), false, one);
        v[k] = one[0];
      }
    }
  }
  __device__ __forceinline__ float of(int k, int i) const { return v[kLast ? i : k]; }
};

extern __shared__ uint4 group_ring[];

template <class T, bool kLast, int kBundle, bool kCluster>
__global__ void __launch_bounds__(kThreads, 1) group_forward(const GroupNormForward a, const Walk walk) {
  constexpr int N = kPerVector<T>, kEach = kForward.each, kDepth = kForward.depth_of(kCluster);
  using Exchange = RowExchange<Moments, kCluster, kBundle>;
  __shared__ typename Exchange::Memory memory;
  GroupRows<T, kLast, kBundle> rows(a.shape, walk, std::bool_constant<kCluster>{});
  const StreamedRows<T, 1, kEach, kDepth> stream(group_ring, walk.row_vectors, rank_in_row<kCluster>());
  rows.place(stream);
  const auto fetch = [&](int i, int slot) {
    const T* x = static_cast<const T*>(a.x) + rows.begin(rows.row(i));
    stream.fetch(slot, i < rows.last, [&](int, int k) { return x + rows.to_first + k * rows.to_next; });
  };
  float count = 0.f;
#pragma unroll
  for (int k = 0; k < kEach; ++k) count += stream.has(k) ? float(N) : 0.f;
  count = rows.of_group(count);
  const float share = count > 0.f ? 1.f / count : 0.f;
  const auto moments = [&](int slot) {
    float total[4] = {}, distances[4] = {};
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
#pragma unroll
      for (int i = 0; i < N; ++i) total[i % 4] += f[i];
    }
    const float mean = rows.of_group((total[0] + total[1]) + (total[2] + total[3])) * share;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
      const float from = stream.has(k) ? mean : 0.f;
#pragma unroll
      for (int i = 0; i < N; ++i) distances[i % 4] += (f[i] - from) * (f[i] - from);
    }
    return Moments{{count, mean, rows.of_group((distances[0] + distances[1]) + (distances[2] + distances[3]))}};
  };
  const float share_of_row = 1.f / float(a.shape.channels * a.shape.positions);
  stream.begin(0);
#pragma unroll
  for (int d = 0; d < kDepth; ++d) fetch(rows.first + d, d);
  Exchange exchange(memory);
  copy_async_wait<kDepth - 1>();
  exchange.send(moments(0), rows.writes(), rows.of_bundle);
  OfChannels<T, kEach, kLast> w(1.f), b(0.f);
  int slot = 0;
  for (int i = rows.first; i < rows.last; ++i) {
    const int after = stream.next(slot);
    const auto r = rows.row(i);
    Moments ahead;
    if (i + 1 < rows.last) {
      copy_async_wait<kDepth - 2>();
      ahead = moments(after);
    }
    const Moments all = exchange.receive(rows.of_bundle);
    if (i + 1 < rows.last) exchange.send(ahead, rows.writes(), rows.of_bundle);
    if (i == rows.first || r.sample == 0) {
      w.read(a.weight, a.shape.weight_dtype, rows, r, stream);
      b.read(a.bias, a.shape.weight_dtype, rows, r, stream);
    }
    const float mean = all.v[1], rstd = rsqrtf(all.v[2] * share_of_row + a.eps);
    if (a.mean != nullptr && threadIdx.x < 32 && rows.writes() && rank_in_row<kCluster>() == 0)
      a.mean[rows.statistic(r)] = mean, a.rstd[rows.statistic(r)] = rstd;
    T* y = static_cast<T*>(a.y) + rows.begin(r);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
#pragma unroll
      for (int j = 0; j < N; ++j) f[j] = (f[j] - mean) * (rstd * w.of(k, j)) + b.of(k, j);
      if (stream.has(k)) store_floats<N>(y + rows.to_first + k * rows.to_next, f);
    }
    fetch(i + kDepth, slot);
    slot = after;
  }
  exchange.end();
}

// What a block's rows of one bundle add up to for each channel becomes a row of `partial`: that of the first of these
// rows' samples and of the block's rank. group_sums knows which are written.
template <class T, int kEach, bool kLast>
struct ChannelSums {
  static constexpr int N = kPerVector<T>, kCount = kLast ? N : kEach;
  float of_n[kCount] = {}, of_dy[kCount] = {};

  template <class Rows, class Stream>
  __device__ __forceinline__ void write(const GroupNormBackward& a, const Rows& rows, const typename Rows::Row& first,
                                        const Stream& stream, int rank, int parts, float2* table) {
    const int64_t channels = a.shape.all_channels();
    const int here = rows.w.run_vectors * N, threads = int(blockDim.x);
    float* out_n = a.partial + (int64_t{first.sample} * parts + rank) * 2 * channels + rows.channel(first, 0) -
                   (kLast ? rows.within * N : rows.w.per_run(0));
    float* out_dy = out_n + channels;
    __syncthreads();
    if constexpr (kLast) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        for (int o = 16; o >= rows.w.run_vectors; o /= 2) {
          of_n[i] += __shfl_xor_sync(kAllLanes, of_n[i], o);
          of_dy[i] += __shfl_xor_sync(kAllLanes, of_dy[i], o);
        }
        const int lane = int(threadIdx.x) % 32;
        if (lane < rows.w.run_vectors) table[int(threadIdx.x) / 32 * here + lane * N + i] = {of_n[i], of_dy[i]};
      }
      __syncthreads();
      for (int c = int(threadIdx.x); c < here; c += threads) {
        float2 sum = {0.f, 0.f};
        for (int warp = 0; warp < threads / 32; ++warp)
          sum.x += table[warp * here + c].x, sum.y += table[warp * here + c].y;
        out_n[c] = sum.x, out_dy[c] = sum.y;
      }
    } else {  // a channel's vectors are side by side
#pragma unroll
      for (int k = 0; k < kEach; ++k) table[k * threads + int(threadIdx.x)] = {of_n[k], of_dy[k]};
      __syncthreads();
      const int begin = stream.vector(0) - int(threadIdx.x), count = kEach * threads, per_channel = rows.w.run_vectors;
      const int lane = int(threadIdx.x) % 32;
      const bool by_warp = per_channel >= 32;
      for (int c = by_warp ? int(threadIdx.x) / 32 : int(threadIdx.x); c < int(a.shape.channels);
           c += by_warp ? threads / 32 : threads) {
        const int from = max(c * per_channel - begin, 0), to = min((c + 1) * per_channel - begin, count);
        float2 sum = {0.f, 0.f};
        for (int v = from + (by_warp ? lane : 0); v < to; v += by_warp ? 32 : 1)
          sum.x += table[v].x, sum.y += table[v].y;
        if (by_warp) sum = {warp_sum(sum.x), warp_sum(sum.y)};
        if (!by_warp || lane == 0) out_n[c] = sum.x, out_dy[c] = sum.y;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) of_n[i] = of_dy[i] = 0.f;
  }
};

template <class T, bool kLast, int kBundle, bool kCluster>
__global__ void __launch_bounds__(kThreads, 1) group_backward(const GroupNormBackward a, const Walk walk) {
  constexpr int N = kPerVector<T>, kEach = kBackward.each, kDepth = kBackward.depth_of(kCluster);
  using Exchange = RowExchange<Sums<2>, kCluster, kBundle>;  // of g, of g n
  using Rows = GroupRows<T, kLast, kBundle>;
  __shared__ typename Exchange::Memory memory;
  Rows rows(a.shape, walk, std::bool_constant<kCluster>{});
  const StreamedRows<T, 2, kEach, kDepth> stream(group_ring, walk.row_vectors, rank_in_row<kCluster>());
  rows.place(stream);
  auto* table = reinterpret_cast<float2*>(group_ring + kDepth * 2 * kEach * int(blockDim.x));
  const auto fetch = [&](int i, int slot) {
    const int64_t begin = rows.begin(rows.row(i));
    const T *x = static_cast<const T*>(a.x) + begin, *dy = static_cast<const T*>(a.dy) + begin;
    stream.fetch(slot, i < rows.last,
                 [&](int tensor, int k) { return (tensor == 0 ? x : dy) + rows.to_first + k * rows.to_next; });
  };
  struct Statistics {
    float mean, rstd;
  };
  const auto statistics = [&](int i) {
    if (i >= rows.last) return Statistics{};
    const int64_t at = rows.statistic(rows.row(i));
    return Statistics{a.mean[at], a.rstd[at]};
  };
  ChannelSums<T, kEach, kLast> channels;
  OfChannels<T, kEach, kLast> w(1.f), w_ahead(1.f);
  typename Rows::Row run{};  // the first row since channels are 0
  const auto sums = [&](int i, int slot, const Statistics& of) {
    const auto r = rows.row(i);
    if (r.sample == 0 && i > rows.first)
      channels.write(a, rows, run, stream, rank_in_row<kCluster>(), blocks_of_row<kCluster>(), table);
    if (r.sample == 0 || i == rows.first) run = r;
    if (r.sample == 0 || i == rows.first) w_ahead.read(a.weight, a.shape.weight_dtype, rows, r, stream);
    const auto& w = w_ahead;
    Sums<2> mine;
    float of_n[channels.kCount] = {}, of_dy[channels.kCount] = {};
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      float f[N], g[N];
      unpack(stream.get(slot, 0, k), f);
      unpack(stream.get(slot, 1, k), g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int c = kLast ? j : k;
        of_n[c] += g[j] * (f[j] - of.mean), of_dy[c] += g[j];
      }
    }
#pragma unroll
    for (int c = 0; c < channels.kCount; ++c) {
      of_n[c] *= of.rstd;
      channels.of_n[c] += of_n[c], channels.of_dy[c] += of_dy[c];
      mine.v[0] += of_dy[c] * w.of(c, c), mine.v[1] += of_n[c] * w.of(c, c);
    }
    mine.v[0] = rows.of_group(mine.v[0]), mine.v[1] = rows.of_group(mine.v[1]);
    return mine;
  };
  const float share = 1.f / float(a.shape.channels * a.shape.positions);
  stream.begin(0);
  launch_dependents();
#pragma unroll
  for (int d = 0; d < kDepth; ++d) fetch(rows.first + d, d);
  Statistics here = statistics(rows.first), next = statistics(rows.first + 1);
  Exchange exchange(memory);
  copy_async_wait<kDepth - 1>();
  exchange.send(sums(rows.first, 0, here), rows.writes(), rows.of_bundle);
  int slot = 0;
  for (int i = rows.first; i < rows.last; ++i) {
    const int after = stream.next(slot);
    const Statistics later = statistics(i + 2);
    Sums<2> ahead;
    if (i + 1 < rows.last) {
      copy_async_wait<kDepth - 2>();
      ahead = sums(i + 1, after, next);
    }
    const Sums<2> all = exchange.receive(rows.of_bundle);
    if (i + 1 < rows.last) exchange.send(ahead, rows.writes(), rows.of_bundle);
    const auto r = rows.row(i);
    if (i == rows.first || r.sample == 0) w.read(a.weight, a.shape.weight_dtype, rows, r, stream);
    const float level = -all.v[0] * share * here.rstd, slope = -all.v[1] * share * here.rstd * here.rstd;
    T* dx = static_cast<T*>(a.dx) + rows.begin(r);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      float f[N], g[N];
      unpack(stream.get(slot, 0, k), f);
      unpack(stream.get(slot, 1, k), g);
#pragma unroll
      for (int j = 0; j < N; ++j) f[j] = g[j] * (w.of(k, j) * here.rstd) + ((f[j] - here.mean) * slope + level);
      if (stream.has(k)) store_floats<N>(dx + rows.to_first + k * rows.to_next, f);
    }
    fetch(i + kDepth, slot);
    slot = after;
    here = next, next = later;
  }
  channels.write(a, rows, run, stream, rank_in_row<kCluster>(), blocks_of_row<kCluster>(), table);
  exchange.end();
}

// dweight and dbias: 32 channels a block; strip y takes every 32nd of the rows that group_backward wrote; strips are
// added in order. A channel's bundle has a row from its first sample on, and from where clusters begin.
template <class W>
__global__ void __launch_bounds__(1024) group_sums(const float* partial, int samples, int parts, int per_cluster,
                                                   int64_t channels, int64_t channels_of_bundle, W* dweight, W* dbias) {
  __shared__ float strips[2][32][33];
  const int x = int(threadIdx.x) % 32, y = int(threadIdx.x) / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + x, out = int64_t{blockIdx.x} * 32 + y;
  grid_dependency_wait();
  float of_n = 0.f, of_dy = 0.f;
  if (c < channels) {
    const int first = int(c / channels_of_bundle) * samples, end = first + samples;  // rows of its bundle
    const int start = first / per_cluster + 1;                                       // the next cluster
    const int runs = 1 + max((end - 1) / per_cluster - start + 1, 0);
    for (int i = y; i < runs * parts; i += 32) {
      const int run = i / parts, sample = run == 0 ? 0 : (start + run - 1) * per_cluster - first;
      const int64_t row = int64_t{sample} * parts + i % parts;
      of_n += partial[2 * row * channels + c];
      of_dy += partial[(2 * row + 1) * channels + c];
    }
  }
  strips[0][y][x] = of_n, strips[1][y][x] = of_dy;
  __syncthreads();
  of_n = warp_sum(strips[0][x][y]), of_dy = warp_sum(strips[1][x][y]);  // transposed: warp y has channel y
  if (x == 0 && out < channels) dweight[out] = from_float<W>(of_n), dbias[out] = from_float<W>(of_dy);
}

struct GroupPlan {
  StreamPlan stream;
  int bundle;
  int64_t rows, vectors;
};

GroupPlan plan_group(const GroupShape& s, bool aligned, const Streams& streams) {
  constexpr int kMaxBundle = 4, kLine = 128;
  const int64_t per_vector = kVectorBytes / size_of(s.dtype), run = s.channels_last ? s.channels : s.positions;
  const int64_t vectors = run / per_vector, cols = s.channels * s.positions;
  // Vectors that end with their channel or position; position by position, a power of two of them that divides a warp.
  if (!aligned || run % per_vector != 0 || cols >= int64_t{1} << 28) return {};
  if (s.channels_last && (vectors > 32 || (vectors & (vectors - 1)) != 0)) return {};
  for (int bundle = s.channels_last ? kMaxBundle : 1; bundle > 0; bundle /= 2) {
    if (s.groups % bundle != 0 || (bundle > 1 && bundle * vectors * kVectorBytes > kLine)) continue;
    const GroupPlan p{.stream = {}, .bundle = bundle, .rows = s.rows() / bundle, .vectors = bundle * cols / per_vector};
    const StreamPlan stream = plan_stream(p.rows, p.vectors,
                                          {.vectors = streams.each,
                                           .max_threads = kThreads,
                                           .cluster_threads = streams.cluster_threads,
                                           .max_cluster = max_cluster()},
                                          multiprocessors());
    if (stream.cluster > 0 && p.rows < int64_t{1} << 31) return {stream, bundle, p.rows, p.vectors};
  }
  return {};
}

template <class Fn>  // fn<T, kLast, kBundle, kCluster>()
void with_plan(const GroupShape& s, const GroupPlan& p, const Fn& fn) {
  with_dtype(s.dtype, [&]<typename T>() {
    const auto laid = [&]<bool kLast, int kBundle>() {
      p.stream.cluster > 1 ? fn.template operator()<T, kLast, kBundle, true>()
                           : fn.template operator()<T, kLast, kBundle, false>();
    };
    if (!s.channels_last) return laid.template operator()<false, 1>();
    if (p.bundle == 4) return laid.template operator()<true, 4>();
    p.bundle == 2 ? laid.template operator()<true, 2>() : laid.template operator()<true, 1>();
  });
}

Walk walk_of(const GroupShape& s, const GroupPlan& p, int64_t clusters) {
  const int64_t group = (s.channels_last ? s.channels : s.positions) / (kVectorBytes / size_of(s.dtype));
  const int64_t run = s.channels_last ? group * p.bundle : group;
  return {.samples = Divider(s.samples),
          .per_run = Divider(run),
          .rows = int(p.rows),
          .per_cluster = int(divide_up(p.rows, std::min(clusters, p.rows))),
          .row_vectors = int(p.vectors),
          .run_vectors = int(run),
          .group_vectors = int(group)};
}

// The walk that was launched.
template <auto kKernel, class Args>
Walk launch_group(const Args& a, const GroupPlan& p, int64_t bytes, Stream stream) {
  const auto [cluster, threads] = p.stream;
  const Walk walk = walk_of(a.shape, p, clusters_at_once<kKernel>(bytes, threads, cluster));
  launch_after_with_memory<kKernel>(bytes, divide_up(p.rows, walk.per_cluster) * cluster, threads, cluster, stream, a,
                                    walk);
  return walk;
}

}  // namespace

int64_t group_norm_parts(const GroupShape& s, bool aligned) {
  return plan_group(s, aligned, kForward).stream.cluster == 0 ? 0 : plan_group(s, aligned, kBackward).stream.cluster;
}

void group_norm_forward(const GroupNormForward& a, Stream stream) {
  const GroupPlan p = plan_group(a.shape, true, kForward);
  const int64_t bytes = kVectorBytes * kForward.depth_of(p.stream.cluster > 1) * kForward.each * p.stream.threads;
  with_plan(a.shape, p, [&]<typename T, bool kLast, int kBundle, bool kCluster>() {
    launch_group<&group_forward<T, kLast, kBundle, kCluster>>(a, p, bytes, stream);
  });
}

void group_norm_backward(const GroupNormBackward& a, int64_t parts, void* dweight, void* dbias, Stream stream) {
  const GroupPlan p = plan_group(a.shape, true, kBackward);
  const int64_t channels = a.shape.all_channels();
  const int64_t run = p.bundle * a.shape.channels, threads = p.stream.threads;
  const int64_t entries = a.shape.channels_last ? threads / 32 * run : threads * kBackward.each;
  const int64_t bytes = kVectorBytes * kBackward.depth_of(p.stream.cluster > 1) * 2 * kBackward.each * threads +
                        entries * int64_t{sizeof(float2)};
  with_plan(a.shape, p, [&]<typename T, bool kLast, int kBundle, bool kCluster>() {
    const Walk walk = launch_group<&group_backward<T, kLast, kBundle, kCluster>>(a, p, bytes, stream);
    with_dtype(a.shape.weight_dtype, [&]<typename W>() {
      launch_after(&group_sums<W>, divide_up(channels, 32), 1024, stream, a.partial, int(a.shape.samples), int(parts),
                   walk.per_cluster, channels, run, static_cast<W*>(dweight), static_cast<W*>(dbias));
    });
  });
}

}  // namespace norms::cuda
