// The convolution's step of generation of a GPU on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"
#include "kernels/mamba/cuda/conv_update.cu"

namespace {

using namespace emulated;

struct Case {
  int64_t batch, channels, length, columns;
  int width;
  bool silu, bias, ring, indices, mixed;
  int64_t shift;
};
constexpr Case kCases[] = {
    {1, 1, 1, 3, 4, true, true, false, false, false, 0},     // one channel
    {1, 4, 1, 3, 4, true, true, false, false, false, 0},     // one thread of four
    {3, 260, 1, 3, 4, true, false, false, true, false, 0},   // four channels a thread, several blocks
    {3, 260, 1, 4, 4, false, true, false, false, false, 0},  // a column more than taps read
    {3, 260, 1, 4, 4, true, true, false, true, false, 1},    // misaligned
    {2, 264, 1, 3, 4, true, true, false, false, true, 0},    // types of their own
    {2, 131, 3, 5, 3, true, true, false, true, false, 0},    // some tokens
    {3, 65, 7, 4, 2, false, false, false, false, true, 0},   // more than columns
    {2, 130, 2, 7, 8, true, true, false, false, false, 0},   // eight taps
    {3, 70, 3, 9, 6, true, true, true, true, false, 0},      // a ring
    {3, 70, 11, 8, 5, true, false, true, false, true, 1},    // more tokens than it has columns
};

struct ConvUpdate {
  Case c;
  DType type, state_type;
  Elements x, weight, bias, state, old_state, y;
  std::vector<int32_t> lengths, indices;

  ConvUpdate(const Case& c, DType type, std::mt19937& draw)
      : c(c),
        type(type),
        state_type(c.mixed ? (type == DType::kFloat32 ? DType::kFloat16 : DType::kFloat32) : type),
        x(random(draw, type, c.batch * c.length * c.channels, c.shift)),
        weight(random(draw, c.mixed ? DType::kFloat32 : type, c.channels * c.width)),
        bias(random(draw, type, c.channels)),
        state(random(draw, state_type, (c.batch + 2) * c.channels * c.columns)),
        old_state(state),
        y(type, c.batch * c.length * c.channels, c.shift) {
    for (int64_t b = 0; b < c.batch; ++b) {
      lengths.push_back(int32_t(3 + 5 * b));
      indices.push_back(b == 1 ? -1 : int32_t(c.batch + 1 - b));
    }
  }
  int64_t row_of(int64_t b) const { return c.indices ? indices[b] : b; }
  int64_t at(int64_t b, int64_t channel, int64_t t) const { return (b * c.length + t) * c.channels + channel; }
  int64_t column_at(int64_t row, int64_t channel, int64_t column) const {
    return (row * c.channels + channel) * c.columns + column;
  }
  // Of token t of all that the ring has seen, or of those before x.
  int64_t column_of(int64_t b, int64_t t) const {
    const int64_t column = (c.ring ? lengths[b] : c.columns) + t;
    return c.ring ? (column % c.columns + c.columns) % c.columns : column;
  }
  void run() {
    const DType weight_type = c.mixed ? DType::kFloat32 : type;
    const auto tokens = [&](Elements& of) {
      return mamba::View{of.data(), type, c.length * c.channels, 1, c.channels};
    };
    mamba::conv::Problem p{.batch = c.batch,
                           .channels = c.channels,
                           .length = c.length,
                           .width = c.width,
                           .silu = c.silu,
                           .x = tokens(x),
                           .weight = {weight.data(), weight_type, 0, c.width, 1},
                           .bias = {c.bias ? bias.data() : nullptr, type, 0, 1, 0},
                           .initial = {},
                           .sequence = {}};
    mamba::cuda::conv_update({.of = p,
                              .state = {state.data(), state_type, c.channels * c.columns, c.columns, 1},
                              .columns = c.columns,
                              .lengths = c.ring ? lengths.data() : nullptr,
                              .indices = c.indices ? indices.data() : nullptr,
                              .y = tokens(y)},
                             nullptr);
    const bool four = c.length == 1 && c.width == 4 && !c.mixed && c.shift == 0 && c.channels % 4 == 0;
    const int64_t items = c.batch * c.channels / (four ? 4 : 1);
    ASSERT_EQ(int64_t(gridDim.x), kernels::divide_up(items, 128)) << "another kernel than the test is for";
  }
  // Eight products of float32 and a sigmoid of what is below 9: 2^-20. What moves in the state is not computed.
  void check() {
    Elements expected = old_state;
    for (int64_t b = 0; b < c.batch; ++b) {
      const int64_t row = row_of(b);
      for (int64_t channel = 0; channel < c.channels; ++channel) {
        const auto input = [&](int64_t t) {
          return t >= 0 ? x.get(at(b, channel, t)) : old_state.get(column_at(row, channel, column_of(b, t)));
        };
        for (int64_t t = 0; t < c.length; ++t) {
          double v = c.bias ? bias.get(channel) : 0;
          for (int64_t j = 0; j < c.width && row >= 0; ++j)
            v += weight.get(channel * c.width + c.width - 1 - j) * input(t - j);
          if (row < 0) v = 0;
          if (c.silu) v /= 1 + std::exp(-v);
          ASSERT_NEAR(y.get(at(b, channel, t)), v, rounding(type, v) + (row < 0 ? 0 : 0x1p-20)) << b << " " << channel;
        }
        if (row < 0) continue;
        for (int64_t t = c.ring ? std::max<int64_t>(c.length - c.columns, 0) : c.length - c.columns; t < c.length; ++t)
          if (c.ring)
            expected.set(column_at(row, channel, column_of(b, t)), input(t));
          else
            expected.set(column_at(row, channel, t + c.columns - c.length), input(t));
      }
    }
    EXPECT_TRUE(state.bytes() == expected.bytes()) << "the state, its unused rows included";
  }
};

TEST(Emulated, ConvUpdate) {
  for (const Case& c : kCases) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(testing::Message() << "case " << &c - kCases << " type " << int(type));
      expect_same_in_every_order(type, [&] {
        std::mt19937 draw(26);
        ConvUpdate of(c, type, draw);
        of.run();
        of.check();
        return std::pair(of.y.bytes(), of.state.bytes());
      });
      if (HasFailure()) return;
    }
  }
}

}  // namespace
