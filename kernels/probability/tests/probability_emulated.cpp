// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"

// Dynamic shared memory of the kernels in the .cu files below.
namespace probability::gpu {
alignas(16) thread_local uint4 softmax_ring[emulated::kMaxElements];
alignas(16) thread_local uint4 logits_ring[emulated::kMaxElements];
}  // namespace probability::gpu
#include "kernels/probability/cuda/divergence.cu"
#include "kernels/probability/cuda/softmax.cu"

namespace {

using namespace emulated;
using probability::Kind;

std::vector<double> softmax_of(Elements& x, int64_t first, int64_t cols) {
  std::vector<double> out(cols);
  double max = -INFINITY, sum = 0;
  for (int64_t c = 0; c < cols; ++c) max = std::max(max, x.get(first + c));
  for (int64_t c = 0; c < cols; ++c) sum += out[c] = std::exp(x.get(first + c) - max);
  for (double& v : out) v /= sum;
  return out;
}

std::vector<double> sparsemax_of(Elements& x, int64_t first, int64_t cols) {
  std::vector<double> sorted(cols), out(cols);
  for (int64_t c = 0; c < cols; ++c) sorted[c] = x.get(first + c);
  std::sort(sorted.rbegin(), sorted.rend());
  double sum = 0, threshold = 0;
  for (int64_t k = 0; k < cols; ++k) {
    sum += sorted[k];
    if (sorted[k] * double(k + 1) > sum - 1) threshold = (sum - 1) / double(k + 1);
  }
  for (int64_t c = 0; c < cols; ++c) out[c] = std::max(x.get(first + c) - threshold, 0.);
  return out;
}

// Rows of a part of a warp, of warps, and too long to be held; lanes with nothing; no whole vectors.
constexpr Shape kShapes[] = {{1, 8, 8, 0},         {5, 24, 24, 0},      {3, 264, 264, 0}, {4, 1024, 1024, 0},
                             {2, 4104, 4104, 0},   {3, 1, 1, 0},        {3, 7, 7, 0},     {2, 1024, 1024, 1},
                             {2, 20000, 20000, 0}, {1, 40003, 40003, 0}};

TEST(Emulated, Softmax) {
  std::mt19937 draw(11);
  for (const bool sparse : {false, true}) {
    for (const Shape& s : kShapes) {
      for (const DType type : kTypes) {
        SCOPED_TRACE(testing::Message() << (sparse ? "sparsemax " : "softmax ") << s.rows << "x" << s.cols << " shift "
                                        << s.shift << " type " << int(type));
        const int64_t n = s.rows * s.cols;
        Elements x = random(draw, type, n, s.shift, 4), y(type, n, s.shift), dy = random(draw, type, n, s.shift),
                 dx(type, n, s.shift);
        probability::Softmax a{.dtype = type,
                               .sparse = sparse,
                               .x = x.data(),
                               .x_stride = s.cols,
                               .dy = nullptr,
                               .dy_stride = 0,
                               .out = y.data(),
                               .rows = s.rows,
                               .cols = s.cols,
                               .stream = false};
        probability::cuda::softmax(a, nullptr);
        a.x = y.data(), a.dy = dy.data(), a.dy_stride = s.cols, a.out = dx.data();
        probability::cuda::softmax(a, nullptr);
        for (int64_t row = 0; row < s.rows; ++row) {
          const int64_t first = row * s.cols;
          const auto expected = sparse ? sparsemax_of(x, first, s.cols) : softmax_of(x, first, s.cols);
          double dot = 0, count = 0;
          for (int64_t c = 0; c < s.cols; ++c) {
            const double of = y.get(first + c);
            ASSERT_NEAR(of, expected[c], bound(type, expected[c], sparse ? s.cols : 1)) << first + c;
            dot += dy.get(first + c) * (sparse ? of > 0 : of), count += of > 0;
          }
          for (int64_t c = 0; c < s.cols; ++c) {  // of the rounded y, as the op's backward has it
            const double of = y.get(first + c), d = dy.get(first + c);
            const double expected_dx = sparse ? (of > 0 ? d - dot / count : 0.) : of * (d - dot);
            ASSERT_NEAR(dx.get(first + c), expected_dx, bound(type, expected_dx, s.cols)) << first + c;
          }
        }
      }
    }
  }
}

struct Term {
  double value, slope;
};
Term term(Kind kind, double parameter, double x, double target) {
  const double q = std::exp(x), p = kind == Kind::kKl ? target : std::exp(target);
  const auto times_log = [](double a, double b) { return a == 0 ? 0 : a * std::log(b); };
  switch (kind) {
    case Kind::kKl:
      return {times_log(p, std::max(p, parameter)) - p * x, -p};
    case Kind::kForward:
      return {p * (target - x), -p};
    case Kind::kReverse:
      return {q * (x - target), q * (x - target) + q};
    case Kind::kMixed: {
      const double m = parameter * p + (1 - parameter) * q;
      return {parameter * p * (target - std::log(m)) + (1 - parameter) * q * (x - std::log(m)),
              (1 - parameter) * q * (x - std::log(m))};
    }
    case Kind::kTvd:
      return {std::abs(x - target) / 2, x > target ? .5 : x < target ? -.5 : 0};
  }
  return {};
}

TEST(Emulated, Divergence) {
  std::mt19937 draw(12);
  for (const auto kind : {Kind::kKl, Kind::kForward, Kind::kReverse, Kind::kMixed, Kind::kTvd}) {
    const double parameter = kind == Kind::kMixed ? .3 : 1e-10;
    for (const Shape& s : kShapes) {
      for (const DType type : kTypes) {
        SCOPED_TRACE(testing::Message() << "kind " << int(kind) << " " << s.rows << "x" << s.cols << " shift "
                                        << s.shift << " type " << int(type));
        const int64_t n = s.rows * s.cols;
        Elements x = random(draw, type, n, s.shift), target = random(draw, type, n, s.shift), dx(type, n, s.shift);
        for (int64_t i = 0; kind == Kind::kKl && i < n; ++i) target.set(i, std::abs(target.get(i)));  // probabilities
        Elements loss(DType::kFloat32, s.rows), dloss = random(draw, DType::kFloat32, s.rows);
        probability::Divergence a{.dtype = type,
                                  .kind = kind,
                                  .parameter = float(parameter),
                                  .x = x.data(),
                                  .target = target.data(),
                                  .x_stride = s.cols,
                                  .target_stride = s.cols,
                                  .label = nullptr,
                                  .ignore_index = -100,
                                  .by_element = false,
                                  .loss = static_cast<float*>(loss.data()),
                                  .dloss = nullptr,
                                  .dx = nullptr,
                                  .signs = nullptr,
                                  .rows = s.rows,
                                  .cols = s.cols};
        probability::cuda::divergence(a, nullptr);
        a.dloss = static_cast<float*>(dloss.data()), a.dx = dx.data();
        probability::cuda::divergence(a, nullptr);
        for (int64_t row = 0; row < s.rows; ++row) {
          double sum = 0, size = 0;
          for (int64_t c = 0; c < s.cols; ++c) {
            const Term of = term(kind, parameter, x.get(row * s.cols + c), target.get(row * s.cols + c));
            sum += of.value, size += std::abs(of.value);
            const double slope = of.slope * dloss.get(row);
            // the chip's exponentials and logarithms: 1e-6 of terms of about 3
            ASSERT_NEAR(dx.get(row * s.cols + c), slope, bound(type, slope, 1) + 1e-5) << row << " " << c;
          }
          ASSERT_NEAR(loss.get(row), sum, bound(DType::kFloat32, 1, s.cols) * (1 + size)) << row;
        }
      }
    }
  }
}

}  // namespace
