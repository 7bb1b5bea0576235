// What tests of emulated kernels share: elements of each type, shapes, bounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/common/gpu/tile/pack.cuh"
#include "kernels/common/testing/emulated/cuda_runtime.h"

namespace emulated {

using kernels::DType;
using kernels::gpu::from_float;
using kernels::gpu::to_float;

inline constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kMixed};

// Elements of a type, after one that is not used where `shift` is 1: then no row begins at a whole vector.
class Elements {
 public:
  Elements(DType type, int64_t count, int64_t shift = 0) : type_(type), shift_(shift) {
    bytes_.resize((count + 2 * shift + 8) * 4, 0x7f);
  }
  void* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (16 - at % 16) % 16 + shift_ * kernels::size_of(type_);
  }
  double get(int64_t i) {
    double out = 0;
    kernels::with_dtype(type_, [&]<typename T>() { out = to_float(static_cast<T*>(data())[i]); });
    return out;
  }
  void set(int64_t i, double v) {
    kernels::with_dtype(type_, [&]<typename T>() { static_cast<T*>(data())[i] = from_float<T>(float(v)); });
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  DType type_;
  int64_t shift_;
  std::vector<char> bytes_;
};

inline Elements random(std::mt19937& draw, DType type, int64_t count, int64_t shift = 0, double size = 1) {
  Elements out(type, count, shift);
  std::uniform_real_distribution<double> uniform(-size, size);
  for (int64_t i = 0; i < count; ++i) out.set(i, uniform(draw));
  return out;
}

// One rounding to the type, and float32's arithmetic: sums of `terms` terms of about 1, each rounded.
inline double bound(DType type, double value, int64_t terms) {
  const double unit = type == DType::kFloat32 ? 0x1p-23 : type == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  return unit * (std::abs(value) + 0x1p-10) + 0x1p-22 * (4 + std::sqrt(double(terms))) * (1 + std::abs(value));
}

// The rounding of a value to the type, no more than half of its last bit, and what float16 loses below its normal
// values.
inline double rounding(DType type, double value) {
  const double half = type == DType::kFloat32 ? 0x1p-24 : type == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  return half * std::abs(value) + (type == DType::kFloat16 ? 0x1p-25 : 0.);
}

// `run` returns the bytes that it made: with the threads of bfloat16's blocks in other orders they are the same.
template <class Run>
void expect_same_in_every_order(DType type, const Run& run) {
  order = Order::kAscending;
  const auto first = run();
  for (const Order other : {Order::kDescending, Order::kMixed}) {
    if (type != DType::kBFloat16) break;
    order = other;
    EXPECT_TRUE(run() == first) << "threads in another order have other bits";
  }
  order = Order::kAscending;
}

struct Shape {
  int64_t rows, cols, group, shift;
};

}  // namespace emulated
