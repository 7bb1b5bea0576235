// A decoder layer's step on a GPU: five launches.
#include "kernels/common/gpu/few_rows.cuh"
#include "kernels/decode/attend.cuh"
#include "kernels/decode/attend_tiles.cuh"
#include "kernels/decode/decode_cuda.h"
#include "kernels/decode/products.h"

namespace decode::cuda {
namespace {

constexpr int kMostGroup = 8;

// past_l1: all of a layer's products take their weights past L1.
template <class T>
void attend_any(const Layer& a, bool past_l1, kernels::Stream stream) {
  const auto with_dim = [&]<int kDim, int kGroup>() {
    if (past_l1 && a.rows > 8) return attend_tiles<T, kDim, kGroup>(a, stream);
    if (past_l1 || a.rows > 8) return attend<T, kDim, kGroup, true>(a, stream);
    attend<T, kDim, kGroup, false>(a, stream);
  };
  const auto with_group = [&]<int kDim>() {
    const int64_t group = a.heads / a.kv_heads;
    if (group <= 1) return with_dim.template operator()<kDim, 1>();
    if (group <= 2) return with_dim.template operator()<kDim, 2>();
    if (group <= 4) return with_dim.template operator()<kDim, 4>();
    with_dim.template operator()<kDim, kMostGroup>();
  };
  if (a.head_dim == 64) return with_group.template operator()<64>();
  with_group.template operator()<128>();
}

bool cache_fits(const CacheRows& c) {
  return reinterpret_cast<uintptr_t>(c.data) % 16 == 0 && c.batch % 8 == 0 && c.row % 8 == 0 && c.head % 8 == 0;
}

}  // namespace

const char* refuses(const Layer& a) {
  if (a.dtype == DType::kFloat32) return "bfloat16 or float16";
  if (a.head_dim != 64 && a.head_dim != 128) return "heads of 64 or 128 numbers";
  if (a.heads > kMostGroup * a.kv_heads) return "at most 8 query heads a key head";
  if (!cache_fits(a.keys) || !cache_fits(a.values)) return "caches whose rows begin at multiples of 16 bytes";
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)}) {
    if (!fits_few_rows(product)) {
      return "at most 16 rows, widths that are multiples of 8, weights that begin at multiples of 16 bytes, and x with "
             "its norm in 144 KB";
    }
  }
  return nullptr;
}

// The weights of the first product may be what the launch before has written; those of the others, and what attention
// reads before it waits, are not: their launches begin when all before the launch before them is done.
void layer(const Layer& a, kernels::Stream stream) {
  bool past_l1 = true;
  for (const FewRows& product : {qkv_of(a), o_of(a), gated_of(a), down_of(a)})
    past_l1 = past_l1 && (holds_x(product) || takes_ring(product));
  const auto multiply = [&](FewRows product) {
    product.through_l1 = !past_l1;
    few_rows(product, stream);
  };
  multiply(qkv_of(a));
  if (a.dtype == DType::kBFloat16)
    attend_any<kernels::BFloat16>(a, past_l1, stream);
  else
    attend_any<kernels::Half>(a, past_l1, stream);
  multiply(o_of(a));
  multiply(gated_of(a));
  multiply(down_of(a));
}

}  // namespace decode::cuda
