// Products of some rows with an expert's weights: too many for few_rows, whose sums lie along the inputs, too few for a
// GEMM, which would copy the weights for them. The rows are transposed, once; a vector is one input of kLanes rows,
// and a weight is read where it lies and multiplied with two or three of them. Compiled once per ISA.
#include "kernels/common/cpu/transpose.h"
#include "kernels/moe/cpu/kernels.h"

namespace moe::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

namespace {

constexpr int kOuts = kLanes == 16 ? 8 : 4;  // with three vectors of rows: 24 sums of 32 registers, 12 of 16
constexpr int kMostVecs = 3;
constexpr int64_t kLine = 16;  // floats
// A sum is one of sums of so many products: their roundings stay as few as a GEMM's, and what is read of the rows, 256
// KB at most, stays in L2 for all of a unit's outputs.
constexpr int64_t kInputs = 512;

// tile[o][row], of a.wide columns, becomes or grows by the sum over inputs [from, to) of w[o][i] columns[i][row]: of
// kRows weights' rows and kVecs vectors of rows.
template <int kRows, int kVecs>
HOTSWAP_INLINE void block(float* tile, const SomeRows& a, const float* w, int64_t row, int64_t from, int64_t to) {
  F sum[kRows][kVecs] = {};
  const float* x = a.columns + row;
  const auto step = [&](int64_t i) HOTSWAP_LAMBDA {
    F v[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) v[c] = load(x + i * a.wide + c * kLanes);
#pragma GCC unroll 8
    for (int o = 0; o < kRows; ++o) {
      const F left = w[o * a.in + i] - F{};  // not splat(), whose 0 + x is an instruction that may not be left out
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[o][c] += left * v[c];
    }
  };
  int64_t i = from;
  for (; i + kLine <= to; i += kLine) {
#pragma GCC unroll 8
    for (int o = 0; o < kRows; ++o) __builtin_prefetch(w + o * a.in + i + 8 * kLine);
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

template <int kRows>
HOTSWAP_INLINE void all_rows(float* tile, const SomeRows& a, const float* w, int64_t from, int64_t to) {
  const int64_t vecs = (a.count + kLanes - 1) / kLanes, blocks = (vecs + kMostVecs - 1) / kMostVecs;
  for (int64_t b = 0, done = 0; b < blocks; ++b) {
    const int64_t now = (vecs - done + blocks - b - 1) / (blocks - b), row = done * kLanes;  // in equal parts
    if (now == 3) block<kRows, 3>(tile, a, w, row, from, to);
    if (now == 2) block<kRows, 2>(tile, a, w, row, from, to);
    if (now == 1) block<kRows, 1>(tile, a, w, row, from, to);
    done += now;
  }
}

// y[row][out ...] = tile[...][row] + bias
template <class Count>
HOTSWAP_INLINE void put_back(const float* tile, const SomeRows& a, int64_t out, int64_t outs, Count count) {
  const F bias = a.bias == nullptr ? F{} : load(a.bias + out, count);
  for (int64_t row = 0; row < a.count; row += kLanes) {
    F v[kLanes];
#pragma GCC unroll 16
    for (int o = 0; o < kLanes; ++o) v[o] = o < outs ? load(tile + o * a.wide + row) : F{};
    transpose(v);
    for (int l = 0; l < kLanes && row + l < a.count; ++l) store(a.y + (row + l) * a.out + out, v[l] + bias, count);
  }
}

}  // namespace

void some_rows(const SomeRows& a, int64_t begin, int64_t end) {
  alignas(64) float tile[kOutputs * kSomeRows];
  const int64_t outs = end - begin;  // at most kOutputs
  for (int64_t from = 0; from < a.in; from += kInputs) {
    const int64_t to = a.in - from < kInputs ? a.in : from + kInputs;
    int64_t o = 0;
    for (; o + kOuts <= outs; o += kOuts) all_rows<kOuts>(tile + o * a.wide, a, a.w + (begin + o) * a.in, from, to);
    for (; o < outs; ++o) all_rows<1>(tile + o * a.wide, a, a.w + (begin + o) * a.in, from, to);
  }
  for (int64_t o = 0; o < outs; o += kLanes) {
    const int64_t left = outs - o < kLanes ? outs - o : kLanes;
    const float* of = tile + o * a.wide;
    left == kLanes ? put_back(of, a, begin + o, left, All{}) : put_back(of, a, begin + o, left, Part{int(left)});
  }
}

// to[i][lane ...] = rows[lane][i], zeros where there is no row.
void to_columns(float* to, int64_t wide, const float* const* rows, int64_t count, int64_t in) {
  sweep(in, [&](int64_t i, auto n) HOTSWAP_LAMBDA {
    for (int64_t row = 0; row < wide; row += kLanes) {
      F v[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) v[l] = row + l < count ? load(rows[row + l] + i, n) : F{};
      transpose(v);
      const int64_t left = in - i < kLanes ? in - i : kLanes;
      for (int64_t l = 0; l < left; ++l) store(to + (i + l) * wide + row, v[l]);
    }
  });
}

}  // namespace moe::HOTSWAP_ISA
