// Products of few rows with an expert's weights, which are read once: what a decode step does. Compiled once per ISA.
#include "kernels/common/cpu/few_rows.h"
#include "kernels/common/cpu/pairs.h"
#include "kernels/moe/cpu/kernels.h"

namespace moe::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

namespace {

HOTSWAP_INLINE float bias_of(const FewRows& a, int64_t out) {
  float b = 0;
  if (a.bias != nullptr)
    with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA { b = to_float(static_cast<const T*>(a.bias)[out]); });
  return b;
}

// Weights [out, in]. Outputs out, out + apart, ...: a core that reads one stream of memory waits for it most of the
// time, so those of a step lie in as many places.
template <int kRows, int kOuts, class T>
HOTSWAP_INLINE void dots(const FewRows& a, int64_t row, int64_t out, int64_t apart) {
  const float* x = a.rows + row * a.in;
  const T* w = static_cast<const T*>(a.w) + out * a.in;
  F sum[kOuts][kRows] = {};
  int64_t i = 0;
  for (; i + kPair <= a.in; i += kPair) {
#pragma GCC unroll 8
    for (int o = 0; o < kOuts; ++o) {
      const T* p = w + o * apart * a.in + i;
      ask_for(reinterpret_cast<const char*>(p) + kAhead);
      if constexpr (sizeof(T) == 4 && kLanes == 16) ask_for(reinterpret_cast<const char*>(p) + kAhead + 64);
      const Two v = load_pair(p);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[o][r] += v.a * load(x + r * a.in + i);
        sum[o][r] += v.b * load(x + r * a.in + i + kLanes);
      }
    }
  }
  for (int o = 0; o < kOuts; ++o) {
    const float bias = bias_of(a, out + o * apart);
    for (int r = 0; r < kRows; ++r) {
      float total = kernels::HOTSWAP_ISA::sum(sum[o][r]);
      for (int64_t j = i; j < a.in; ++j) total += to_float(w[o * apart * a.in + j]) * x[r * a.in + j];
      static_cast<T*>(a.y)[(row + r) * a.out + out + o * apart] = from_float<T>(total + bias);
    }
  }
}

template <class T>
HOTSWAP_INLINE void widen_row(float* to, const T* from, int64_t n, bool in_pairs) {
  int64_t i = 0;
  for (; in_pairs && i + kPair <= n; i += kPair) {
    const Two v = load_pair(from + i);
    store(to + i, v.a);
    store(to + i + kLanes, v.b);
  }
  sweep(n - i, [&](int64_t j, auto count) HOTSWAP_LAMBDA { store(to + i + j, load(from + i + j, count), count); });
}

template <int kRows, class T>
HOTSWAP_OUT_OF_LINE void by_outputs(FewRows a, int64_t row, int64_t begin, int64_t end) {
  constexpr int kOuts = kRows == 1 ? 8 : kRows == 2 ? 6 : kRows == 3 ? 5 : kRows == 4 ? 4 : kRows <= 6 ? 3 : 2;
  const int64_t part = (end - begin) / kOuts;
  for (int64_t out = begin; out < begin + part; ++out) dots<kRows, kOuts, T>(a, row, out, part);
  for (int64_t out = begin + part * kOuts; out < end; ++out) dots<kRows, 1, T>(a, row, out, 0);
}

#if HOTSWAP_AVX512
// The same by pairs of bfloat16, of rows as they come: half the loads and half the products.
template <int kRows, int kOuts, bool kWhole>
HOTSWAP_PAIRS __attribute__((always_inline)) static inline void pairs_step(__m512 (&sum)[kOuts][kRows],
                                                                           const BFloat16* x, const BFloat16* w,
                                                                           int64_t in, int64_t apart, __mmask32 there) {
  const auto* left = reinterpret_cast<const char*>(w);
  __m512bh v[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    v[r] = (__m512bh)(kWhole ? _mm512_loadu_si512(x + r * in) : _mm512_maskz_loadu_epi16(there, x + r * in));
#pragma GCC unroll 8
  for (int o = 0; o < kOuts; ++o) {
    const char* p = left + o * apart * in * int64_t{sizeof(BFloat16)};
    __builtin_prefetch(p + kAhead, 0, 2);
    const auto of = (__m512bh)(kWhole ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(there, p));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[o][r] = _mm512_dpbf16_ps(sum[o][r], of, v[r]);
  }
}

template <int kRows, int kOuts>
HOTSWAP_PAIRS static void pairs_dots(const FewRows& a, int64_t row, int64_t out, int64_t apart) {
  const BFloat16 *x = a.narrow + row * a.in, *w = static_cast<const BFloat16*>(a.w) + out * a.in;
  __m512 sum[kOuts][kRows];
#pragma GCC unroll 8
  for (int o = 0; o < kOuts; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[o][r] = _mm512_setzero_ps();
  }
  int64_t i = 0;
  for (; i + kPair <= a.in; i += kPair) pairs_step<kRows, kOuts, true>(sum, x + i, w + i, a.in, apart, 0);
  if (i < a.in)
    pairs_step<kRows, kOuts, false>(sum, x + i, w + i, a.in, apart, __mmask32((uint64_t{1} << (a.in - i)) - 1));
#pragma GCC unroll 8
  for (int o = 0; o < kOuts; ++o) {
    const float bias = bias_of(a, out + o * apart);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      static_cast<BFloat16*>(a.y)[(row + r) * a.out + out + o * apart] =
          from_float<BFloat16>(kernels::HOTSWAP_ISA::sum((F)sum[o][r]) + bias);
  }
}

template <int kRows>
HOTSWAP_PAIRS static void pairs_by_outputs(const FewRows& a, int64_t row, int64_t begin, int64_t end) {
  constexpr int kOuts = kRows == 1 ? 8 : kRows == 2 ? 6 : kRows == 3 ? 5 : kRows == 4 ? 4 : kRows <= 6 ? 3 : 2;
  const int64_t part = (end - begin) / kOuts;
  for (int64_t out = begin; out < begin + part; ++out) pairs_dots<kRows, kOuts>(a, row, out, part);
  for (int64_t out = begin + part * kOuts; out < end; ++out) pairs_dots<kRows, 1>(a, row, out, 0);
}
#else  // nobody gives narrow rows
template <int kRows>
HOTSWAP_INLINE void pairs_by_outputs(const FewRows&, int64_t, int64_t, int64_t) {}
#endif

// Weights [in, out]: vectors along the outputs.
template <int kRows, int kVecs, class T, class Count>
HOTSWAP_INLINE void sums(const FewRows& a, int64_t row, int64_t out, Count count) {
  constexpr int64_t kRowsAhead = 12;
  const float* x = a.rows + row * a.in;
  const T* w = static_cast<const T*>(a.w) + out;
  F sum[kRows][kVecs] = {};
  for (int64_t i = 0; i < a.in; ++i, w += a.out) {
    ask_for(reinterpret_cast<const char*>(w + kRowsAhead * a.out));
    F v[kVecs];
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) v[c] = load(w + c * kLanes, count);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F left = splat<F>(x[r * a.in + i]);
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) sum[r][c] += left * v[c];
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kVecs; ++c) {
    const T* bias = static_cast<const T*>(a.bias) + out + c * kLanes;
    const F b = a.bias == nullptr ? F{} : load(bias, count);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      store(static_cast<T*>(a.y) + (row + r) * a.out + out + c * kLanes, sum[r][c] + b, count);
  }
}

template <int kRows, class T>
HOTSWAP_OUT_OF_LINE void by_inputs(FewRows a, int64_t row, int64_t begin, int64_t end) {
  constexpr int kVecs = 4;
  int64_t out = begin;
  for (; out + kVecs * kLanes <= end; out += kVecs * kLanes) sums<kRows, kVecs, T>(a, row, out, All{});
  for (; out + kLanes <= end; out += kLanes) sums<kRows, 1, T>(a, row, out, All{});
  if (out < end) sums<kRows, 1, T>(a, row, out, Part{int(end - out)});
}

template <class T>
HOTSWAP_INLINE void rows(const FewRows& a, int64_t begin, int64_t end) {
  // Rows that use a weight as it is read: what there are registers for. Along 16-bit inputs that are widened more than
  // four are slower: the rows' own loads, in float32, are then most of the work.
  constexpr bool kMany = kLanes == 16;
  const bool pairs = a.narrow != nullptr;
  const int64_t most = kMany && (pairs || a.by_inputs || sizeof(T) == 4) ? 8 : 4, passes = (a.count + most - 1) / most;
  for (int64_t pass = 0, row = 0; pass < passes; ++pass) {
    const int64_t now = (a.count - row + passes - pass - 1) / (passes - pass);  // in equal parts
    const auto some = [&]<int kRows>() HOTSWAP_LAMBDA {
      if (now != kRows) return;
      if (pairs) return pairs_by_outputs<kRows>(a, row, begin, end);
      a.by_inputs ? by_inputs<kRows, T>(a, row, begin, end) : by_outputs<kRows, T>(a, row, begin, end);
    };
    some.template operator()<1>();
    some.template operator()<2>();
    some.template operator()<3>();
    some.template operator()<4>();
    if constexpr (kMany) {
      some.template operator()<5>();
      some.template operator()<6>();
      some.template operator()<7>();
      some.template operator()<8>();
    }
    row += now;
  }
}

}  // namespace

void widen(float* to, const void* from, DType dtype, int64_t n, bool by_inputs) {
  with_dtype(dtype, [&]<typename T>() { widen_row(to, static_cast<const T*>(from), n, !by_inputs); });
}

void few_rows(const FewRows& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() { rows<T>(a, begin, end); });
}

}  // namespace moe::HOTSWAP_ISA
