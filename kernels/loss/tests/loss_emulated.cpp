// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"

// Dynamic shared memory of the kernels in the .cu file below.
namespace loss::cuda {
namespace {
alignas(16) thread_local uint4 kept[emulated::kMaxElements];
}
}  // namespace loss::cuda
#include "kernels/loss/cuda/loss.cu"

namespace {

using namespace emulated;
constexpr int64_t kIgnore = -100;

// What a row's loss has beside the logarithm of the target's probability.
struct Form {
  float smoothing, softcap, z_loss;
  bool weighted, token_scaling;
};
constexpr Form kForms[] = {{0, 0, 0, false, false},     {0.1f, 0, 0, false, false},    {0, 3, 0, false, false},
                           {0, 0, 0.01f, false, false}, {0.1f, 2, 0.02f, false, true}, {0, 0, 0, true, false},
                           {0.2f, 2, 0.01f, true, true}};

// Rows of `cols` logits, group: from one row to the next.
constexpr Shape kShapes[] = {{3, 1, 1, 0},     {5, 7, 7, 0},       {4, 64, 64, 0},
                             {3, 130, 133, 1}, {2, 1024, 1024, 1}, {3, 5003, 5003, 0}};
// More rows than blocks where losses and gradients are made at once, and more of a row than a block keeps.
constexpr Shape kLong = {7, 33001, 33008, 0};

struct Loss {
  Form f;
  Shape s;
  DType type;
  int64_t n = s.rows * s.group;
  Elements logits, dlogits{type, n, s.shift}, dloss, weight, class_sum{DType::kFloat32, 1}, scale{DType::kFloat32, 1},
      loss{DType::kFloat32, s.rows}, lse{DType::kFloat32, 2 * s.rows};
  std::vector<int64_t> target;

  Loss(const Form& f, const Shape& s, DType type, std::mt19937& draw)
      : f(f),
        s(s),
        type(type),
        logits(random(draw, type, n, s.shift, 6)),
        dloss(random(draw, DType::kFloat32, s.rows)),
        weight(DType::kFloat32, s.cols) {
    std::uniform_real_distribution<double> uniform(0.2, 1);
    double sum = 0;
    for (int64_t c = 0; c < s.cols; ++c) weight.set(c, uniform(draw)), sum += weight.get(c);
    class_sum.set(0, sum), scale.set(0, 0.5);
    for (int64_t row = 0; row < s.rows; ++row) target.push_back(int64_t(draw() % uint64_t(s.cols)));
    target[0] = s.cols - 1;
    if (s.rows > 2) target[1] = kIgnore;
  }
  static float* floats(Elements& of) { return static_cast<float*>(of.data()); }
  loss::LossRows args(Elements* gradients, bool known) {
    return {.dtype = type,
            .logits = logits.data(),
            .logits_stride = s.group,
            .dlogits = gradients == nullptr ? nullptr : gradients->data(),
            .dlogits_stride = s.group,
            .target = target.data(),
            .loss = known ? nullptr : floats(loss),
            .lse = floats(lse),
            .dloss = floats(dloss),
            .grad_scale = 2,
            .lse_known = known,
            .rows = s.rows,
            .vocab = s.cols,
            .ignore_index = kIgnore,
            .label_smoothing = f.smoothing,
            .softcap = f.softcap,
            .z_loss = f.z_loss,
            .class_weight = f.weighted ? floats(weight) : nullptr,
            .class_sum = f.weighted ? floats(class_sum) : nullptr,
            .token_scaling = f.token_scaling};
  }
  double capped(double z) const { return f.softcap > 0 ? f.softcap * std::tanh(z / f.softcap) : z; }
  double weight_of(int64_t c) { return f.weighted ? weight.get(c) : 1; }

  // e^u: to 2^-21 where the result becomes 16 bits, whose terms a sum has; an lse of up to 17, and u, to 2^-20. So is a
  // loss, twice where parts of it add up. A probability's error is that of lse and u, 2^-18 of it.
  void check(int64_t row, Elements& gradients, bool with_losses) {
    const auto z = [&](int64_t c) { return logits.get(row * s.group + c); };
    const int64_t t = target[row];
    if (t == kIgnore) {
      if (with_losses) ASSERT_EQ(loss.get(row), 0);
      for (int64_t c = 0; c < s.cols; ++c) ASSERT_EQ(gradients.get(row * s.group + c), 0) << c;
      return;
    }
    double sum = 0, smooth = 0, weights = 0;
    for (int64_t c = 0; c < s.cols; ++c) sum += std::exp(capped(z(c)));
    const double all = std::log(sum), eps = f.smoothing, wt = weight_of(t), v = double(s.cols);
    for (int64_t c = 0; c < s.cols; ++c) smooth += weight_of(c) * (all - capped(z(c))) / v, weights += weight_of(c) / v;
    const double p = std::exp(capped(z(t)) - all), by = f.token_scaling ? p : 1;
    const double value = by * ((1 - eps) * wt * (all - capped(z(t))) + eps * smooth + f.z_loss * all * all);
    if (with_losses) ASSERT_NEAR(loss.get(row), value, 0x1p-17 * (by + std::abs(value)));
    ASSERT_NEAR(lse.get(2 * row) + lse.get(2 * row + 1), all, 0x1p-19 * (1 + std::abs(all)));
    const double g = dloss.get(row) * 2 * 0.5 * by;
    for (int64_t c = 0; c < s.cols; ++c) {
      const double u = capped(z(c)), slope = f.softcap > 0 ? 1 - u * u / (f.softcap * f.softcap) : 1;
      const double mine = std::exp(u - all) * ((1 - eps) * wt + eps * weights + 2 * f.z_loss * all);
      const double of = (mine - (c == t ? (1 - eps) * wt : 0) - eps * weight_of(c) / v) * slope * g;
      const double size = std::abs(g) * (mine * slope + (c == t ? 1 : 0) + eps / v);
      // Near a cap 1 - (u / softcap)^2 is left with the last bits of u.
      ASSERT_NEAR(gradients.get(row * s.group + c), of,
                  rounding(type, of) + 0x1p-18 * size + 0x1p-21 * std::abs(g) * (mine + (c == t ? 1 : 0)) + 0x1p-100)
          << row << " " << c;
    }
  }

  // Losses and gradients at once, then losses, then gradients; the last in the logits' own memory.
  void check() {
    expect_same_in_every_order(type, [&] {
      dlogits = Elements(type, n, s.shift);
      loss::cuda::rows(args(&dlogits, false), floats(scale), nullptr);
      for (int64_t row = 0; row < s.rows; ++row) check(row, dlogits, true);
      loss = Elements(DType::kFloat32, s.rows), lse = Elements(DType::kFloat32, 2 * s.rows);
      loss::cuda::rows(args(nullptr, false), nullptr, nullptr);
      for (int64_t row = 0; row < s.rows; ++row) check(row, dlogits, true);
      Elements in = logits;
      auto a = args(&in, true);
      a.logits = in.data();
      loss::cuda::rows(a, floats(scale), nullptr);
      for (int64_t row = 0; row < s.rows; ++row) check(row, in, false);
      return std::pair(dlogits.bytes(), std::pair(in.bytes(), std::pair(loss.bytes(), lse.bytes())));
    });
  }
};

void check(const Form& f, const Shape& s, std::mt19937& draw) {
  for (const DType type : kTypes) {
    SCOPED_TRACE(testing::Message() << s.rows << "x" << s.cols << " shift " << s.shift << " type " << int(type)
                                    << " form " << &f - kForms);
    Loss(f, s, type, draw).check();
  }
}

TEST(Emulated, LossRows) {
  std::mt19937 draw(21);
  for (const Form& f : kForms) {
    for (const Shape& s : kShapes) check(f, s, draw);
  }
}

TEST(Emulated, LongRows) {
  std::mt19937 draw(25);
  check(kForms[0], kLong, draw);
  check(kForms[4], kLong, draw);
}

// Gradients whose rows do not begin as the logits' do, within a vector: element by element.
TEST(Emulated, GradientsElsewhereInAVector) {
  std::mt19937 draw(22);
  for (const DType type : kTypes) {
    Loss of(kForms[0], {3, 1031, 1032, 0}, type, draw);
    Elements gradients(type, of.n, 1);
    loss::cuda::rows(of.args(&gradients, false), Loss::floats(of.scale), nullptr);
    for (int64_t row = 0; row < of.s.rows; ++row) of.check(row, gradients, true);
  }
}

// The sum of rows and its scale; more rows than a block has threads.
TEST(Emulated, ReduceAndScale) {
  std::mt19937 draw(23);
  for (const int64_t rows : {1, 5, 1024, 2500}) {
    for (const bool mean : {false, true}) {
      Elements row_loss = random(draw, DType::kFloat32, rows), out(DType::kFloat32, 1), dloss(DType::kFloat32, 1);
      std::vector<int64_t> target(rows, 3);
      double sum = 0, valid = 0;
      for (int64_t row = 0; row < rows; ++row) {
        if (row % 7 == 2) target[row] = kIgnore, row_loss.set(row, 0);
        sum += row_loss.get(row), valid += target[row] != kIgnore;
      }
      const auto floats = [](Elements& of) { return static_cast<float*>(of.data()); };
      loss::cuda::reduce({floats(row_loss), target.data(), floats(out), rows, 10, kIgnore, mean}, nullptr);
      EXPECT_NEAR(out.get(0), mean ? sum / valid : sum, rounding(DType::kFloat32, sum));
      dloss.set(0, 3);
      loss::cuda::scale({target.data(), floats(dloss), floats(out), rows, kIgnore, mean}, nullptr);
      EXPECT_NEAR(out.get(0), mean ? 3 / valid : 3, 0x1p-22 * 3);
    }
  }
}

// What goes through all elements: whole vectors and what is left, of one block and several.
TEST(Emulated, MultiplyAccumulateAndSumColumns) {
  std::mt19937 draw(24);
  for (const DType type : kTypes) {
    for (const int64_t count : {1, 8, 1027, 30011}) {
      Elements x = random(draw, type, count), old = x, factor(DType::kFloat32, 1),
               sum = random(draw, DType::kFloat32, count), before = sum;
      loss::cuda::accumulate({type, x.data(), static_cast<float*>(sum.data()), 0.5f, false}, count, nullptr);
      for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(sum.get(i), before.get(i) + 0.5 * x.get(i), 0x1p-23) << i;
      loss::cuda::accumulate({type, x.data(), static_cast<float*>(sum.data()), 0.5f, true}, count, nullptr);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(sum.get(i), 0.5 * x.get(i)) << i;
      factor.set(0, 3);
      loss::cuda::multiply(type, x.data(), count, static_cast<float*>(factor.data()), nullptr);
      for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(x.get(i), 3 * old.get(i), rounding(type, 3 * old.get(i))) << i;
    }
    Elements x = random(draw, type, 5 * 305), sum = random(draw, DType::kFloat32, 300), before = sum;
    loss::cuda::column_sum({type, x.data(), 305, 5, static_cast<float*>(sum.data()), 1}, 300, nullptr);
    for (int64_t c = 0; c < 300; ++c) {
      double total = before.get(c);
      for (int64_t row = 0; row < 5; ++row) total += x.get(row * 305 + c);
      ASSERT_NEAR(sum.get(c), total, 5 * 0x1p-22) << c;
    }
  }
}

// A gradient of 0 stays 0, whatever it is multiplied by.
TEST(Emulated, NothingTimesInfinity) {
  Elements x(DType::kBFloat16, 11), factor(DType::kFloat32, 1);
  for (int i = 0; i < 11; ++i) x.set(i, i % 2);
  factor.set(0, INFINITY);
  loss::cuda::multiply(DType::kBFloat16, x.data(), 11, static_cast<float*>(factor.data()), nullptr);
  for (int i = 0; i < 11; ++i) EXPECT_EQ(x.get(i), i % 2 == 0 ? 0 : INFINITY) << i;
}

}  // namespace
