// A token drawn of each row of logits (sample.h defines it). A cluster of blocks holds a row in shared memory, as keys
// in the order of the logits. The cuts of top_k and top_p are searched among them three bits at a time: a round is a
// walk over shared memory and a barrier of the cluster. Of 16-bit logits there are six rounds.
#include <cmath>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cluster.cuh"
#include "kernels/linear/cuda/linear.h"
#include "kernels/linear/sample.h"

namespace linear::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

using Sum = unsigned long long;

constexpr int kThreads = 512, kBlocks = 8, kWarps = kThreads / 32, kRowWarps = kBlocks * kWarps;
constexpr int kParts = 8;                    // of a range of keys, in a round of a search
constexpr int64_t kSharedBytes = 192 << 10;  // of keys in a block; what a row has more is read from memory each time

// Larger logits have larger keys, -0 that of 0, and only a NaN has the key 0.
template <class T>
struct Key {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  static constexpr uint32_t kSign = sizeof(T) == 4 ? 0x80000000u : 0x8000u, kAll = 2 * kSign - 1;

  static __device__ __forceinline__ uint32_t of(T x) {
    const uint32_t bits = __builtin_bit_cast(Bits, x);
    return bits == kSign ? kSign : bits & kSign ? ~bits & kAll : bits | kSign;
  }
  static __device__ __forceinline__ float value(uint32_t key) {
    return to_float(__builtin_bit_cast(T, Bits(key & kSign ? key & ~kSign : ~key & kAll)));
  }
};

struct Memory {
  Sum of_warps[kParts][kWarps];
  Sum of_blocks[2][kParts][kBlocks];
  Sum equal[kRowWarps], above[kRowWarps];  // of every warp of the row, in the order of ids
};

struct Add {
  __device__ Sum operator()(Sum a, Sum b) const { return a + b; }
};
struct Max {
  __device__ Sum operator()(Sum a, Sum b) const { return a > b ? a : b; }
};

// Of eight values of each lane: afterwards v[0] is the warp's sum of value lane / 4. Each step sends half of what is
// left, so that eight sums take 9 exchanges, not 40.
__device__ __forceinline__ void scatter_sums(Sum (&v)[kParts]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = kParts / 2, o = 16; half > 0; half /= 2, o /= 2) {
    const bool upper = lane & o;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const Sum sent = upper ? v[i] : v[i + half], own = upper ? v[i + half] : v[i];
      v[i] = own + __shfl_xor_sync(kAllLanes, sent, o);
    }
  }
  v[0] += __shfl_xor_sync(kAllLanes, v[0], 2);
  v[0] += __shfl_xor_sync(kAllLanes, v[0], 1);
}

__device__ __forceinline__ Sum inclusive_scan(Sum v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const Sum there = __shfl_up_sync(kAllLanes, v, o);
    v += lane >= o ? there : 0;
  }
  return v;
}

// Reductions over the threads of a row, the same result in all of them. Two buffers alternate, so that a buffer is
// written again only after the barrier that follows its last read.
class Row {
 public:
  explicit __device__ Row(Memory& memory) : memory_(memory), rank_(cluster_ctarank()) {}

  template <class Op>
  __device__ Sum reduce(Sum v, Op op) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, o));
    if (lane == 0) memory_.of_warps[0][warp] = v;
    exchange(1, op);
    return of_cluster(0, op);
  }
  __device__ void sum(Sum (&v)[kParts]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    scatter_sums(v);
    if (lane % 4 == 0) memory_.of_warps[lane / 4][warp] = v[0];
    exchange(kParts, Add());
#pragma unroll
    for (int n = 0; n < kParts; ++n) v[n] = of_cluster(n, Add());
  }

  // Of each warp of the row, into equal and above.
  __device__ void gather(Sum equal, Sum above) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < kBlocks) {
      st_shared_cluster(lane, memory_.equal[rank_ * kWarps + warp], equal);
      st_shared_cluster(lane, memory_.above[rank_ * kWarps + warp], above);
    }
    cluster_sync();
  }

 private:
  template <class Op>
  __device__ void exchange(int count, Op op) {
    buffer_ ^= 1;
    __syncthreads();
    if (threadIdx.x < count * kBlocks) {
      const int n = int(threadIdx.x) / kBlocks;
      Sum all = memory_.of_warps[n][0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) all = op(all, memory_.of_warps[n][w]);
      st_shared_cluster(threadIdx.x % kBlocks, memory_.of_blocks[buffer_][n][rank_], all);
    }
    cluster_sync();
  }
  template <class Op>
  __device__ Sum of_cluster(int n, Op op) const {
    Sum all = memory_.of_blocks[buffer_][n][0];
#pragma unroll
    for (int b = 1; b < kBlocks; ++b) all = op(all, memory_.of_blocks[buffer_][n][b]);
    return all;
  }

  Memory& memory_;
  uint32_t rank_;
  int buffer_ = 0;
};

// The logits of a warp: a range of ids, as keys in shared memory as far as it is large enough.
template <class T, int N>
struct Logits {
  using Bits = typename Key<T>::Bits;
  const T* x;  // the first one's
  Bits* held;
  int count, kept;

  __device__ __forceinline__ uint32_t operator[](int i) const { return i < kept ? held[i] : Key<T>::of(x[i]); }
  // fn(key), in no order
  template <class Fn>
  __device__ __forceinline__ void each(const Fn& fn) const {
    constexpr int kVector = kPerVector<T>;
    const int lane = threadIdx.x % 32, whole = kept / kVector * kVector;
#pragma unroll 1
    for (int i = lane * kVector; i < whole; i += 32 * kVector) {
      alignas(16) Bits keys[kVector];
      *reinterpret_cast<uint4*>(keys) = *reinterpret_cast<const uint4*>(held + i);
#pragma unroll
      for (int k = 0; k < kVector; ++k) fn(uint32_t{keys[k]});
    }
    for (int i = whole + lane; i < count; i += 32) fn((*this)[i]);
  }
  // -> the maximal key; of a NaN the last of all
  __device__ Sum load() const {
    uint32_t best = 0;
    const auto key_of = [&](T logit) {
      const float value = to_float(logit);
      const uint32_t key = value == value ? Key<T>::of(logit) : Key<T>::kAll;
      best = max(best, key);
      return Bits(key);
    };
    const int lane = threadIdx.x % 32, whole = count / N * N;
#pragma unroll 2
    for (int i = lane * N; i < whole; i += 32 * N) {
      if constexpr (N == 1) {
        const Bits key = key_of(x[i]);
        if (i < kept) held[i] = key;
      } else {
        alignas(16) T logits[N];
        alignas(16) Bits keys[N];
        *reinterpret_cast<uint4*>(logits) = *reinterpret_cast<const uint4*>(x + i);
#pragma unroll
        for (int k = 0; k < N; ++k) keys[k] = key_of(logits[k]);
        if (i < kept) *reinterpret_cast<uint4*>(held + i) = *reinterpret_cast<const uint4*>(keys);
      }
    }
    if (const int i = whole + lane; i < count) {
      const Bits key = key_of(x[i]);
      if (i < kept) held[i] = key;
    }
    __syncwarp();
    return best;
  }
};

// The maximal key in [low, high] down to which the measures of a row have `needed` in total. above: the total of keys
// beyond the result. The total down to low is known to suffice, and no key is beyond high.
template <class AllLogits, class Measure>
__device__ uint32_t search(Row& row, const AllLogits& logits, const Measure& measure, Sum needed, uint32_t low,
                           uint32_t high, Sum& above) {
  above = 0;
  while (low < high) {
    const uint32_t step = (high - low) / kParts + 1;
    Sum from[kParts] = {};  // down to low + (j + 1) step
    logits.each([&](uint32_t key) {
      if (key < low + step || key > high) return;
      const Sum m = measure(key);
#pragma unroll
      for (int j = 0; j < kParts - 1; ++j) from[j] += key - low >= (j + 1) * step ? m : 0;
    });
    row.sum(from);
    int part = 0;
#pragma unroll
    for (int j = 0; j < kParts - 1; ++j) part = above + from[j] >= needed ? j + 1 : part;
    Sum beyond = 0;
#pragma unroll
    for (int j = 0; j < kParts - 1; ++j) beyond = part == j ? from[j] : beyond;
    above += beyond;
    low += uint32_t(part) * step;
    if (high - low >= step) high = low + step - 1;
  }
  return low;
}

// What stays of a row: keys above `key`, and the first `equal` of those with that key.
struct Cut {
  uint32_t key;
  Sum equal;
};

// Where the parts of the row's warps begin, of what is kept, in the order of ids.
struct Begin {
  Sum equal_before, before, own, total;  // own: this warp's part

  __device__ Begin(const Memory& memory, const Cut& cut, Sum of_cut, int row_warp) {
    constexpr int kEach = kRowWarps / 32;
    const int first = int(threadIdx.x % 32) * kEach;
    Sum equal[kEach], part[kEach], equals = 0, parts = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) equals += equal[k] = memory.equal[first + k];
    Sum at = inclusive_scan(equals) - equals, equal_at = 0, part_at = 0, mine = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const Sum left = cut.equal > at ? cut.equal - at : 0;
      parts += part[k] = memory.above[first + k] + min(equal[k], left) * of_cut;
      equal_at = first + k == row_warp ? at : equal_at;
      at += equal[k];
    }
    at = inclusive_scan(parts) - parts;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      part_at = first + k == row_warp ? at : part_at;
      mine = first + k == row_warp ? part[k] : mine;
      at += part[k];
    }
    total = __shfl_sync(kAllLanes, at, 31);
    equal_before = __shfl_sync(kAllLanes, equal_at, row_warp / kEach);
    before = __shfl_sync(kAllLanes, part_at, row_warp / kEach);
    own = __shfl_sync(kAllLanes, mine, row_warp / kEach);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 2) sample_kernel(const Sample a, const int warp_ids, const int kept) {
  extern __shared__ uint4 shared[];
  __shared__ Memory memory;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row_index = blockIdx.x / kBlocks;
  Row row(memory);
  cluster_arrive_relaxed();
  grid_dependency_wait();
  launch_dependents();
  const double* s = a.settings + row_index * kSettings;
  const float scale = float(s[kScale]);
  const double top_k = s[kTopK], top_p = s[kTopP];
  const int row_warp = int(cluster_ctarank()) * kWarps + warp;
  const int64_t begin = min(a.cols, int64_t{row_warp} * warp_ids);
  const int count = int(min(a.cols - begin, int64_t{warp_ids}));
  const Logits<T, N> logits{static_cast<const T*>(a.x) + row_index * a.x_stride + begin,
                            reinterpret_cast<typename Key<T>::Bits*>(shared) + warp * kept, count, min(kept, count)};
  const Sum own_best = logits.load();
  cluster_wait();
  const auto high = uint32_t(row.reduce(own_best, Max()));
  const auto score_of = [&](uint32_t key) { return __fmul_rn(Key<T>::value(key), scale); };
  const float best = score_of(high);
  if (!isfinite(best)) {
    if (row_warp == 0 && lane == 0) a.ids[row_index] = 0;
    return;
  }
  const float least = fmaxf(best + float(s[kLogMinP]), best - kNoWeight);
  const auto weight = [&](uint32_t key) -> Sum {
    const float score = score_of(key);
    return score >= least ? Sum(llrint(exp(double(score - best)) * kMaxWeight)) : 0;
  };
  uint32_t low = 1;  // below it weights are 0
  if constexpr (sizeof(T) == 4) {
    constexpr uint32_t kRounding = 8;  // ulps, of the quotient and the product
    low = max(Key<T>::of(__fdiv_rn(least, scale)), kRounding) - kRounding + 1;
  }
  Cut cut{0, 0};
  // Of this thread: how many have the key of the cut, and the weights of those above it.
  Sum equals, own;
  const auto walk = [&] {
    equals = 0, own = 0;
    logits.each([&](uint32_t key) {
      equals += key == cut.key;
      if (key > cut.key) own += weight(key);
    });
  };
  if (top_k > 0 && top_k < double(a.cols)) {
    Sum counted = 0;
    logits.each([&](uint32_t key) { counted += key >= low; });
    if (top_k < double(row.reduce(counted, Add()))) {
      Sum above;
      cut.key = search(
          row, logits, [](uint32_t) -> Sum { return 1; }, Sum(top_k), low, high, above);
      cut.equal = Sum(top_k) - above;
    }
  }
  walk();
  if (top_p < 1) {
    const Sum total = row.reduce(own, Add()) + (cut.equal > 0 ? cut.equal * weight(cut.key) : 0);
    const Sum needed = nucleus_weight(total, top_p);
    Sum above;
    cut.key = search(row, logits, weight, needed, max(low, cut.key), high, above);
    const Sum one = weight(cut.key);
    cut.equal = (needed - above + one - 1) / one;
    walk();
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    equals += __shfl_xor_sync(kAllLanes, equals, o);
    own += __shfl_xor_sync(kAllLanes, own, o);
  }
  row.gather(equals, own);
  Begin at(memory, cut, cut.equal > 0 ? weight(cut.key) : 0, row_warp);
  const Sum point = min(Sum(double(at.total) * s[kUniform]), at.total - 1);
  if (point < at.before || point >= at.before + at.own) return;
  for (int i = 0;; i += 32) {
    const uint32_t key = i + lane < count ? logits[i + lane] : 0;
    const unsigned same = __ballot_sync(kAllLanes, cut.equal > 0 && key == cut.key);
    const Sum rank = at.equal_before + __popc(same & ((1u << lane) - 1));
    const bool stays = key > cut.key || ((same >> lane & 1) != 0 && rank < cut.equal);
    const Sum sum = at.before + inclusive_scan(stays ? weight(key) : 0);
    const unsigned beyond = __ballot_sync(kAllLanes, sum > point);
    if (beyond != 0) {
      if (lane == 0) a.ids[row_index] = begin + i + __ffs(int(beyond)) - 1;
      return;
    }
    at.before = __shfl_sync(kAllLanes, sum, 31);
    at.equal_before += __popc(same);
  }
}

template <class T, int N>
void launch_sample(const Sample& a, Stream stream) {
  constexpr int64_t kVector = kPerVector<T>, kHeld = kSharedBytes / kWarps / int64_t{sizeof(T)};
  const int64_t warp_ids = divide_up(divide_up(a.cols, kRowWarps), kVector) * kVector;
  const int64_t kept = warp_ids < kHeld ? warp_ids : kHeld;
  launch_after_with_memory<sample_kernel<T, N>, true>(kept * kWarps * int64_t{sizeof(T)}, a.rows * kBlocks, kThreads,
                                                      kBlocks, stream, a, int(warp_ids), int(kept));
}

}  // namespace

void sample(const Sample& a, Stream stream) {
  if (a.rows == 0) return;
  with_dtype(a.dtype, [&]<typename T>() {
    aligned(a.x, a.x_stride, a.dtype, a.rows) ? launch_sample<T, kPerVector<T>>(a, stream)
                                              : launch_sample<T, 1>(a, stream);
  });
}

}  // namespace linear::cuda
