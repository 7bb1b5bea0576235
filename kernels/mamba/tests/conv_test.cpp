// The causal convolution against float64 autograd, its step of generation against the whole, and what it refuses.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "kernels/mamba/tests/far_apart.h"

namespace {

using namespace kernels::testing;
using kernels::on_cuda;
using kernels::package;
using mamba_test::far_apart;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

// With x, weight and, where given, bias and initial_state in `in`.
struct Case {
  int64_t batch, channels, length, width;
  bool bias = true, initial = false;
  int64_t columns = 0;  // of the initial state; 0: width - 1
  Tensor seq_idx;
  std::string activation = "silu";
};

Tensors inputs(const Case& c, at::ScalarType dtype, at::ScalarType weights) {
  Tensors in = {random_tensor({c.batch, c.channels, c.length}, dtype), random_tensor({c.channels, c.width}, weights)};
  if (c.bias) in.push_back(random_tensor({c.channels}, weights));
  if (c.initial) in.push_back(random_tensor({c.batch, c.channels, c.columns > 0 ? c.columns : c.width - 1}, dtype));
  return in;
}
std::optional<Tensor> bias_of(const Case& c, const Tensors& in) { return c.bias ? std::optional(in[2]) : std::nullopt; }
std::optional<Tensor> initial_of(const Case& c, const Tensors& in) {
  return c.initial ? std::optional(in.back()) : std::nullopt;
}
std::optional<Tensor> sequences_of(const Case& c) {
  return c.seq_idx.defined() ? std::optional(c.seq_idx) : std::nullopt;
}

// conv.h's formulas, tap by tap on shifted copies.
Tensors formula(const Case& c, const Tensors& in) {
  const int64_t halo = c.width - 1;
  Tensor before = in[0].new_zeros({c.batch, c.channels, halo});
  if (c.initial) before = in.back().narrow(2, in.back().size(2) - halo, halo);
  const Tensor x = at::cat({before, in[0]}, 2);
  Tensor p = 0 * in[0];
  if (c.bias) p = p + in[2].view({1, -1, 1});
  for (int64_t j = 0; j < c.width && c.length > 0; ++j) {
    Tensor term = in[1].narrow(1, c.width - 1 - j, 1).unsqueeze(0) * x.narrow(2, halo - j, c.length);
    if (c.seq_idx.defined()) {
      const Tensor from = c.seq_idx.index_select(1, (at::arange(c.length, in[0].device()) - j).clamp_min(0));
      term = at::where((from == c.seq_idx).unsqueeze(1), term, at::zeros_like(term));
    }
    p = p + term;
  }
  Tensor y = c.activation == "none" ? p : p * at::sigmoid(p);
  if (c.seq_idx.defined()) y = at::where((c.seq_idx >= 0).unsqueeze(1), y, at::zeros_like(y));
  return {y};
}

// Forward and backward of the op; its gradients of inputs that there are.
Tensors run(const Case& c, const Tensors& in, const Tensor& dy) {
  Tensors out =
      package().call("causal_conv1d", in[0], in[1], bias_of(c, in), initial_of(c, in), sequences_of(c), c.activation);
  const Tensors gradients = package().call("causal_conv1d_bwd", dy, in[0], in[1], bias_of(c, in), initial_of(c, in),
                                           sequences_of(c), c.activation);
  out.insert(out.end(), {gradients[0], gradients[1]});
  if (c.bias) out.push_back(gradients[2]);
  if (c.initial) out.push_back(gradients[3]);
  return out;
}

void expect_matches(const Case& c, at::ScalarType dtype, at::ScalarType weights,
                    const std::function<Tensor(const Tensor&)>& lay, const std::string& what) {
  Tensors in = inputs(c, dtype, weights);
  Tensor dy = random_tensor({c.batch, c.channels, c.length}, dtype);
  const Tensors want = reference([&](const Tensors& leaves) { return formula(c, leaves); }, in, {dy});
  for (Tensor& t : in) t = lay(t);
  const Tensors got = run(c, in, lay(dy));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const at::ScalarType type = i == 0 ? dtype : in[i - 1].scalar_type();
    EXPECT_EQ(got[i].scalar_type(), type);
    // Up to 8 products a sum and an exp: float32 loses a few units more than one rounding.
    expect_close(got[i], want[i], tolerance(type) + 1e-6, what + " result " + std::to_string(i));
  }
}

// Three packed sequences and padding at the end of each row.
Tensor packed(int64_t batch, int64_t length) {
  const Tensor at = at::arange(length, at::kInt);
  const Tensor one = at::where(at >= length - 2, at::full({}, -1, at::kInt), (at * 3).floor_divide(length));
  return one.to(at::kInt).expand({batch, length}).contiguous().to(device());
}
const auto kAsIs = [](const Tensor& t) { return t; };

TEST(CausalConv1d, EveryWidthAndLength) {
  for (int64_t width = 1; width <= 8; ++width) {
    for (const int64_t length : {0, 1, 2, 3, 7, 64, 65, 129}) {
      const std::string what = "width " + std::to_string(width) + " length " + std::to_string(length);
      expect_matches({2, 5, length, width}, at::kFloat, at::kFloat, kAsIs, what);
      expect_matches({1, 67, length, width, false, true}, at::kFloat, at::kFloat, kAsIs, what + " initial state");
    }
  }
}

TEST(CausalConv1d, PartsOfTime) {  // kPart is 512
  for (const int64_t length : {511, 512, 513, 1100}) {
    Case c{2, 3, length, 4, true, true};
    expect_matches(c, at::kFloat, at::kFloat, kAsIs, "length " + std::to_string(length));
    c.seq_idx = packed(2, length);
    expect_matches(c, at::kFloat, at::kFloat, kAsIs, "packed, length " + std::to_string(length));
  }
}

TEST(CausalConv1d, EveryDtypeAndLayout) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const at::ScalarType weights : kDtypes) {
      for (const auto& [name, lay] : layouts()) {
        Case c{2, 70, 37, 4, true, true, 6};
        const std::string what = std::string(toString(dtype)) + " " + toString(weights) + " " + name;
        expect_matches(c, dtype, weights, lay, what);
        c.seq_idx = packed(2, 37);
        c.activation = "none";
        expect_matches(c, dtype, weights, lay, what + " packed");
      }
    }
  }
}

TEST(CausalConv1d, WholeVectors) {  // which a GPU has kernels of their own for, with four taps and one sequence
  const auto channels_last = [](const Tensor& t) {
    return t.dim() == 3 ? t.transpose(1, 2).contiguous().transpose(1, 2) : t;
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t length :
         {8, 61, 64, 200, 256, 520, 1032, 2056, 3096, 8184}) {  // tiles, long rows, blocks for rows
      for (const bool initial : {false, true}) {
        const Case c{2, 24, length, 4, true, initial};
        const std::string what = std::string(toString(dtype)) + " length " + std::to_string(length);
        expect_matches(c, dtype, dtype, kAsIs, what);
        expect_matches(c, dtype, at::kFloat, channels_last, what + " channels last");
      }
    }
  }
}

TEST(CausalConv1d, ManySteps) {
  const auto channels_last = [](const Tensor& t) {
    return t.dim() == 3 ? t.transpose(1, 2).contiguous().transpose(1, 2) : t;
  };
  expect_matches({3, 2048, 1500, 4, true, true}, at::kFloat, at::kFloat, channels_last, "many channels");
  expect_matches({1, 8, 65537, 4}, at::kFloat, at::kFloat, channels_last, "65537 steps");
  expect_matches({1, 3, 65544, 4, true, true}, at::kFloat, at::kFloat, kAsIs, "65544 steps beside each other");
}

TEST(CausalConv1d,
     ManyTilesOfChannels) {  // of eight steps each on a GPU (cuda/sm90_conv_tiles.cuh): a last one of three
  const auto channels_last = [](const Tensor& t) {
    return t.dim() == 3 ? t.transpose(1, 2).contiguous().transpose(1, 2) : t;
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool initial : {false, true})
      expect_matches({5, 24, 13115, 4, true, initial}, dtype, dtype, channels_last, toString(dtype));
  }
  if (!on_cuda()) return;
  expect_matches({4, 1032, 8195, 4, true, true}, at::kBFloat16, at::kBFloat16, channels_last, "two tiles a row");
}

TEST(CausalConv1d, ChannelLastStaysSo) {  // transformers' halves of xz: strides (2 D L, 1, 2 D)
  for (const at::ScalarType dtype : kDtypes) {
    const Tensor xz = random_tensor({2, 33, 2 * 70}, dtype).transpose(1, 2);
    const Tensor x = xz.narrow(1, 70, 70), weight = random_tensor({70, 4}, at::kFloat);
    const auto none = std::optional<Tensor>();
    const Tensor y = package().call("causal_conv1d", x, weight, none, none, none, "swish")[0];
    EXPECT_EQ(y.strides(), at::IntArrayRef({33 * 70, 1, 70}));
    expect_equal(y, package().call("causal_conv1d", x.contiguous(), weight, none, none, none, "silu")[0], "y");
    const Tensor one = x.narrow(0, 0, 1).expand({3, 70, 33});
    const Tensor same = package().call("causal_conv1d", one, weight, none, none, none, "silu")[0];
    expect_equal(same[2], y[0], "an expanded batch");
  }
}

TEST(CausalConv1d, PackedSequencesDoNotLeak) {
  const Case c{1, 9, 30, 4};
  const Tensors in = inputs(c, at::kFloat, at::kFloat);
  Case whole = c;
  whole.seq_idx =
      at::cat({at::full({1, 11}, 5, at::kInt), at::full({1, 12}, 2, at::kInt), at::full({1, 7}, -3, at::kInt)}, 1)
          .to(device());
  Tensors with_nan = in;
  with_nan[0] = in[0].clone();
  with_nan[0].narrow(2, 23, 7).fill_(std::nan(""));  // padding is not looked at
  const Tensor dy = random_tensor({1, 9, 30}, at::kFloat);
  const Tensors got = run(whole, with_nan, dy);
  for (const auto& [first, length] : {std::pair<int64_t, int64_t>{0, 11}, {11, 12}}) {
    Tensors part = in;
    part[0] = in[0].narrow(2, first, length);
    const Tensors alone = run({1, 9, length, 4}, part, dy.narrow(2, first, length));
    expect_equal(got[0].narrow(2, first, length), alone[0], "y");
    expect_equal(got[1].narrow(2, first, length), alone[1], "dx");
  }
  for (const int i : {0, 1}) EXPECT_EQ(got[i].narrow(2, 23, 7).abs().max().item<float>(), 0.f);
  EXPECT_TRUE(got[2].isfinite().all().item<bool>());
}

TEST(CausalConv1d, TheSameWithAnyThreads) {
  const Case c{3, 130, 1500, 4, true, true};
  const Tensors in = inputs(c, at::kBFloat16, at::kFloat);
  const Tensor dy = random_tensor({3, 130, 1500}, at::kBFloat16);
  expect_same_with_any_threads([&] { return run(c, in, dy); }, "causal_conv1d");
}

// Batch entries 2^31 numbers apart: 64-bit offsets. Of the memory between them nothing is touched.
TEST(CausalConv1d, StridesBeyond32Bits) {
  const Case c{2, 5, 40, 4, true, true};
  const Tensors in = inputs(c, at::kHalf, at::kHalf);
  Tensors far = in;
  far[0] = far_apart(in[0]), far[3] = far_apart(in[3]);
  const Tensor dy = random_tensor({2, 5, 40}, at::kHalf);
  const Tensors want = run(c, in, dy), got = run(c, far, far_apart(dy));
  for (size_t i = 0; i < want.size(); ++i) expect_equal(got[i], want[i], "result " + std::to_string(i));
}

// ---- the step of generation

TEST(CausalConv1dUpdate, IsTheWholeStepByStep) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t steps : {1, 2, 5, 70}) {
      for (const int64_t columns : {3, 4, 9}) {
        const Case c{2, 70, 3 * steps, 4};
        const Tensors in = inputs(c, dtype, at::kFloat);
        const auto none = std::optional<Tensor>();
        Case continued = c;
        continued.initial = true;
        Tensors with_state = in;
        with_state.push_back(random_tensor({2, 70, columns}, dtype));
        const Tensor want = package().call("causal_conv1d", in[0], in[1], in[2], with_state.back(), none, "silu")[0];
        Tensor state = with_state.back().clone(), ring = state.roll(1, 2).contiguous();  // token 1's place is column 1
        for (int64_t i = 0; i < 3; ++i) {
          const Tensor x = in[0].narrow(2, i * steps, steps), y = want.narrow(2, i * steps, steps);
          expect_equal(package().call("causal_conv1d_update", x, state, in[1], in[2], none, none, "silu")[0], y, "y");
          const Tensor lengths = at::full({2}, columns + 1 + i * steps, at::kInt).to(device());
          expect_equal(package().call("causal_conv1d_update", x, ring, in[1], in[2], lengths, none, "silu")[0], y,
                       "y of a ring");
        }
        const Tensor all = at::cat({with_state.back(), in[0]}, 2);
        const Tensor last = all.narrow(2, all.size(2) - columns, columns);
        expect_equal(state, last, "state");
        const int64_t end = (1 + 3 * steps) % columns;
        expect_equal(ring, last.roll(end, 2), "ring");
      }
    }
  }
}

TEST(CausalConv1dUpdate, RowsOfTheState) {
  const Tensor rows = random_tensor({5, 20, 4}, at::kBFloat16), x = random_tensor({3, 20}, at::kBFloat16),
               weight = random_tensor({20, 4}, at::kBFloat16);
  const auto none = std::optional<Tensor>();
  const Tensor indices = at::tensor({4, -1, 0}, at::kInt).to(device());
  Tensor state = rows.clone();
  const Tensor y = package().call("causal_conv1d_update", x, state, weight, none, none, indices, "silu")[0];
  ASSERT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(y[1].abs().max().item<float>(), 0.f);
  for (const auto& [entry, row] : {std::pair<int64_t, int64_t>{0, 4}, {2, 0}}) {
    Tensor own = rows.narrow(0, row, 1).clone();
    const Tensor alone =
        package().call("causal_conv1d_update", x.narrow(0, entry, 1), own, weight, none, none, none, "silu")[0];
    expect_equal(y[entry], alone[0], "y");
    expect_equal(state[row], own[0], "state");
  }
  for (const int64_t row : {1, 2, 3}) expect_equal(state[row], rows[row], "a row that nobody named");
}

// One token with all of one type, as models have it, is what the same token is among several.
TEST(CausalConv1dUpdate, OneTokenOfWholeVectors) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t columns : {3, 4}) {
      const Tensor x = random_tensor({3, 40}, dtype), weight = random_tensor({40, 4}, dtype);
      const auto bias = std::optional(random_tensor({40}, dtype)), none = std::optional<Tensor>();
      Tensor state = random_tensor({3, 40, columns}, dtype), apart = state.transpose(1, 2).contiguous().transpose(1, 2);
      const Tensor got = package().call("causal_conv1d_update", x, state, weight, bias, none, none, "silu")[0];
      expect_equal(got, package().call("causal_conv1d_update", x, apart, weight, bias, none, none, "silu")[0], "y");
      expect_equal(state, apart, "state");
    }
  }
}

TEST(CausalConv1d, Refusals) {
  const Tensor x = zeros({2, 6, 5}), weight = zeros({6, 4});
  const auto none = std::optional<Tensor>();
  const auto conv = [&](const Tensor& a, const Tensor& w, std::optional<Tensor> b, std::optional<Tensor> initial,
                        std::optional<Tensor> sequences, const char* activation) {
    return [=] { package().call("causal_conv1d", a, w, b, initial, sequences, activation); };
  };
  expect_refusal(conv(x[0], weight, none, none, none, "silu"), {"causal_conv1d: expected x [batch, channels, length]"});
  expect_refusal(conv(x, zeros({5, 4}), none, none, none, "silu"), {"expected weight", "[6, 4]", "got [5, 4]"});
  expect_refusal(conv(x, zeros({6, 9}), none, none, none, "silu"), {"1 to 8 taps", "got 9"});
  expect_refusal(conv(x, weight, zeros({5}), none, none, "silu"), {"expected bias", "[6]"});
  expect_refusal(conv(x, weight, none, zeros({2, 6, 2}), none, "silu"), {"at least 3 columns", "got 2"});
  expect_refusal(conv(x, weight, none, none, zeros({2, 5}, at::kLong), "silu"), {"seq_idx in int32"});
  expect_refusal(conv(x, weight, none, none, zeros({1, 5}, at::kInt), "silu"), {"expected seq_idx", "[2, 5]"});
  expect_refusal(conv(x, weight, none, none, none, "gelu"), {"none, silu or swish", "gelu"});
  expect_refusal(conv(x.to(at::kDouble), weight, none, none, none, "silu"), {"float32, bfloat16 or float16"});
  expect_refusal(conv(x.to(at::kComplexFloat), weight, none, none, none, "silu"), {"complex"});
  const auto update = [&](const Tensor& state, std::optional<Tensor> lengths, std::optional<Tensor> rows) {
    return [=] { package().call("causal_conv1d_update", x, state, weight, none, lengths, rows, "silu"); };
  };
  expect_refusal(update(zeros({2, 6, 2}), none, none), {"at least 3 columns"});
  expect_refusal(update(zeros({3, 6, 4}), none, none), {"expected state", "[2, 6, 4]"});
  expect_refusal(update(zeros({2, 6, 4}), zeros({3}, at::kInt), none), {"expected cache_seqlens"});
  if (on_cuda()) return;  // where numbers on a GPU are not looked at
  expect_refusal(update(zeros({3, 6, 4}), none, at::tensor({0, 3}, at::kInt)), {"below the state's 3 rows", "got 3"});
}

TEST(EveryDevice, Cuda) { expect_cuda_passes(); }
TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(Isa, IsTheOneAsked) { expect_asked_isa(); }

}  // namespace
