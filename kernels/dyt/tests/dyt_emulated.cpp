// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"

// Dynamic shared memory of the kernels in the .cu file below.
namespace dyt::cuda {
namespace {
alignas(16) thread_local uint4 ring[emulated::kMaxElements];
}
}  // namespace dyt::cuda
#include "kernels/dyt/cuda/dyt.cu"

namespace {

using namespace emulated;

TEST(Emulated, DynamicTanh) {
  std::mt19937 draw(9);
  for (const Shape& s : {Shape{1, 8, 8, 0},
                         {37, 24, 24, 0},
                         {70, 1024, 1024, 0},
                         {19, 2056, 2056, 0},
                         {5, 7, 7, 0},
                         {6, 1024, 1024, 1}}) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(testing::Message() << s.rows << "x" << s.cols << " shift " << s.shift << " type " << int(type));
      const int64_t n = s.rows * s.cols;
      Elements x = random(draw, type, n, s.shift, 2), dy = random(draw, type, n, s.shift), dx(type, n, s.shift);
      Elements alpha = random(draw, type, 1), gamma = random(draw, type, s.cols);
      Elements dalpha(type, 1), dgamma(type, s.cols), dbeta(type, s.cols);
      dyt::Backward a{.dtype = type,
                      .dx = dx.data(),
                      .partial_alpha = nullptr,
                      .partial_gamma = nullptr,
                      .partial_beta = nullptr,
                      .dy = dy.data(),
                      .x = x.data(),
                      .alpha = {alpha.data(), type},
                      .gamma = {gamma.data(), type},
                      .rows = s.rows,
                      .cols = s.cols,
                      .dy_stride = s.cols,
                      .x_stride = s.cols,
                      .chunk = 0};
      const dyt::cuda::Plan plan = dyt::cuda::plan_backward(a);
      Elements partial(DType::kFloat32, plan.chunks * (2 * s.cols + plan.strips));
      a.partial_gamma = static_cast<float*>(partial.data());
      a.partial_beta = a.partial_gamma + plan.chunks * s.cols;
      a.partial_alpha = a.partial_beta + plan.chunks * s.cols;
      dyt::cuda::backward(a, plan, {dalpha.data(), dgamma.data(), dbeta.data()}, nullptr);
      double of_alpha = 0, terms = 0;
      std::vector<double> of_gamma(s.cols, 0.), of_beta(s.cols, 0.);
      for (int64_t i = 0; i < n; ++i) {
        const double t = std::tanh(alpha.get(0) * x.get(i)), part = dy.get(i) * gamma.get(i % s.cols) * (1 - t * t);
        of_gamma[i % s.cols] += dy.get(i) * t, of_beta[i % s.cols] += dy.get(i);
        of_alpha += x.get(i) * part, terms += std::abs(x.get(i) * part);
        ASSERT_NEAR(dx.get(i), alpha.get(0) * part, bound(type, part, 1) + 1e-5) << i;
      }
      // 1e-5: the tanh of 16 bits
      for (int64_t c = 0; c < s.cols; ++c) {
        ASSERT_NEAR(dgamma.get(c), of_gamma[c], bound(type, of_gamma[c], s.rows) + 1e-5 * double(s.rows)) << c;
        ASSERT_NEAR(dbeta.get(c), of_beta[c], bound(type, of_beta[c], s.rows)) << c;
      }
      ASSERT_NEAR(dalpha.get(0), of_alpha, bound(type, of_alpha, 1) + 2e-5 * terms);
    }
  }
}

}  // namespace
