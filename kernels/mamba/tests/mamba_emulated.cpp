// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"

// Dynamic shared memory of the kernels in the .cu file below.
namespace mamba::gated_norm::gpu {
alignas(16) thread_local uint4 ring_memory[emulated::kMaxElements];
}
#include "kernels/mamba/cuda/gated_norm.cu"

namespace {

using namespace emulated;

struct GatedNorm {
  Shape s;
  DType type;
  bool norm_first;
  Elements x, z, dy, weight, y, rstd, dx, dz, partial, dweight;

  GatedNorm(const Shape& s, DType type, bool norm_first, std::mt19937 draw)
      : s(s),
        type(type),
        norm_first(norm_first),
        x(random(draw, type, s.rows * s.cols, s.shift)),
        z(random(draw, type, s.rows * s.cols, s.shift, 3)),
        dy(random(draw, type, s.rows * s.cols, s.shift)),
        weight(random(draw, DType::kFloat32, s.cols)),
        y(type, s.rows * s.cols, s.shift),
        rstd(DType::kFloat32, s.rows * s.cols / s.group),
        dx(type, s.rows * s.cols, s.shift),
        dz(type, s.rows * s.cols, s.shift),
        partial(DType::kFloat32, 0),
        dweight(DType::kFloat32, s.cols) {}

  mamba::gated_norm::Problem problem() {
    return {s.rows, s.cols,    s.group, type, x.data(), z.data(), s.cols, s.cols, static_cast<float*>(weight.data()),
            1e-5f,  norm_first};
  }
  void run() {
    const auto p = problem();
    partial = Elements(DType::kFloat32, mamba::cuda::gated_norm_partials(p) * s.cols);
    mamba::cuda::gated_norm_forward({p, y.data(), static_cast<float*>(rstd.data())}, nullptr);
    mamba::cuda::gated_norm_backward({.of = p,
                                      .dy = dy.data(),
                                      .dy_stride = s.cols,
                                      .rstd = static_cast<float*>(rstd.data()),
                                      .dx = dx.data(),
                                      .dz = dz.data(),
                                      .partial = static_cast<float*>(partial.data()),
                                      .dweight = dweight.data(),
                                      .weight_type = DType::kFloat32},
                                     nullptr);
  }
  void check() {
    std::vector<double> sums(s.cols, 0.);
    for (int64_t first = 0; first < s.rows * s.cols; first += s.group) check_group(first, sums);
    for (int64_t c = 0; c < s.cols; ++c)
      ASSERT_NEAR(dweight.get(c), sums[c], bound(DType::kFloat32, 4 * s.rows, s.group)) << c;
  }
  void check_group(int64_t first, std::vector<double>& sums) {
    const int64_t n = s.group;
    std::vector<double> u(n), g(n), gate(n), slope(n);
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = z.get(first + i), sigmoid = 1 / (1 + std::exp(-v));
      gate[i] = v * sigmoid, slope[i] = sigmoid * (1 + v * (1 - sigmoid));
      u[i] = x.get(first + i) * (norm_first ? 1 : gate[i]);
      squares += u[i] * u[i];
    }
    const double r = 1 / std::sqrt(squares / double(n) + 1e-5);
    ASSERT_NEAR(rstd.get(first / n), r, bound(DType::kFloat32, r, n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = (first + i) % s.cols;
      const double w = weight.get(c), d = dy.get(first + i), by = norm_first ? gate[i] : 1;
      ASSERT_NEAR(y.get(first + i), u[i] * r * w * by, bound(type, u[i] * r * w * by, n)) << "y " << first + i;
      sums[c] += d * u[i] * r * by;
      g[i] = d * w * by;
      dot += g[i] * u[i] * r;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double du = r * (g[i] - u[i] * r * dot / double(n)), w = weight.get((first + i) % s.cols);
      const double dx_of = norm_first ? du : du * gate[i];
      const double dz_of = norm_first ? dy.get(first + i) * w * u[i] * r * slope[i] : du * x.get(first + i) * slope[i];
      const double size = 1 + r * (std::abs(g[i]) + std::abs(u[i] * r));
      ASSERT_NEAR(dx.get(first + i), dx_of, bound(type, dx_of, n) + 0x1p-20 * size) << "dx " << first + i;
      ASSERT_NEAR(dz.get(first + i), dz_of, bound(type, dz_of, n) + 0x1p-20 * size) << "dz " << first + i;
    }
  }
};

// Parts of a warp, with lanes that have nothing; one, two and four vectors a thread; rows that are read twice.
TEST(Emulated, GatedNorm) {
  const Shape shapes[] = {{1, 8, 8, 0},       {9, 24, 24, 0},       {5, 96, 32, 0},     {7, 264, 264, 0},
                          {6, 528, 264, 0},   {11, 1024, 1024, 0},  {5, 2056, 2056, 0}, {3, 4104, 4104, 0},
                          {2, 8200, 8200, 0}, {2, 16384, 16384, 0}, {3, 7, 7, 0},       {4, 100, 50, 0},
                          {3, 1024, 1024, 1}};
  std::mt19937 draw(7);
  for (const Shape& s : shapes) {
    for (const DType type : kTypes) {
      for (const bool norm_first : {false, true}) {
        SCOPED_TRACE(testing::Message() << s.rows << "x" << s.cols << " groups of " << s.group << " shift " << s.shift
                                        << " type " << int(type) << " norm first " << norm_first);
        std::vector<char> first;
        for (const auto order : kOrders) {
          if (!first.empty() && type != DType::kBFloat16) break;
          emulated::order = order;
          GatedNorm of(s, type, norm_first, draw);
          of.run();
          if (first.empty())
            of.check(), first = of.dx.bytes();
          else
            EXPECT_EQ(first, of.dx.bytes()) << "threads in another order have other bits";
          if (HasFatalFailure()) return;
        }
        draw.discard(1);
      }
    }
  }
}

}  // namespace
