// The scans' step of generation against float64, against the scan itself, and what it refuses.
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "kernels/mamba/tests/far_apart.h"
#include "kernels/mamba/tests/scan_reference.h"

namespace {

using namespace kernels::testing;
using kernels::package;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

struct Step {  // tensors with heads; without them where `plain`
  Tensor state, x, dt, A, B, C, D, z, bias;
  bool softplus = true;
};
std::optional<Tensor> maybe(const Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

Step random_step(int64_t batch, int64_t heads, int64_t dim, int64_t states, int64_t groups, at::ScalarType dtype,
                 at::ScalarType state) {
  return {.state = random_tensor({batch, heads, dim, states}, state),
          .x = random_tensor({batch, heads, dim}, dtype),
          .dt = random_tensor({batch, heads, dim}, dtype),
          .A = (-at::rand({heads, dim, states}, generator()) * 2).to(device()),
          .B = random_tensor({batch, groups, states}, dtype),
          .C = random_tensor({batch, groups, states}, dtype),
          .D = random_tensor({heads, dim}, at::kFloat),
          .z = random_tensor({batch, heads, dim}, dtype),
          .bias = random_tensor({heads, dim}, at::kFloat)};
}

// y and the new state in float64.
Tensors formula(const Step& s) {
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const auto of_heads = [&](const Tensor& t) {
    return wide(t).repeat_interleave(s.state.size(1) / t.size(1), 1).unsqueeze(2);
  };
  Tensor raw = wide(s.dt);
  if (s.bias.defined()) raw = raw + wide(s.bias);
  const Tensor delta = s.softplus ? at::where(raw > 20, raw, at::log1p(at::exp(raw.clamp_max(20)))) : raw;
  const Tensor h =
      at::exp(delta.unsqueeze(3) * wide(s.A)) * wide(s.state) + (delta * wide(s.x)).unsqueeze(3) * of_heads(s.B);
  Tensor y = (h * of_heads(s.C)).sum(3);
  if (s.D.defined()) y = y + wide(s.D) * wide(s.x);
  if (s.z.defined()) y = y * wide(s.z) * at::sigmoid(wide(s.z));
  return {y, h};
}

Tensor run(const Step& s, const Tensor& state, const std::optional<Tensor>& rows = std::nullopt) {
  return package().call("selective_state_update", state, s.x, s.dt, s.A, s.B, s.C, maybe(s.D), maybe(s.z),
                        maybe(s.bias), rows, s.softplus)[0];
}

// Sums of up to 256 products of both signs, and a power to 2 units.
double step_tolerance(at::ScalarType dtype) { return tolerance(dtype) + 2e-6; }

void expect_matches(const Step& s, const std::string& what) {
  const Tensors want = formula(s);
  const Tensor y = run(s, s.state);
  EXPECT_EQ(y.scalar_type(), s.x.scalar_type());
  expect_close(y, want[0], step_tolerance(y.scalar_type()), what + " y");
  expect_close(s.state, want[1], step_tolerance(s.state.scalar_type()), what + " state");
}

// Mamba-2's: one rate, step and bias a head, expanded.
Step tied(Step s) {
  const auto alike = [](const Tensor& t, int64_t from) {
    Tensor one = t;
    for (int64_t d = from; d < t.dim(); ++d) one = one.narrow(d, 0, 1);
    return one.contiguous().expand(t.sizes());
  };
  s.A = alike(s.A, 1), s.dt = alike(s.dt, 2), s.bias = alike(s.bias, 1), s.D = alike(s.D, 1);
  return s;
}

TEST(SelectiveStateUpdate, EverySize) {
  for (const int64_t states : {1, 8, 16, 17, 64, 128, 256}) {
    for (const auto& [heads, dim, groups] : {std::array<int64_t, 3>{1, 70, 1}, {4, 64, 2}, {3, 5, 1}, {2, 1, 2}}) {
      const std::string what = std::to_string(states) + " states, " + std::to_string(heads) + " heads";
      const Step s = random_step(2, heads, dim, states, groups, at::kFloat, at::kFloat);
      expect_matches(s, what);
      expect_matches(tied(s), what + " alike");
    }
  }
}

// On a GPU a warp has rows of several entries of the batch, which need not be there.
TEST(SelectiveStateUpdate, EveryBatch) {
  for (const int64_t batch : {1, 3, 4, 5, 9}) {
    for (const int64_t states : {4, 8, 12, 16}) {
      for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
        const std::string what = std::to_string(batch) + " entries, " + std::to_string(states) + " states";
        expect_matches(random_step(batch, 1, 37, states, 1, at::kBFloat16, state), what);
      }
    }
  }
}

TEST(SelectiveStateUpdate, EveryDtype) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const at::ScalarType state : kDtypes) {
      const std::string what = std::string(toString(dtype)) + " " + toString(state);
      Step s = random_step(2, 3, 20, 24, 1, dtype, state);
      expect_matches(s, what);
      s.A = s.A.to(at::kBFloat16), s.softplus = false, s.dt = s.dt.abs(), s.bias = Tensor(), s.z = Tensor();
      expect_matches(tied(random_step(2, 3, 20, 24, 1, dtype, state)), what + " alike");
      s.D = Tensor();
      expect_matches(s, what + " without bias, z, D");
    }
  }
}

TEST(SelectiveStateUpdate, AnyStrides) {
  for (const auto& [name, lay] : layouts()) {
    Step s = random_step(2, 3, 20, 24, 3, at::kBFloat16, at::kFloat);
    for (Tensor* t : {&s.state, &s.x, &s.dt, &s.A, &s.B, &s.C, &s.D, &s.z, &s.bias}) *t = lay(*t);
    expect_matches(s, name);
  }
}

TEST(SelectiveStateUpdate, WithoutHeadsIsOneHead) {
  const Step s = random_step(3, 1, 70, 16, 1, at::kFloat, at::kFloat);
  const Tensor state = s.state.clone(), plain_state = s.state.squeeze(1).clone();
  const Tensor y = run(s, state);
  const Step plain{.x = s.x.squeeze(1),
                   .dt = s.dt.squeeze(1),
                   .A = s.A.squeeze(0),
                   .B = s.B.squeeze(1),
                   .C = s.C.squeeze(1),
                   .D = s.D.squeeze(0),
                   .z = s.z.squeeze(1),
                   .bias = s.bias.squeeze(0)};
  expect_equal(run(plain, plain_state), y.squeeze(1), "y");
  expect_equal(plain_state, state.squeeze(1), "state");
}

// Token by token what the scan gives for all; sums over states have another order.
TEST(SelectiveStateUpdate, IsTheScanStepByStep) {
  const mamba_test::Scan scan{.batch = 2, .channels = 70, .length = 9, .states = 16, .b_dims = 3, .c_dims = 3};
  const Tensors in = mamba_test::scan_inputs(scan, at::kFloat);
  const Tensor dy = at::zeros({2, 70, 9});
  const Tensors want = mamba_test::scan_reference(scan, in, dy, at::zeros({2, 70, 16}));
  const Tensor state = in[mamba_test::kInitial].clone();
  Tensors steps;
  for (int64_t t = 0; t < scan.length; ++t) {
    const auto now = [&](int i) { return in[size_t(i)].select(2, t); };
    const Step s{.x = now(mamba_test::kU),
                 .dt = now(mamba_test::kDelta),
                 .A = in[mamba_test::kA],
                 .B = now(mamba_test::kB),
                 .C = now(mamba_test::kC),
                 .D = in[mamba_test::kD],
                 .z = now(mamba_test::kZ),
                 .bias = in[mamba_test::kBias]};
    steps.push_back(run(s, state).unsqueeze(2));
  }
  expect_close(at::cat(steps, 2), want[0], step_tolerance(at::kFloat), "y");
  expect_close(state, want[1], step_tolerance(at::kFloat), "state");
}

TEST(SelectiveStateUpdate, RowsOfTheState) {
  const Step s = random_step(3, 2, 5, 8, 1, at::kFloat, at::kFloat);
  const Tensor rows = random_tensor({5, 2, 5, 8}, at::kFloat);
  Tensor state = rows.clone();
  const Tensor y = run(s, state, at::tensor({4, -1, 0}, at::kInt).to(device()));
  EXPECT_EQ(y[1].abs().max().item<float>(), 0.f);
  const Tensor own = at::stack({rows[4], rows[1], rows[0]});
  const Tensor alone = run(s, own);
  for (const auto& [entry, row] : {std::pair<int64_t, int64_t>{0, 4}, {2, 0}}) {
    expect_equal(y[entry], alone[entry], "y");
    expect_equal(state[row], own[entry], "state");
  }
  for (const int64_t row : {1, 2, 3}) expect_equal(state[row], rows[row], "a row that nobody named");
}

TEST(SelectiveStateUpdate, StridesBeyond32Bits) {
  const Step s = random_step(2, 3, 5, 8, 1, at::kHalf, at::kHalf);
  Step far = s;
  far.x = mamba_test::far_apart(s.x), far.state = mamba_test::far_apart(s.state);
  const Tensor y = run(s, s.state);
  expect_equal(run(far, far.state), y, "y");
  expect_equal(far.state, s.state, "state");
}

TEST(SelectiveStateUpdate, TheSameWithAnyThreads) {
  const Step s = random_step(3, 8, 64, 128, 2, at::kBFloat16, at::kFloat);
  expect_same_with_any_threads(
      [&] {
        const Tensor state = s.state.clone(), y = run(s, state);
        return Tensors{y, state};
      },
      "selective_state_update");
}

TEST(SelectiveStateUpdate, Refusals) {
  const Step good = random_step(2, 4, 5, 3, 2, at::kFloat, at::kFloat);
  const auto refused = [&](Tensor Step::*member, const Tensor& t, const std::vector<std::string>& words) {
    Step s = good;
    s.*member = t;
    expect_refusal([&] { run(s, s.state); }, words);
  };
  refused(&Step::state, zeros({2, 5}), {"[rows, channels, states] or [rows, heads, dim, states]"});
  refused(&Step::state, zeros({3, 4, 5, 3}), {"a state of 2 rows", "got 3", "state_indices"});
  refused(&Step::state, zeros({2, 4, 5, 257}), {"1 to 256 states"});
  refused(&Step::x, zeros({2, 20}), {"expected x [batch, heads, dim]", "[2, 4, 5]"});
  refused(&Step::dt, zeros({2, 4}), {"expected dt"});
  refused(&Step::A, zeros({4}), {"expected A [heads, dim, states]"});
  refused(&Step::A, zeros({4, 5, 3}, at::kComplexFloat), {"complex"});
  refused(&Step::B, zeros({2, 3, 3}), {"3 groups", "got 4"});
  refused(&Step::C, zeros({2, 4, 3}), {"expected C", "[2, 2, 3]"});
  refused(&Step::D, zeros({4}), {"expected D [heads, dim]"});
  expect_refusal([&] { run(good, good.state, zeros({2}, at::kLong)); }, {"state_indices in int32"});
  if (kernels::on_cuda()) return;  // where numbers on a GPU are not looked at
  expect_refusal([&] { run(good, good.state, at::tensor({0, 2}, at::kInt)); }, {"below the state's 2 rows", "got 2"});
}

}  // namespace
