// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"
#include "kernels/mlp/cuda/mlp.cu"

namespace {

using namespace emulated;
using mlp::GatedAct;

struct Value {
  double value, slope;
  double steepness;  // gate u'(gate), where act(gate) is gate / (1 + e^-u(gate))
};
Value of(GatedAct act, double g) {
  const double k = std::sqrt(2 / M_PI), c = 0.044715;
  if (act == GatedAct::kSwiGlu) {
    const double s = 1 / (1 + std::exp(-g));
    return {g * s, s * (1 + g * (1 - s)), g};
  }
  const double t = std::tanh(k * (g + c * g * g * g));
  return {g * (1 + t) / 2, (1 + t) / 2 + g * (1 - t * t) * k * (1 + 3 * c * g * g) / 2,
          2 * k * g * (1 + 3 * c * g * g)};
}

// gate and up side by side in rows of a packed projection, or rows of their own.
struct Case {
  Shape shape;
  bool packed;
};
// One element, whole vectors and not, a tail, several blocks of a row, misaligned.
constexpr Case kCases[] = {{{1, 1, 1, 0}, true},        {{3, 8, 8, 0}, true},     {{5, 24, 24, 0}, false},
                           {{1, 1003, 1003, 0}, false}, {{4, 7, 7, 0}, true},     {{3, 4104, 4104, 0}, true},
                           {{2, 1024, 1024, 1}, true},  {{1, 515, 515, 1}, false}};

// Float32's error of act: some ten roundings, and u, at most 18 here, is off by 2^-23 of itself. Then a rounding to the
// type.
double allowed(DType type, double value) { return rounding(type, value) + 0x1p-20 * (1 + std::abs(value)); }
// The slope is s + steepness s (1 - s): where s is near 1, its last bit or two are an error of 1 - s.
double allowed_slope(DType type, double by, const Value& v) {
  return allowed(type, by * v.slope) + std::abs(by * v.steepness) * 0x1p-23;
}

struct Gates {
  GatedAct act;
  Shape s;
  bool packed;
  DType type;
  int64_t n = s.rows * s.cols, stride = packed ? 2 * s.cols : s.cols;
  Elements x, more_up, dy;

  Gates(GatedAct act, const Case& c, DType type, std::mt19937& draw)
      : act(act),
        s(c.shape),
        packed(c.packed),
        type(type),
        x(random(draw, type, s.rows * stride, s.shift, 5)),
        more_up(random(draw, type, n, s.shift, 4)),
        dy(random(draw, type, n, s.shift)) {}

  void* up() { return packed ? static_cast<char*>(x.data()) + s.cols * kernels::size_of(type) : more_up.data(); }
  mlp::GatedArgs args(void* y, void* dgate, void* dup) {
    return {.dtype = type,
            .act = act,
            .gate = x.data(),
            .up = up(),
            .dy = dgate == nullptr ? nullptr : dy.data(),
            .gate_stride = stride,
            .up_stride = stride,
            .dy_stride = s.cols,
            .y = y,
            .dgate = dgate,
            .dup = dup,
            .rows = s.rows,
            .cols = s.cols};
  }
  void check_values(Elements& y, Elements& dgate, Elements& dup) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = i / s.cols * stride + i % s.cols;
      const double up = packed ? x.get(at + s.cols) : more_up.get(i), d = dy.get(i);
      const Value v = of(act, x.get(at));
      ASSERT_NEAR(y.get(i), v.value * up, allowed(type, v.value * up)) << i;
      ASSERT_NEAR(dgate.get(i), d * up * v.slope, allowed_slope(type, d * up, v)) << i;
      ASSERT_NEAR(dup.get(i), d * v.value, allowed(type, d * v.value)) << i;
    }
  }
  void check() {
    expect_same_in_every_order(type, [&] {
      Elements y(type, n, s.shift), dgate(type, n, s.shift), dup(type, n, s.shift), again(type, n, s.shift);
      mlp::cuda::gated(args(y.data(), nullptr, nullptr), nullptr);
      mlp::cuda::gated(args(nullptr, dgate.data(), dup.data()), nullptr);
      check_values(y, dgate, dup);
      Elements both_gate(type, n, s.shift), both_up(type, n, s.shift);
      mlp::cuda::gated(args(again.data(), both_gate.data(), both_up.data()), nullptr);
      EXPECT_TRUE(both_gate.bytes() == dgate.bytes() && both_up.bytes() == dup.bytes());
      for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(again.get(i), y.get(i), allowed(type, y.get(i))) << i;
      return std::pair(y.bytes(), std::pair(dgate.bytes(), dup.bytes()));
    });
  }
  // Each output in the memory of an input.
  void check_in_themselves() {
    if (packed) return;
    Elements dgate(type, n, s.shift), dup(type, n, s.shift), y(type, n, s.shift);
    mlp::cuda::gated(args(y.data(), dgate.data(), dup.data()), nullptr);
    mlp::cuda::gated(args(dy.data(), x.data(), more_up.data()), nullptr);
    EXPECT_TRUE(dgate.bytes() == x.bytes() && dup.bytes() == more_up.bytes() && y.bytes() == dy.bytes());
  }
};

TEST(Emulated, GatedActivations) {
  std::mt19937 draw(16);
  for (const GatedAct act : {GatedAct::kSwiGlu, GatedAct::kGeGlu}) {
    for (const Case& c : kCases) {
      for (const DType type : kTypes) {
        SCOPED_TRACE(testing::Message() << "act " << int(act) << " " << c.shape.rows << "x" << c.shape.cols << " shift "
                                        << c.shape.shift << " type " << int(type));
        Gates gates(act, c, type, draw);
        gates.check();
        gates.check_in_themselves();
        if (HasFailure()) return;
      }
    }
  }
}

// What overflows on the way: far gates are 0 or themselves, with slopes 0 and 1.
TEST(Emulated, GatesFarFromZero) {
  for (const GatedAct act : {GatedAct::kSwiGlu, GatedAct::kGeGlu}) {
    for (const DType type : kTypes) {
      Elements gate(type, 8), up(type, 8), dy(type, 8), y(type, 8), dgate(type, 8), dup(type, 8);
      for (int i = 0; i < 8; ++i)
        gate.set(i, (i % 2 == 0 ? -1 : 1) * std::ldexp(1., 8 + i)), up.set(i, 1), dy.set(i, 1);
      mlp::cuda::gated(
          {type, act, gate.data(), up.data(), dy.data(), 8, 8, 8, y.data(), dgate.data(), dup.data(), 1, 8}, nullptr);
      for (int i = 0; i < 8; ++i) {
        const double value = i % 2 == 0 ? 0 : gate.get(i);
        EXPECT_EQ(y.get(i), value);
        EXPECT_EQ(dup.get(i), value);
        EXPECT_EQ(dgate.get(i), i % 2);
      }
    }
  }
}

}  // namespace
