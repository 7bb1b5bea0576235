// Products of some rows with an expert's weights: too many for few_rows, whose sums lie along the inputs, too few for a
// GEMM, which would copy the weights for them. The rows are transposed, once; a vector is one input of kLanes rows,
// and a weight is read where it lies and multiplied with two or three of them. Of bfloat16 by pairs
// (common/cpu/pairs.h) a lane and a weight are two numbers each. Compiled once per ISA.
#include "kernels/common/cpu/pairs.h"
#include "kernels/common/cpu/transpose.h"
#include "kernels/moe/cpu/kernels.h"

namespace moe::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

namespace {

constexpr int kOuts = kLanes == 16 ? 8 : 4;  // with three vectors of rows: 24 sums of 32 registers, 12 of 16
constexpr int kMaxVecs = 3;
constexpr int64_t kLine = 16;  // steps
// A sum is one of sums of so many products: their roundings stay as few as a GEMM's.
constexpr int64_t kInputs = 512;

// fn(first row, vectors) of each block of up to kMaxVecs vectors of rows, in equal parts. A block's columns lie
// together, so that what is read of it is one stream.
template <class Fn>
HOTSWAP_INLINE void for_blocks(int64_t count, const Fn& fn) {
  const int64_t vecs = (count + kLanes - 1) / kLanes, blocks = (vecs + kMaxVecs - 1) / kMaxVecs;
  for (int64_t b = 0, done = 0; b < blocks; ++b) {
    const int64_t now = (vecs - done + blocks - b - 1) / (blocks - b);
    fn(done * kLanes, now);
    done += now;
  }
}

// tile[o][row], of a.wide columns, becomes or grows by the sum over steps [from, to) of w[o][i] columns[i][row]: of
// kRows weights' rows and kVecs vectors of rows. next[o][i]: weights that are wanted afterwards.
template <int kRows, int kVecs>
HOTSWAP_INLINE void block(float* tile, const SomeRows& a, const float* w, const float* next, int64_t row, int64_t from,
                          int64_t to) {
  F sum[kRows][kVecs] = {};
  const float* x = a.columns + row * a.steps;
  const auto step = [&](int64_t i) HOTSWAP_LAMBDA {
    F v[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) v[c] = load(x + (i * kVecs + c) * kLanes);
#pragma GCC unroll 8
    for (int o = 0; o < kRows; ++o) {
      const F left = w[o * a.steps + i] - F{};  // not splat(), whose 0 + x is an instruction that may not be left out
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[o][c] += left * v[c];
    }
  };
  int64_t i = from;
  for (; i + kLine <= to; i += kLine) {
#pragma GCC unroll 8
    for (int o = 0; o < kRows; ++o) __builtin_prefetch(next + o * a.steps + i, 0, 2);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kLine; ++j) step(i + j);
  }
  for (; i < to; ++i) step(i);
#pragma GCC unroll 8
  for (int o = 0; o < kRows; ++o) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      float* at = tile + o * a.wide + row + c * kLanes;
      store(at, from == 0 ? sum[o][c] : load(at) + sum[o][c]);
    }
  }
}

#if HOTSWAP_AVX512
template <int kRows, int kVecs>
HOTSWAP_PAIRS static void block(float* tile, const SomeRows& a, const uint32_t* w, const uint32_t* next, int64_t row,
                                int64_t from, int64_t to) {
  __m512 sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int o = 0; o < kRows; ++o) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) sum[o][c] = _mm512_setzero_ps();
  }
  const float* x = a.columns + row * a.steps;
  for (int64_t i = from; i < to;) {
#pragma GCC unroll 8
    for (int o = 0; o < kRows; ++o) __builtin_prefetch(next + o * a.steps + i, 0, 2);
    for (const int64_t end = i + kLine < to ? i + kLine : to; i < end; ++i) {
      __m512bh v[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) v[c] = (__m512bh)load(x + (i * kVecs + c) * kLanes);
#pragma GCC unroll 8
      for (int o = 0; o < kRows; ++o) {
        int pair;  // two bfloat16, where they lie
        __builtin_memcpy(&pair, w + o * a.steps + i, sizeof pair);
        const auto left = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) sum[o][c] = _mm512_dpbf16_ps(sum[o][c], left, v[c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kRows; ++o) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      float* at = tile + o * a.wide + row + c * kLanes;
      store(at, from == 0 ? (F)sum[o][c] : load(at) + (F)sum[o][c]);
    }
  }
}
#else  // of float32 alone
template <int kRows, int kVecs>
HOTSWAP_INLINE void block(float*, const SomeRows&, const uint32_t*, const uint32_t*, int64_t, int64_t, int64_t) {}
#endif

template <int kRows, class Step>
HOTSWAP_INLINE void all_rows(float* tile, const SomeRows& a, const Step* w, int64_t most) {
  for_blocks(a.count, [&](int64_t row, int64_t vecs) HOTSWAP_LAMBDA {
    for (int64_t from = 0; from < a.steps; from += most) {
      const int64_t to = a.steps - from < most ? a.steps : from + most;
      const Step* next = w + kRows * a.steps;
      if (vecs == 3) block<kRows, 3>(tile, a, w, next, row, from, to);
      if (vecs == 2) block<kRows, 2>(tile, a, w, next, row, from, to);
      if (vecs == 1) block<kRows, 1>(tile, a, w, next, row, from, to);
    }
  });
}

// y[row][out ...] = tile[...][row] + bias
template <class T, class Count>
HOTSWAP_INLINE void put_back(const float* tile, const SomeRows& a, int64_t out, int64_t outs, Count count) {
  const F bias = a.bias == nullptr ? F{} : load(static_cast<const T*>(a.bias) + out, count);
  for (int64_t row = 0; row < a.count; row += kLanes) {
    F v[kLanes];
#pragma GCC unroll 16
    for (int o = 0; o < kLanes; ++o) v[o] = o < outs ? load(tile + o * a.wide + row) : F{};
    transpose(v);
    for (int l = 0; l < kLanes && row + l < a.count; ++l)
      store(static_cast<T*>(a.y) + (row + l) * a.out + out, v[l] + bias, count);
  }
}

template <class T, class Step>
HOTSWAP_INLINE void outputs(const SomeRows& a, int64_t begin, int64_t end) {
  constexpr int64_t kSteps = kInputs * sizeof(T) / sizeof(Step);
  alignas(64) float tile[kOutputs * kSomeRows];
  const Step* w = static_cast<const Step*>(a.w) + begin * a.steps;
  const int64_t outs = end - begin;  // at most kOutputs
  int64_t o = 0;
  for (; o + kOuts <= outs; o += kOuts) all_rows<kOuts>(tile + o * a.wide, a, w + o * a.steps, kSteps);
  for (; o < outs; ++o) all_rows<1>(tile + o * a.wide, a, w + o * a.steps, kSteps);
  for (int64_t o = 0; o < outs; o += kLanes) {
    const int64_t left = outs - o < kLanes ? outs - o : kLanes;
    const float* of = tile + o * a.wide;
    left == kLanes ? put_back<T>(of, a, begin + o, left, All{}) : put_back<T>(of, a, begin + o, left, Part{int(left)});
  }
}

}  // namespace

void some_rows(const SomeRows& a, int64_t begin, int64_t end) {
  a.dtype == DType::kFloat32 ? outputs<float, float>(a, begin, end) : outputs<BFloat16, uint32_t>(a, begin, end);
}

// to[block][i][lane ...] = rows[block's first + lane][i], zeros where there is no row. (A pair is moved as a float is.)
void to_columns(float* to, const float* const* rows, int64_t count, int64_t steps) {
  sweep(steps, [&](int64_t i, auto n) HOTSWAP_LAMBDA {
    for_blocks(count, [&](int64_t first, int64_t vecs) HOTSWAP_LAMBDA {
      for (int64_t c = 0; c < vecs; ++c) {
        const int64_t row = first + c * kLanes;
        F v[kLanes];
#pragma GCC unroll 16
        for (int l = 0; l < kLanes; ++l) v[l] = row + l < count ? load(rows[row + l] + i, n) : F{};
        transpose(v);
        const int64_t left = steps - i < kLanes ? steps - i : kLanes;
        for (int64_t l = 0; l < left; ++l) store(to + first * steps + ((i + l) * vecs + c) * kLanes, v[l]);
      }
    });
  });
}

}  // namespace moe::HOTSWAP_ISA
