// A decoder layer's step on a GPU: five launches, with packed weights up to seven; and the launch that a step begins
// with.
#include "kernels/common/gpu/gemv/few_rows.cuh"
#include "kernels/decode/cuda/decode.h"
#include "kernels/decode/cuda/packed_products.h"
#include "kernels/decode/cuda/products.h"
#include "kernels/decode/cuda/sm90_attend.cuh"
#include "kernels/decode/cuda/sm90_attend_tiles.cuh"

namespace decode::cuda {
namespace {

constexpr int kMaxGroup = 8;

// All of a layer's products take their weights past L1, or some do not.
bool past_l1(const Layer& a) {
  if (is_packed(a)) return true;
  bool all = true;
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)}) all = all && holds_x(product);
  return all;
}

template <class T>
void attend_any(const Layer& a, kernels::Stream stream) {
  const bool narrow = past_l1(a);
  const auto with_dim = [&]<int kDim, int kGroup>() {
    if (narrow && a.rows > 8) return attend_tiles<T, kDim, kGroup>(a, stream);
    if (narrow || a.rows > 8) return attend<T, kDim, kGroup, true>(a, stream);
    attend<T, kDim, kGroup, false>(a, stream);
  };
  const auto with_group = [&]<int kDim>() {
    const int64_t group = a.heads / a.kv_heads;
    if (group <= 1) return with_dim.template operator()<kDim, 1>();
    if (group <= 2) return with_dim.template operator()<kDim, 2>();
    if (group <= 4) return with_dim.template operator()<kDim, 4>();
    with_dim.template operator()<kDim, kMaxGroup>();
  };
  if (a.head_dim == 64) return with_group.template operator()<64>();
  with_group.template operator()<128>();
}

constexpr int kInputThreads = 128;

// A block's copy, by 16 bytes where memory allows it; else by two, of which every number is made.
__device__ __forceinline__ void copy_row(void* to, const void* from, int64_t bytes) {
  const auto by = [&]<class V>() {
    for (int64_t i = threadIdx.x; i < bytes / int64_t{sizeof(V)}; i += kInputThreads)
      static_cast<V*>(to)[i] = static_cast<const V*>(from)[i];
  };
  const bool whole = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | uintptr_t(bytes)) % 16 == 0;
  whole ? by.template operator()<uint4>() : by.template operator()<uint16_t>();
}

// A block a row, and one for the place. As torch does it, an id or a place that the table does not have ends the run.
__global__ void __launch_bounds__(kInputThreads) inputs_kernel(const Inputs a) {
  const int64_t row = blockIdx.x;
  const bool is_row = row < a.rows;
  grid_dependency_wait();
  launch_dependents();
  const int64_t at = is_row ? a.ids[row] : *a.length;
  if (at < 0 || at >= (is_row ? a.known : a.places)) __trap();
  if (is_row)
    copy_row(static_cast<char*>(a.x) + row * a.width, static_cast<const char*>(a.embedding) + at * a.width, a.width);
  else
    copy_row(a.row, static_cast<const char*>(a.rope) + at * a.rope_width, a.rope_width);
  if (is_row) return;
  __syncthreads();  // everybody has read the length
  if (threadIdx.x == 0) *a.place = at, *a.length = at + 1;
}

constexpr int kHeadWarps = 4;

// A warp a head: of queries first, then of keys and of values.
template <class T, int kDim>
__global__ void __launch_bounds__(32 * kHeadWarps) heads_kernel(const __grid_constant__ Heads a) {
  const int lane = threadIdx.x % 32, all = int(a.heads + 2 * a.kv_heads);
  const int64_t at = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / 32, row = at / all;
  if (row >= a.rows) return;
  const int head = int(at - row * all), key_head = head - int(a.heads);
  const bool is_query = key_head < 0, is_key = !is_query && key_head < int(a.kv_heads);
  grid_dependency_wait();
  const int64_t position = a.position[row * a.position_stride];
  if (position < 0 || position >= a.capacity) __trap();
  const auto kept = [&](const CacheRows& c, int which) {
    return static_cast<T*>(c.data) + row * c.batch + position * c.row + which * c.head;
  };
  Head<T, kDim> vector;
  if (!is_query && !is_key) {
    const int which = key_head - int(a.kv_heads);
    vector.load(static_cast<const T*>(a.v) + row * a.v_stride + which * kDim, lane);
    return vector.store(kept(a.values, which), lane);
  }
  const T* raw = is_query ? static_cast<const T*>(a.q) + row * a.q_stride + head * kDim
                          : static_cast<const T*>(a.k) + row * a.k_stride + key_head * kDim;
  const auto* weight = static_cast<const T*>(is_query ? a.q_norm : a.k_norm);
  HeadTables<T, kDim> tables;
  tables.load(static_cast<const T*>(a.cos) + row * a.rope_stride, static_cast<const T*>(a.sin) + row * a.rope_stride,
              lane);
  vector.load(raw, lane);
  if (weight != nullptr) {
    Head<T, kDim> norm;
    norm.load(weight, lane);
    vector.norm(norm, a.eps);
  }
  vector.rotate(tables);
  T* queries = static_cast<T*>(a.out) + (row * a.heads + head) * kDim;
  vector.store(is_query ? queries : kept(a.keys, key_head), lane);
}

bool cache_fits(const CacheRows& c) {
  return reinterpret_cast<uintptr_t>(c.data) % 16 == 0 && c.batch % 8 == 0 && c.row % 8 == 0 && c.head % 8 == 0;
}

const char* refuses_packed(const Layer& a) {
  if (!takes_packed_rows())
    return "plain weights on this GPU: packed ones need TMA and 200 KB of shared memory a block";
  if (a.rows > supported_packed_rows(a))
    return "all weights packed, gate and up alike, and as few rows as decoder_layer_packed_rows counts";
  const PackedProducts products(a);
  for (int i = 0; i < products.count; ++i)
    if (!fits_packed_rows(products.all[i])) return "norms and rows of x that begin at multiples of 16 bytes";
  return nullptr;
}

}  // namespace

const char* refuses(const Layer& a) {
  if (a.dtype == DType::kFloat32) return "bfloat16 or float16";
  if (a.head_dim != 64 && a.head_dim != 128) return "a head_dim of 64 or 128";
  if (a.heads > kMaxGroup * a.kv_heads) return "at most 8 query heads a key head";
  if (!cache_fits(a.keys) || !cache_fits(a.values)) return "caches whose rows begin at multiples of 16 bytes";
  if (is_packed(a)) return refuses_packed(a);
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)}) {
    if (!fits_few_rows(product)) {
      return "at most 16 rows, widths that are multiples of 8, weights that begin at multiples of 16 bytes, and x with "
             "its norm in 144 KB";
    }
  }
  return nullptr;
}

void heads(const Heads& a, kernels::Stream stream) {
  const int64_t warps = a.rows * (a.heads + 2 * a.kv_heads), blocks = (warps + kHeadWarps - 1) / kHeadWarps;
  const auto with = [&]<class T>() {
    launch_after(a.head_dim == 64 ? heads_kernel<T, 64> : heads_kernel<T, 128>, blocks, 32 * kHeadWarps, stream, a);
  };
  if (a.dtype == DType::kBFloat16) return with.template operator()<kernels::BFloat16>();
  with.template operator()<kernels::Half>();
}

void inputs(const Inputs& a, kernels::Stream stream) {
  launch_after_with_memory<inputs_kernel, /*kMaxShared=*/true>(/*bytes=*/0, a.rows + 1, kInputThreads, /*cluster=*/1,
                                                               stream, a);
}

// The weights of the first product may be what the launch before has written, where nobody says that they are not;
// those of the others, and what attention reads before it waits, are not: their launches begin when all before the
// launch before them is done.
void layer(const Layer& a, kernels::Stream stream) {
  const auto attend_to_all = [&] {
    if (a.dtype == DType::kBFloat16) return attend_any<kernels::BFloat16>(a, stream);
    attend_any<kernels::Half>(a, stream);
  };
  if (is_packed(a)) {
    const PackedProducts products(a);
    for (int i = 0; i < products.count; ++i) {
      if (i == products.qkv) attend_to_all();
      packed_product(products.all[i], stream);
    }
    return;
  }
  few_rows(qkv_of(a), stream);
  attend_to_all();
  few_rows(o_of(a), stream);
  few_rows(gated_of(a), stream);
  few_rows(down_of(a), stream);
}

}  // namespace decode::cuda
