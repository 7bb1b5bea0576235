// GroupNorm's GPU kernels on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"

// Dynamic shared memory of the kernels in the .cu file below.
namespace norms::cuda {
namespace {
alignas(16) thread_local uint4 group_ring[emulated::kMaxElements];
}
}  // namespace norms::cuda
#include "kernels/norm/cuda/group_norm.cu"

namespace {

using namespace emulated;

struct Case {
  int64_t samples, groups, channels, positions;  // channels of a group
  bool channels_last;
};
constexpr Case kCases[] = {
    {1, 1, 1, 8, false},     // one vector or two
    {2, 4, 3, 40, false},    // channels that end within a warp
    {5, 4, 2, 264, false},   // blocks whose rows are of two groups
    {3, 2, 5, 1032, false},  // a channel is more than a warp
    {1, 3, 8, 1024, false},  // as long as backward has blocks for
    {1, 1, 8, 1, true},      // one position
    {2, 4, 8, 9, true},      // four groups are a row
    {5, 6, 8, 7, true},      // two
    {3, 3, 16, 33, true},    // one
    {4, 5, 64, 70, true},    // blocks of several positions
    {2, 2, 32, 256, true},
};

struct GroupNorm {
  Case c;
  DType type, weight_type;
  bool weighted;
  norms::cuda::GroupShape shape{type, weight_type, c.samples, c.groups, c.channels, c.positions, c.channels_last};
  int64_t n = shape.rows() * c.channels * c.positions, all = shape.all_channels();
  Elements x, dy, weight, bias;
  Elements y{type, n}, dx{type, n}, mean{DType::kFloat32, shape.rows()}, rstd{DType::kFloat32, shape.rows()},
      dweight{weight_type, all}, dbias{weight_type, all};

  GroupNorm(const Case& c, DType type, DType weight_type, bool weighted, std::mt19937& draw)
      : c(c),
        type(type),
        weight_type(weight_type),
        weighted(weighted),
        x(random(draw, type, n)),
        dy(random(draw, type, n)),
        weight(random(draw, weight_type, all)),
        bias(random(draw, weight_type, all)) {}

  void run() {
    const int64_t parts = norms::cuda::group_norm_parts(shape, true);
    ASSERT_EQ(parts, 1) << "expected a group in a block: clusters are not emulated";
    y = dx = Elements(type, n), dweight = dbias = Elements(weight_type, all);
    Elements partial(DType::kFloat32, c.samples * parts * 2 * all);
    const auto floats = [](Elements& of) { return static_cast<float*>(of.data()); };
    const void* w = weighted ? weight.data() : nullptr;
    norms::cuda::group_norm_forward(
        {shape, y.data(), x.data(), w, weighted ? bias.data() : nullptr, floats(mean), floats(rstd), 1e-5f}, nullptr);
    norms::cuda::group_norm_backward(
        {shape, dx.data(), floats(partial), dy.data(), x.data(), w, floats(mean), floats(rstd)}, parts, dweight.data(),
        dbias.data(), nullptr);
  }

  int64_t at(int64_t sample, int64_t channel, int64_t position) const {
    return c.channels_last ? (sample * c.positions + position) * all + channel
                           : (sample * all + channel) * c.positions + position;
  }
  template <class Fn>  // fn(index, channel) of a group's elements
  void each(int64_t sample, int64_t group, const Fn& fn) {
    for (int64_t channel = group * c.channels; channel < (group + 1) * c.channels; ++channel)
      for (int64_t position = 0; position < c.positions; ++position) fn(at(sample, channel, position), channel);
  }
  double weight_of(int64_t channel) { return weighted ? weight.get(channel) : 1; }

  // A group's sums are trees above some 32 terms a thread: 2^-20 of what is about 1. The mean's error is multiplied by
  // rstd, and in dx once more. A channel's sum has as many terms as samples and positions, of either sign.
  void check() {
    std::vector<double> of_n(all, 0.), of_dy(all, 0.);
    double max_rstd = 0;
    for (int64_t sample = 0; sample < c.samples; ++sample) {
      for (int64_t group = 0; group < c.groups; ++group) {
        const double count = double(c.channels * c.positions);
        double total = 0, squares = 0, g_mean = 0, gn_mean = 0;
        each(sample, group, [&](int64_t i, int64_t) { total += x.get(i); });
        const double m = total / count;
        each(sample, group, [&](int64_t i, int64_t) { squares += (x.get(i) - m) * (x.get(i) - m); });
        const double r = 1 / std::sqrt(squares / count + 1e-5);
        max_rstd = std::max(max_rstd, r);
        each(sample, group, [&](int64_t i, int64_t channel) {
          const double g = dy.get(i) * weight_of(channel), normed = (x.get(i) - m) * r;
          g_mean += g / count, gn_mean += g * normed / count;
          of_n[channel] += dy.get(i) * normed, of_dy[channel] += dy.get(i);
        });
        ASSERT_NEAR(mean.get(sample * c.groups + group), m, 0x1p-20);
        ASSERT_NEAR(rstd.get(sample * c.groups + group), r, 0x1p-20 * r);
        each(sample, group, [&](int64_t i, int64_t channel) {
          const double normed = (x.get(i) - m) * r,
                       value = normed * weight_of(channel) + (weighted ? bias.get(channel) : 0);
          const double slope = (dy.get(i) * weight_of(channel) - g_mean - normed * gn_mean) * r;
          ASSERT_NEAR(y.get(i), value, rounding(type, value) + 0x1p-20 * (1 + r)) << sample << " " << group << " " << i;
          ASSERT_NEAR(dx.get(i), slope, rounding(type, slope) + 0x1p-20 * r * (1 + r)) << i;
        });
      }
    }
    const double terms = double(c.samples * c.positions);
    for (int64_t channel = 0; channel < all; ++channel) {
      const double more = 0x1p-20 * std::sqrt(terms) * (1 + max_rstd);
      ASSERT_NEAR(dweight.get(channel), of_n[channel], rounding(weight_type, of_n[channel]) + more) << channel;
      ASSERT_NEAR(dbias.get(channel), of_dy[channel], rounding(weight_type, of_dy[channel]) + more) << channel;
    }
  }
};

enum class Weights { kNone, kFloat32, kSameType };

TEST(Emulated, GroupNorm) {
  std::mt19937 draw(17);
  for (const Case& c : kCases) {
    for (const DType type : kTypes) {
      for (const Weights weights : {Weights::kNone, Weights::kFloat32, Weights::kSameType}) {
        if (weights == Weights::kSameType && type == DType::kFloat32) continue;
        SCOPED_TRACE(testing::Message() << c.samples << " samples " << c.groups << " groups " << c.channels
                                        << " channels " << c.positions << " positions, last " << c.channels_last
                                        << " type " << int(type) << " weights " << int(weights));
        const DType weight_type = weights == Weights::kFloat32 ? DType::kFloat32 : type;
        GroupNorm of(c, type, weight_type, weights != Weights::kNone, draw);
        expect_same_in_every_order(type, [&] {
          of.run();
          of.check();
          return std::pair(std::pair(of.y.bytes(), of.dx.bytes()), std::pair(of.dweight.bytes(), of.dbias.bytes()));
        });
        if (HasFailure()) return;
      }
    }
  }
}

// Where no whole vector fits, or a group is longer than a block, there are no parts.
TEST(Emulated, GroupsThatDoNotFit) {
  const auto parts = [](int64_t channels, int64_t positions, bool last, bool aligned = true) {
    return norms::cuda::group_norm_parts({DType::kBFloat16, DType::kBFloat16, 2, 2, channels, positions, last},
                                         aligned);
  };
  EXPECT_EQ(parts(3, 7, false), 0);
  EXPECT_EQ(parts(12, 8, true), 0);
  EXPECT_EQ(parts(24, 8, true), 0);  // three vectors do not divide a warp
  EXPECT_EQ(parts(4, 8192, false), 0);
  EXPECT_EQ(parts(4, 64, false, false), 0);
  EXPECT_EQ(parts(4, 64, false), 1);
}

}  // namespace
