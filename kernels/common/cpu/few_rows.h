// Products of few rows with weights that are read once, y = x w^T + bias: what a decode step on the CPU consists of.
// Included by files that are compiled once per ISA.
#pragma once

#include "kernels/common/cpu/out_of_line.h"
#include "kernels/common/cpu/vec.h"

namespace kernels::HOTSWAP_ISA {

constexpr int64_t kPair = 2 * kLanes;  // elements of one step: one full-width load of 16-bit weights, two of float32
constexpr int64_t kAhead = 2048;       // bytes of software prefetch

struct FewRows {
  const float* x;    // [rows, in] float32, made by prepare_row()
  const void* w;     // [out, in], rows w_stride elements apart
  const void* bias;  // [out] or null
  void* y;           // [rows, out], rows y_stride elements apart
  int64_t in, w_stride, y_stride;
};

// Into the second cache, which has room for many more lines on their way than the first: 17 GB/s became 25 on one core.
HOTSWAP_INLINE void ask_for(const char* p) { __builtin_prefetch(p, 0, 2); }

struct Two {
  F a, b;
};
HOTSWAP_INLINE Two load_pair(const float* p) { return {load(p), load(p + kLanes)}; }
HOTSWAP_INLINE Two load_pair(const Half* p) { return {load(p), load(p + kLanes)}; }
// A bfloat16 is the upper half of a float: the even lanes by a shift, the odd ones by a mask, no widening.
HOTSWAP_INLINE Two load_pair(const BFloat16* p) {
  U u;
  __builtin_memcpy(&u, p, sizeof u);
  return {as_float(u << 16), as_float(u & 0xffff0000u)};
}

// x as float32 in the order in which outputs() reads it (bfloat16 pairs are split into even and odd lanes).
template <class T>
HOTSWAP_INLINE void prepare_row(float* to, const T* x, int64_t in) {
  int64_t i = 0;
  for (; i + kPair <= in; i += kPair) {
    const Two v = load_pair(x + i);
    store(to + i, v.a);
    store(to + i + kLanes, v.b);
  }
  for (; i < in; ++i) to[i] = to_float(x[i]);
}

// Outputs out, out + apart, ... of kRows rows: each weight vector is loaded once and used kRows times.
template <int kRows, int kOuts, class T>
HOTSWAP_INLINE void dot(const FewRows& a, int64_t out, int64_t apart) {
  const T* w = static_cast<const T*>(a.w) + out * a.w_stride;
  const int64_t w_apart = apart * a.w_stride;
  F s0[kOuts][kRows] = {}, s1[kOuts][kRows] = {};
  int64_t i = 0;
  for (; i + kPair <= a.in; i += kPair) {
#pragma GCC unroll 8
    for (int o = 0; o < kOuts; ++o) {
      const T* p = w + o * w_apart + i;
      ask_for(reinterpret_cast<const char*>(p) + kAhead);
      if constexpr (sizeof(T) == 4 && kLanes == 16) ask_for(reinterpret_cast<const char*>(p) + kAhead + 64);
      const Two v = load_pair(p);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        s0[o][r] += v.a * load(a.x + r * a.in + i);
        s1[o][r] += v.b * load(a.x + r * a.in + i + kLanes);
      }
    }
  }
  for (int o = 0; o < kOuts; ++o) {
    const float bias = a.bias == nullptr ? 0.f : to_float(static_cast<const T*>(a.bias)[out + o * apart]);
    for (int r = 0; r < kRows; ++r) {
      float total = sum(s0[o][r] + s1[o][r]);
      for (int64_t j = i; j < a.in; ++j) total += to_float(w[o * w_apart + j]) * a.x[r * a.in + j];
      static_cast<T*>(a.y)[r * a.y_stride + out + o * apart] = from_float<T>(total + bias);
    }
  }
}

// Outputs [begin, end) of kRows rows. A core that reads one stream of memory waits for it most of the time: the
// hardware prefetches within a 4 KiB page, one page a stream. So the outputs of a step lie in as many parts of the
// matrix: 13 GB/s become 22 on one core.
template <int kRows, class T>
HOTSWAP_OUT_OF_LINE void outputs(FewRows a, int64_t begin, int64_t end) {
  constexpr int kRegisters = kLanes == 16 ? 16 : 8, kOuts = kRegisters / 2 / kRows;  // two accumulators an output
  const int64_t part = (end - begin) / kOuts;
  for (int64_t out = begin; out < begin + part; ++out) dot<kRows, kOuts, T>(a, out, part);
  for (int64_t out = begin + part * kOuts; out < end; ++out) dot<kRows, 1, T>(a, out, 0);
}

// Of any number of rows, four at a time.
template <class T>
HOTSWAP_INLINE void outputs(FewRows a, int64_t rows, int64_t begin, int64_t end) {
  for (; rows > 0; rows -= 4) {
    if (rows == 1) return outputs<1, T>(a, begin, end);
    if (rows == 2) return outputs<2, T>(a, begin, end);
    if (rows == 3) return outputs<3, T>(a, begin, end);
    outputs<4, T>(a, begin, end);
    a.x += 4 * a.in;
    a.y = static_cast<T*>(a.y) + 4 * a.y_stride;
  }
}

}  // namespace kernels::HOTSWAP_ISA
