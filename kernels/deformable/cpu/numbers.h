// What the CPU's kernels compute in: vectors of float for 32 and 16 bits (kernels/common/cpu/vec.h), and here the same
// for float64.
#pragma once

#include "kernels/common/cpu/vec.h"
#include "kernels/deformable/deformable.h"

namespace deformable::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;
using kernels::HOTSWAP_ISA::load;
using kernels::HOTSWAP_ISA::store;
using kernels::HOTSWAP_ISA::sum;

typedef double D __attribute__((vector_size(kVecBytes)));
typedef int64_t L __attribute__((vector_size(kVecBytes)));

// T as it lies in memory: summed in S, V at a time; W are V's lanes as whole numbers N.
template <class T>
struct Wide {
  using S = float;
  using V = F;
  using N = int32_t;
  using W = I;
};
template <>
struct Wide<double> {
  using S = double;
  using V = D;
  using N = int64_t;
  using W = L;
};
template <class T>
constexpr int kVector = kVecBytes / sizeof(typename Wide<T>::S);

HOTSWAP_INLINE D load(const double* p, All = {}) {
  D v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
HOTSWAP_INLINE D load(const double* p, Part part) {
  double full[kVecBytes / 8] = {};
  for (int i = 0; i < part.n; ++i) full[i] = p[i];
  return load(full);
}
HOTSWAP_INLINE void store(double* p, D v, All = {}) { __builtin_memcpy(p, &v, sizeof v); }
HOTSWAP_INLINE void store(double* p, D v, Part part) {
  for (int i = 0; i < part.n; ++i) p[i] = v[i];
}
HOTSWAP_INLINE double sum(D v) {
  double total = 0;
  for (int i = 0; i < int(kVecBytes / 8); ++i) total += v[i];
  return total;
}

// The sums of four vectors, side by side.
HOTSWAP_INLINE void sum_each(const F (&v)[4], float* out) {
#if HOTSWAP_AVX512
  // Each step halves the vectors: in the end each 16 bytes hold a part of all four sums.
  constexpr __mmask16 kAll = kAllLanes;
  const auto pair = [](F a, F b) HOTSWAP_LAMBDA {
    return _mm512_maskz_unpacklo_ps(kAll, (__m512)a, (__m512)b) + _mm512_maskz_unpackhi_ps(kAll, (__m512)a, (__m512)b);
  };
  const __m512 low = pair(v[0], v[1]), high = pair(v[2], v[3]);  // 0 1 0 1, 2 3 2 3
  const __m512 all = _mm512_maskz_shuffle_ps(kAll, low, high, 0x44) + _mm512_maskz_shuffle_ps(kAll, low, high, 0xee);
  const __m256 half =
      _mm512_castps512_ps256(all) + _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(all), 1));
  _mm_storeu_ps(out, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
#elif HOTSWAP_AVX2
  const auto pair = [](F a, F b) HOTSWAP_LAMBDA {
    return _mm256_unpacklo_ps((__m256)a, (__m256)b) + _mm256_unpackhi_ps((__m256)a, (__m256)b);
  };
  const __m256 low = pair(v[0], v[1]), high = pair(v[2], v[3]);
  const __m256 all = _mm256_shuffle_ps(low, high, 0x44) + _mm256_shuffle_ps(low, high, 0xee);
  _mm_storeu_ps(out, _mm256_castps256_ps128(all) + _mm256_extractf128_ps(all, 1));
#else
  for (int k = 0; k < 4; ++k) out[k] = sum(v[k]);
#endif
}
HOTSWAP_INLINE void sum_each(const D (&v)[4], double* out) {
  for (int k = 0; k < 4; ++k) out[k] = sum(v[k]);
}

// fn(i, count) for vectors of T from 0 to n.
template <class T, class Fn>
HOTSWAP_INLINE void vectors(int64_t n, Fn fn) {
  constexpr int kStep = kVector<T>;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) fn(i, All{});
  if (i < n) fn(i, Part{int(n - i)});
}

HOTSWAP_INLINE int64_t size_of(Number type) { return type == Number::kFloat64 ? 8 : type == Number::kFloat32 ? 4 : 2; }
// The lines of n numbers at `at` into the cache, before they are read or written.
template <int kWrite>
HOTSWAP_INLINE void fetch(const void* data, Number type, int64_t at, int64_t n) {
  const int64_t size = size_of(type), begin = int64_t(data) + at * size;
  for (int64_t line = 0; line < n * size; line += 64) __builtin_prefetch((const void*)(begin + line), kWrite);
}

// n numbers at `at`, in S: where they lie, or in `buffer`.
template <class S>
static const S* read_numbers(const void* data, Number type, int64_t at, int64_t n, S* buffer) {
  const S* found = buffer;
  with_number(type, [&]<typename T>() {
    if constexpr (__is_same(T, S)) {
      found = static_cast<const T*>(data) + at;
    } else if constexpr (!__is_same(T, double) && !__is_same(S, double)) {
      vectors<T>(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
        store(buffer + i, load(static_cast<const T*>(data) + at + i, count), count);
      });
    }
  });
  return found;
}
// The other way round.
template <class S>
static void write_numbers(void* data, Number type, int64_t at, int64_t n, const S* from) {
  with_number(type, [&]<typename T>() {
    if constexpr (__is_same(T, double) == __is_same(S, double)) {
      vectors<T>(n, [&](int64_t i, auto count)
                        HOTSWAP_LAMBDA { store(static_cast<T*>(data) + at + i, load(from + i, count), count); });
    }
  });
}

}  // namespace deformable::HOTSWAP_ISA
