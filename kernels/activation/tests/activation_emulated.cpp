// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/activation/cuda/activation.cu"
#include "kernels/common/testing/emulated/elements.h"

namespace {

using namespace emulated;
using activation::Function;

double value_of(Function f, double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  switch (f) {
    case Function::kSilu:
      return x / (1 + std::exp(-x));
    case Function::kGelu:
      return x * .5 * std::erfc(-x / std::sqrt(2.));
    case Function::kGeluTanh:
      return x / (1 + std::exp(-2 * u));
    case Function::kGeluQuick:
      return x / (1 + std::exp(-1.702 * x));
    case Function::kReluSquared:
      return x > 0 ? x * x : 0;
  }
  return 0;
}
double slope_of(Function f, double x) {  // central differences of float64: 1e-9
  if (f == Function::kReluSquared) return x > 0 ? 2 * x : 0;
  return (value_of(f, x + 1e-5) - value_of(f, x - 1e-5)) / 2e-5;
}

constexpr Function kFunctions[] = {Function::kSilu, Function::kGelu, Function::kGeluTanh, Function::kGeluQuick,
                                   Function::kReluSquared};
// Whole vectors and not, a tail, several blocks of a row.
constexpr Shape kShapes[] = {{1, 1, 1, 0},       {3, 8, 8, 0}, {5, 24, 24, 0},    {1, 1003, 1003, 0},
                             {3, 2056, 2056, 0}, {4, 7, 7, 0}, {2, 1024, 1024, 1}};

TEST(Emulated, Activations) {
  std::mt19937 draw(13);
  for (const Function f : kFunctions) {
    for (const Shape& s : kShapes) {
      for (const DType type : kTypes) {
        SCOPED_TRACE(testing::Message() << "function " << int(f) << " " << s.rows << "x" << s.cols << " shift "
                                        << s.shift << " type " << int(type));
        const int64_t n = s.rows * s.cols;
        Elements x = random(draw, type, n, s.shift, 5), dy = random(draw, type, n, s.shift), y(type, n, s.shift),
                 dx(type, n, s.shift);
        activation::Unary a{.out = y.data(),
                            .x = x.data(),
                            .dy = nullptr,
                            .cols = s.cols,
                            .numel = n,
                            .x_stride = s.cols,
                            .dy_stride = s.cols,
                            .function = f,
                            .dtype = type,
                            .stream = false};
        activation::cuda::unary(a, s.rows, nullptr);
        a.out = dx.data(), a.dy = dy.data();
        activation::cuda::unary(a, s.rows, nullptr);
        for (int64_t i = 0; i < n; ++i) {
          const double value = value_of(f, x.get(i)), slope = dy.get(i) * slope_of(f, x.get(i));
          ASSERT_NEAR(y.get(i), value, bound(type, value, 1)) << i;
          ASSERT_NEAR(dx.get(i), slope, bound(type, slope, 1) + 1e-6) << i;
        }
      }
    }
  }
}

TEST(Emulated, ActivationsAndMul) {
  std::mt19937 draw(14);
  for (const Function f : {Function::kSilu, Function::kGelu, Function::kGeluTanh}) {
    for (const Shape& s : kShapes) {
      for (const DType type : kTypes) {
        SCOPED_TRACE(testing::Message() << "function " << int(f) << " " << s.rows << "x" << s.cols << " shift "
                                        << s.shift << " type " << int(type));
        const int64_t n = s.rows * s.cols;
        Elements x = random(draw, type, 2 * n, s.shift, 4), dy = random(draw, type, n, s.shift), y(type, n, s.shift),
                 dx(type, 2 * n, s.shift);
        activation::AndMul a{.out = y.data(),
                             .x = x.data(),
                             .dy = nullptr,
                             .cols = s.cols,
                             .x_stride = 2 * s.cols,
                             .dy_stride = s.cols,
                             .function = f,
                             .dtype = type,
                             .stream = false};
        activation::cuda::and_mul(a, s.rows, nullptr);
        a.out = dx.data(), a.dy = dy.data();
        activation::cuda::and_mul(a, s.rows, nullptr);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = i / s.cols * 2 * s.cols + i % s.cols;
          const double gate = x.get(at), up = x.get(at + s.cols), d = dy.get(i);
          const double value = value_of(f, gate) * up, dgate = d * up * slope_of(f, gate), dup = d * value_of(f, gate);
          ASSERT_NEAR(y.get(i), value, bound(type, value, 1)) << i;
          ASSERT_NEAR(dx.get(at), dgate, bound(type, dgate, 1) + 1e-6) << i;
          ASSERT_NEAR(dx.get(at + s.cols), dup, bound(type, dup, 1)) << i;
        }
      }
    }
  }
}

}  // namespace
