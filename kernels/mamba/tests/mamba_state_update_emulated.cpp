// The scans' step of generation of a GPU on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"
#include "kernels/mamba/cuda/update.cu"

namespace {

using namespace emulated;

// alike: one rate a head, as Mamba-2 has it; else one for every element of the state.
struct Case {
  int64_t batch, heads, dim, groups;
  int states;
  bool alike, softplus, gate, indices, mixed;
  int64_t shift;
};
constexpr Case kCases[] = {
    {1, 1, 1, 1, 1, false, true, true, false, false, 0},     // one element
    {2, 1, 40, 1, 16, false, true, true, false, false, 0},   // Mamba's
    {3, 1, 67, 1, 24, false, true, false, true, false, 0},   // an odd batch, rows that a warp is not full of
    {2, 8, 64, 2, 128, true, true, false, false, false, 0},  // Mamba-2's
    {3, 6, 33, 3, 256, true, false, true, true, false, 0},   // states that lanes go through twice and more
    {2, 3, 5, 1, 7, true, true, true, true, false, 0},       // odd
    {2, 3, 20, 3, 16, true, true, true, false, true, 0},     // types of their own
    {2, 2, 20, 1, 16, false, true, true, true, true, 1},     // and misaligned
};

struct StateUpdate {
  Case c;
  DType type, other;
  int64_t rows = c.batch * c.heads * c.dim, row_states = c.heads * c.dim * c.states;
  Elements state, x, dt, z, a, b, c_of, d, bias, old_state, y;
  std::vector<int32_t> indices;

  StateUpdate(const Case& c, DType type, std::mt19937& draw)
      : c(c),
        type(type),
        other(c.mixed ? (type == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32) : type),
        state(random(draw, type, (c.batch + 2) * row_states, c.shift)),
        x(random(draw, other, rows)),
        dt(random(draw, other, rows, 0, 2)),
        z(random(draw, type, rows, 0, 3)),
        a(random(draw, DType::kFloat32, c.alike ? c.heads : row_states)),
        b(random(draw, other, c.batch * c.groups * c.states)),
        c_of(random(draw, type, c.batch * c.groups * c.states)),
        d(random(draw, DType::kFloat32, c.heads * c.dim)),
        bias(random(draw, DType::kFloat32, c.heads * c.dim)),
        old_state(state),
        y(type, rows) {
    for (int64_t i = 0; i < (c.alike ? c.heads : row_states); ++i) a.set(i, -std::abs(a.get(i)) - 0.01);
    for (int64_t i = 0; i < c.batch; ++i) indices.push_back(i == 1 ? -1 : int32_t(c.batch + 1 - i));
  }
  int64_t state_of(int64_t batch) const { return c.indices ? indices[batch] : batch; }

  void run() {
    const auto of_rows = [&](Elements& of, DType t) {
      return mamba::update::Heads{{of.data(), t, c.heads * c.dim, 1, 0}, c.dim};
    };
    const auto of_groups = [&](Elements& of, DType t) {
      return mamba::update::Heads{{of.data(), t, c.groups * c.states, 1, 0}, c.states};
    };
    const auto of_heads = [&](Elements& of) {
      return mamba::update::Heads{{of.data(), DType::kFloat32, 0, 1, 0}, c.dim};
    };
    const mamba::update::Heads rates =
        c.alike ? mamba::update::Heads{{a.data(), DType::kFloat32, 0, 0, 0}, 1}
                : mamba::update::Heads{{a.data(), DType::kFloat32, 0, c.states, 1}, c.dim * c.states};
    mamba::cuda::state_update({.batch = c.batch,
                               .heads = c.heads,
                               .dim = c.dim,
                               .groups = c.groups,
                               .states = c.states,
                               .softplus = c.softplus,
                               .state = {{state.data(), type, row_states, c.states, 1}, c.dim * c.states},
                               .x = of_rows(x, other),
                               .dt = of_rows(dt, other),
                               .z = c.gate ? of_rows(z, type) : mamba::update::Heads{},
                               .y = of_rows(y, type),
                               .a = rates,
                               .b = of_groups(b, other),
                               .c = of_groups(c_of, type),
                               .d = of_heads(d),
                               .dt_bias = of_heads(bias),
                               .indices = c.indices ? indices.data() : nullptr},
                              nullptr);
    const bool whole = c.states % 8 == 0 && c.shift == 0;
    const int64_t entries = c.alike ? c.batch : (c.batch + 1) / 2, warps = entries * c.heads * ((c.dim + 31) / 32);
    if (whole) ASSERT_EQ(int64_t(gridDim.x), (warps + 3) / 4) << "another kernel than the test is for";
  }
  // A state is below 4 here, and its power's exponent below 6: 2^-20. y has a sum of as many terms as states, each as
  // far off.
  void check_row(int64_t batch, int64_t head, int64_t i) {
    const int64_t entry = state_of(batch), row = (batch * c.heads + head) * c.dim + i, of_head = head * c.dim + i;
    if (entry < 0) {
      ASSERT_EQ(y.get(row), 0);
      return;
    }
    const double raw = dt.get(row) + bias.get(of_head), delta = c.softplus ? std::log1p(std::exp(raw)) : raw;
    const int64_t group = (batch * c.groups + head / (c.heads / c.groups)) * c.states;
    double sum = d.get(of_head) * x.get(row), terms = std::abs(sum) + 1;
    for (int64_t n = 0; n < c.states; ++n) {
      const int64_t at = entry * row_states + of_head * c.states + n;
      const double rate = a.get(c.alike ? head : of_head * c.states + n),
                   h = std::exp(delta * rate) * old_state.get(at) + delta * x.get(row) * b.get(group + n);
      const double error = 0x1p-20 * (1 + std::abs(h) + std::exp(delta * rate));
      ASSERT_NEAR(state.get(at), h, rounding(type, h) + error) << n;
      sum += h * c_of.get(group + n), terms += error * 0x1p20 * std::abs(c_of.get(group + n));
    }
    const double gate = c.gate ? z.get(row) / (1 + std::exp(-z.get(row))) : 1;
    ASSERT_NEAR(y.get(row), sum * gate, rounding(type, sum * gate) + 0x1p-20 * terms * (std::abs(gate) + 0.1));
  }
  void check() {
    std::vector<bool> used(c.batch + 2, false);
    for (int64_t batch = 0; batch < c.batch; ++batch) {
      if (state_of(batch) >= 0) used[state_of(batch)] = true;
      for (int64_t head = 0; head < c.heads; ++head)
        for (int64_t i = 0; i < c.dim; ++i) check_row(batch, head, i);
    }
    for (int64_t row = 0; row < c.batch + 2; ++row)
      for (int64_t i = 0; i < row_states && !used[row]; ++i)
        ASSERT_EQ(state.get(row * row_states + i), old_state.get(row * row_states + i)) << "a state that is not used";
  }
};

TEST(Emulated, StateUpdate) {
  for (const Case& c : kCases) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(testing::Message() << "case " << &c - kCases << " type " << int(type));
      expect_same_in_every_order(type, [&] {
        std::mt19937 draw(27);
        StateUpdate of(c, type, draw);
        of.run();
        of.check();
        return std::pair(of.y.bytes(), of.state.bytes());
      });
      if (HasFailure()) return;
    }
  }
}

}  // namespace
