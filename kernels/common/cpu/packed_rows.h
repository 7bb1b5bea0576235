// Products of few rows with packed weights, y = x w^T + bias. A block's weights are used by all rows as they are
// decoded. Products and sums are float32 in an order that does not depend on the number of rows or threads: lanes along
// a slab of `in`, then the lanes, then slab after slab. Included by files that are compiled once per ISA.
#pragma once

#include "kernels/common/cpu/packed_arguments.h"
#include "kernels/common/cpu/packed_unpack.h"

namespace kernels::HOTSWAP_ISA {

constexpr int64_t kStreamedRows = 4;  // up to here rows use a block as it is decoded
constexpr int64_t kSlab = 1024;       // weights of an output whose products are added as vectors; then slabs are added

HOTSWAP_INLINE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// The sums of an output: with lanes of four two, so that none adds more than an eighth of `in` products.
constexpr int kSums = kLanes == 4 ? 2 : 1;
constexpr int sum_of_vector(int i) { return kSums == 1 ? 0 : i / kHalf; }  // i: of the vectors of a group
HOTSWAP_INLINE float total(const F (&s)[kSums]) {
  if constexpr (kSums == 1)
    return sum(s[0]);
  else
    return sum(s[0] + s[kSums - 1]);
}

// A number in memory of a type that is known at run time: once an output, not in the inner loop.
HOTSWAP_INLINE float number_at(const void* p, DType dtype, int64_t i) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(p)[i];
  if (dtype == DType::kBFloat16) return to_float(static_cast<const BFloat16*>(p)[i]);
  return to_float(static_cast<const Half*>(p)[i]);
}
HOTSWAP_INLINE void put_number(void* p, DType dtype, int64_t i, float v) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(p)[i] = v;
  } else if (dtype == DType::kBFloat16) {
    static_cast<BFloat16*>(p)[i] = from_float<BFloat16>(v);
  } else {
    static_cast<Half*>(p)[i] = from_float<Half>(v);
  }
}

// One slab's products of outputs out, out + apart, ...
template <int kRows, int kOuts, Packing kPacking>
HOTSWAP_INLINE void packed_slab(F (&s)[kOuts][kRows][kSums], const PackedProduct& a, const char* w, int64_t w_apart,
                                const float* x, int64_t slab) {
  constexpr int64_t kBytes = packed_bytes(kPacking), kAheadOfBlock = 1024, kLine = 64;
  constexpr int kGroups = packed_block(kPacking) / kPackedGroup;
  for (const char* last = w + slab / packed_block(kPacking) * kBytes; w < last; w += kBytes) {
    GroupFactors<kPacking> factors[kOuts];
    for (int o = 0; o < kOuts; ++o) factors[o] = factors_of<kPacking>(w + o * w_apart);
#pragma GCC unroll 8  // shifts by a constant are half of others
    for (int g = 0; g < kGroups; ++g, x += kPackedGroup) {
#pragma GCC unroll 8
      for (int o = 0; o < kOuts; ++o) {
        const char* block = w + o * w_apart;
        if (g * kLine < kBytes) __builtin_prefetch(block + kAheadOfBlock + g * kLine);
        F v[2 * kHalf];
        unpack<kPacking>(block, g, factors[o], v);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < 2 * kHalf; ++i) s[o][r][sum_of_vector(i)] += v[i] * load(x + r * a.in + i * kLanes);
        }
      }
    }
  }
}

template <int kRows, int kOuts, Packing kPacking>
HOTSWAP_INLINE void packed_dot(const PackedProduct& a, int64_t out, int64_t apart) {
  const char* w = static_cast<const char*>(a.w) + out * a.w_stride;
  float totals[kOuts][kRows];
  for (int64_t from = 0; from < a.in; from += kSlab) {
    F s[kOuts][kRows][kSums] = {};
    packed_slab<kRows, kOuts, kPacking>(s, a, w + from / packed_block(kPacking) * packed_bytes(kPacking),
                                        apart * a.w_stride, a.x + from, lesser(a.in - from, kSlab));
    for (int o = 0; o < kOuts; ++o) {
      for (int r = 0; r < kRows; ++r) totals[o][r] = from == 0 ? total(s[o][r]) : totals[o][r] + total(s[o][r]);
    }
  }
  for (int o = 0; o < kOuts; ++o) {
    const int64_t at = out + o * apart;
    const float bias = a.bias == nullptr ? 0.f : number_at(a.bias, a.dtype, at);
    for (int r = 0; r < kRows; ++r) put_number(a.y, a.dtype, r * a.y_stride + at, totals[o][r] + bias);
  }
}

// As in few_rows.h the outputs of a step lie in as many parts of the matrix, so that several pages are on their way.
template <int kRows, Packing kPacking>
HOTSWAP_OUT_OF_LINE void packed_outputs(PackedProduct a, int64_t begin, int64_t end) {
  constexpr int kOuts = (kLanes == 16 ? 8 : 4) / kRows;
  const int64_t part = (end - begin) / kOuts;
  for (int64_t out = begin; out < begin + part; ++out) packed_dot<kRows, kOuts, kPacking>(a, out, part);
  for (int64_t out = begin + part * kOuts; out < end; ++out) packed_dot<kRows, 1, kPacking>(a, out, 0);
}

// At most kStreamedRows of them.
template <Packing kPacking>
HOTSWAP_INLINE void packed_few(const PackedProduct& a, int64_t begin, int64_t end) {
  if (a.rows == 1) return packed_outputs<1, kPacking>(a, begin, end);
  if (a.rows == 2) return packed_outputs<2, kPacking>(a, begin, end);
  if (a.rows == 3) return packed_outputs<3, kPacking>(a, begin, end);
  packed_outputs<4, kPacking>(a, begin, end);
}

}  // namespace kernels::HOTSWAP_ISA
