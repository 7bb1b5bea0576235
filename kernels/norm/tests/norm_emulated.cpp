// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"

// Dynamic shared memory of the kernels in the .cu file below.
namespace norms::gpu {
alignas(16) thread_local uint4 ring_memory[emulated::kMaxElements];
}
#include "kernels/norm/cuda/norm.cu"

namespace {

using namespace emulated;

// Few and many chunks, columns that are no multiple of a block's or of a vector.
TEST(Emulated, ColumnSums) {
  std::mt19937 draw(8);
  for (const auto& [chunks, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 8}, {1261, 24}, {40, 2047}, {130, 2052}, {9, 5121}, {0, 12}, {3, 0}}) {
    for (const DType type : kTypes) {
      Elements partial = random(draw, DType::kFloat32, chunks * cols), out(type, cols);
      norms::cuda::column_sum({out.data(), static_cast<float*>(partial.data()), chunks, cols, type}, nullptr);
      for (int64_t c = 0; c < cols; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < chunks; ++k) sum += partial.get(k * cols + c);
        ASSERT_NEAR(out.get(c), sum, bound(type, sum, chunks)) << chunks << "x" << cols << " at " << c;
      }
    }
  }
}

TEST(Emulated, RmsNorm) {
  std::mt19937 draw(10);
  for (const Shape& s : {Shape{1, 8, 8, 0},
                         {9, 24, 24, 0},
                         {7, 264, 264, 0},
                         {5, 1024, 1024, 0},
                         {3, 4104, 4104, 0},
                         {3, 7, 7, 0},
                         {3, 1024, 1024, 1}}) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(testing::Message() << s.rows << "x" << s.cols << " shift " << s.shift << " type " << int(type));
      const int64_t n = s.rows * s.cols;
      Elements x = random(draw, type, n, s.shift), y(type, n, s.shift), dy = random(draw, type, n, s.shift),
               dx(type, n, s.shift);
      Elements weight = random(draw, type, s.cols), rstd(DType::kFloat32, s.rows), dweight(type, s.cols);
      const norms::Scale scale{nullptr, weight.data(), type, DType::kFloat32, DType::kFloat32, 0.f};
      norms::cuda::rms_norm_forward({.y = y.data(),
                                     .h = nullptr,
                                     .rstd = static_cast<float*>(rstd.data()),
                                     .x = x.data(),
                                     .residual = nullptr,
                                     .scale = nullptr,
                                     .cols = s.cols,
                                     .x_stride = s.cols,
                                     .residual_stride = 0,
                                     .eps = 1e-5f,
                                     .dtype = type,
                                     .y_dtype = type,
                                     .round_n = false,
                                     .stream = false},
                                    scale, s.rows, nullptr);
      Elements partial(DType::kFloat32, norms::cuda::partial_rows(s.rows, s.cols, type) * s.cols);
      const int64_t chunks = norms::cuda::rms_norm_backward({.dx = dx.data(),
                                                             .partial = static_cast<float*>(partial.data()),
                                                             .dy = dy.data(),
                                                             .dh = nullptr,
                                                             .x = x.data(),
                                                             .scale = nullptr,
                                                             .rstd = static_cast<float*>(rstd.data()),
                                                             .rows = s.rows,
                                                             .cols = s.cols,
                                                             .chunk = 0,
                                                             .dy_stride = s.cols,
                                                             .dh_stride = 0,
                                                             .x_stride = s.cols,
                                                             .dtype = type,
                                                             .dy_dtype = type,
                                                             .round_n = false,
                                                             .stream = false},
                                                            scale, nullptr);
      norms::cuda::column_sum({dweight.data(), static_cast<float*>(partial.data()), chunks, s.cols, type}, nullptr);
      std::vector<double> sums(s.cols, 0.);
      for (int64_t row = 0; row < s.rows; ++row) {
        double squares = 0, dot = 0;
        for (int64_t c = 0; c < s.cols; ++c) squares += x.get(row * s.cols + c) * x.get(row * s.cols + c);
        const double r = 1 / std::sqrt(squares / double(s.cols) + 1e-5);
        for (int64_t c = 0; c < s.cols; ++c)
          dot += dy.get(row * s.cols + c) * weight.get(c) * x.get(row * s.cols + c) * r;
        for (int64_t c = 0; c < s.cols; ++c) {
          const int64_t i = row * s.cols + c;
          const double normed = x.get(i) * r, g = dy.get(i) * weight.get(c),
                       of = r * (g - normed * dot / double(s.cols));
          sums[c] += dy.get(i) * normed;
          ASSERT_NEAR(y.get(i), normed * weight.get(c), bound(type, normed * weight.get(c), s.cols)) << i;
          ASSERT_NEAR(dx.get(i), of, bound(type, of, s.cols) + 0x1p-20 * (1 + r)) << i;
        }
      }
      for (int64_t c = 0; c < s.cols; ++c)
        ASSERT_NEAR(dweight.get(c), sums[c], bound(type, sums[c], s.rows) + 1e-6 * double(s.rows)) << c;
    }
  }
}

}  // namespace
