// The selective scan against float64 loops (tests/scan_reference.h), these against autograd, and what it refuses.
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/mamba/tests/far_apart.h"
#include "kernels/mamba/tests/scan_reference.h"

namespace {

using namespace kernels::testing;
using namespace mamba_test;
using kernels::package;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};
const char* const kResults[] = {"y",  "last_state", "du",          "ddelta",        "dA", "dB", "dC",
                                "dD", "dz",         "ddelta_bias", "dinitial_state"};

std::optional<Tensor> maybe(const Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

std::optional<Tensor> sequences_of(const Scan& s) {
  return s.seq_idx.defined() ? std::optional(s.seq_idx.to(device())) : std::nullopt;
}

// y and last_state as the op for inference has them, too, then the gradients in the inputs' order.
Tensors run(const Scan& s, const Tensors& in, const Tensor& dy, const std::optional<Tensor>& dlast) {
  const auto forward = [&](const char* op) {
    return package().call(op, in[kU], in[kDelta], in[kA], in[kB], in[kC], maybe(in[kD]), maybe(in[kZ]),
                          maybe(in[kBias]), maybe(in[kInitial]), sequences_of(s), s.softplus);
  };
  const Tensors saved = forward("selective_scan_fwd"), inference = forward("selective_scan");
  expect_equal(inference[0], saved[0], "y for inference");
  expect_equal(inference[1], saved[1], "last_state for inference");
  Tensors results{saved[0], saved[1]};
  const Tensors gradients =
      package().call("selective_scan_bwd", dy, dlast, in[kU], in[kDelta], in[kA], in[kB], in[kC], maybe(in[kD]),
                     maybe(in[kZ]), maybe(in[kBias]), maybe(in[kInitial]), sequences_of(s), saved[2], s.softplus);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

using Layout = std::function<Tensor(const Tensor&)>;
const Layout kAsIs = [](const Tensor& t) { return t; };

// Float32 keeps a_t to 2 units, and the state is a sum of products of them; what gradients lose where their terms
// cancel is in relation to the terms.
// Of long rows with slow decay they add up like the steps of a walk.
double scan_tolerance(at::ScalarType dtype, int64_t length) {
  return tolerance(dtype) + 4e-6 + std::sqrt(double(length)) * 0x1p-22;
}

void expect_matches(const Scan& s, at::ScalarType dtype, const Layout& lay, const std::string& what) {
  Tensors in = scan_inputs(s, dtype);
  Tensor dy = random_tensor({s.batch, s.channels, s.length}, dtype),
         dlast = random_tensor({s.batch, s.channels, s.states}, at::kFloat);
  Tensors sizes;
  const Tensors want = scan_reference(s, in, dy, dlast, &sizes);
  for (Tensor& t : in) {
    if (t.defined()) t = lay(t);
  }
  const Tensors got = run(s, in, lay(dy), lay(dlast));
  // exp(Δ A) is 0 below -87. Above, A log2 e and its product with Δ are rounded, each to 2^-24 of up to 87: 1e-5 of
  // a_t.
  const bool fast = s.rate > 10;
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string name = what + " " + kResults[i];
    if (!want[i].defined()) {
      EXPECT_EQ(got[i].numel(), 0) << name;
      continue;
    }
    const at::ScalarType type = i == 0 ? dtype : i == 1 ? at::kFloat : in[i - 2].scalar_type();
    EXPECT_EQ(got[i].scalar_type(), type) << name;
    if (want[i].norm().item<double>() < 1e-30) {  // float32 has less and less of such numbers
      EXPECT_LT(got[i].to(at::kDouble).norm().item<double>(), 1e-29) << name;
      continue;
    }
    const Tensor terms = sizes[i].defined() && fast ? sizes[i] * 20 : sizes[i];
    expect_close(got[i], want[i], scan_tolerance(type, s.length) + (fast ? 1e-5 : 0), name, terms);
  }
}

// ---- the reference itself

Tensors formula(const Scan& s, const Tensors& in) {
  const Tensor raw = in[kDelta] + in[kBias].view({1, -1, 1}), delta = s.softplus ? at::softplus(raw) : raw;
  const auto at_step = [&](const Tensor& t, int64_t step) {
    return t.select(-1, step).repeat_interleave(s.channels / s.groups, 1);
  };
  Tensor h = in[kInitial];
  Tensors steps;
  for (int64_t t = 0; t < s.length; ++t) {
    const Tensor d = delta.select(2, t), u = in[kU].select(2, t), z = in[kZ].select(2, t);
    h = at::exp(d.unsqueeze(2) * in[kA]) * h + (d * u).unsqueeze(2) * at_step(in[kB], t);
    steps.push_back(((h * at_step(in[kC], t)).sum(2) + in[kD] * u) * z * at::sigmoid(z));
  }
  return {at::stack(steps, 2), h};
}

TEST(ScanReference, IsAutograd) {
  for (const bool softplus : {true, false}) {
    const Scan s{.batch = 2, .channels = 6, .length = 9, .states = 3, .groups = 2, .softplus = softplus};
    const Tensors in = scan_inputs(s, at::kFloat);
    const Tensor dy = random_tensor({2, 6, 9}, at::kFloat), dlast = random_tensor({2, 6, 3}, at::kFloat);
    const Tensors want = reference([&](const Tensors& leaves) { return formula(s, leaves); }, in, {dy, dlast});
    const Tensors got = scan_reference(s, in, dy, dlast);
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], tolerance(at::kDouble), kResults[i]);
  }
}

// ---- the ops

TEST(SelectiveScan, EveryLength) {  // a chunk is 64 steps
  for (const int64_t length : {0, 1, 2, 63, 64, 65, 129}) {
    const std::string what = "length " + std::to_string(length);
    expect_matches({.batch = 2, .channels = 5, .length = length, .states = 4}, at::kFloat, kAsIs, what);
  }
  for (const int64_t length : {2047, 2048, 2049}) {
    const std::string what = "length " + std::to_string(length);
    expect_matches({.batch = 1, .channels = 3, .length = length, .states = 16}, at::kFloat, kAsIs, what);
  }
}

TEST(SelectiveScan, EveryNumberOfStates) {
  for (const int64_t states : {1, 2, 8, 16, 17, 64, 128, 256}) {
    const std::string what = "states " + std::to_string(states);
    expect_matches({.batch = 1, .channels = 67, .length = 70, .states = states}, at::kFloat, kAsIs, what);
  }
}

TEST(SelectiveScan, EveryFormOfInputs) {
  for (const int b_dims : {4, 3, 2}) {
    for (const int c_dims : {4, 3, 2}) {
      if (b_dims + c_dims == 7) continue;  // as many groups in both
      for (int given = 0; given < 32; ++given) {
        Scan s{.batch = 2, .channels = 6, .length = 66, .states = 5, .groups = b_dims == 4 || c_dims == 4 ? 3 : 1};
        s.b_dims = b_dims, s.c_dims = c_dims;
        s.skip = (given & 1) != 0, s.gate = (given & 2) != 0, s.bias = (given & 4) != 0, s.initial = (given & 8) != 0;
        s.softplus = (given & 16) != 0;
        const std::string what = std::to_string(b_dims) + std::to_string(c_dims) + " " + std::to_string(given);
        expect_matches(s, at::kFloat, kAsIs, what);
      }
    }
  }
}

TEST(SelectiveScan, EveryDtypeAndLayout) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [name, lay] : layouts()) {
      for (const int dims : {4, 2}) {
        const Scan s{
            .batch = 2, .channels = 70, .length = 67, .states = 17, .groups = 2, .b_dims = dims, .c_dims = dims};
        expect_matches(s, dtype, lay, std::string(toString(dtype)) + " " + name + " " + std::to_string(dims));
      }
    }
  }
}

// Blocks of 64 channels in more than the 32 parts that sums over channels have.
TEST(SelectiveScan, ManyChannels) {
  expect_matches({.batch = 1, .channels = 64 * 45 + 7, .length = 9, .states = 3}, at::kFloat, kAsIs, "many channels");
}

// As transformers hands over: halves of xz with channels beside each other, delta of a product, B and C columns of one.
TEST(SelectiveScan, ChannelLastStaysSo) {
  const Scan s{.batch = 2, .channels = 70, .length = 67, .states = 16, .b_dims = 3, .c_dims = 3};
  const Tensor xz = random_tensor({2, 67, 140}, at::kBFloat16).transpose(1, 2),
               columns = random_tensor({2, 67, 37}, at::kBFloat16);
  Tensors in = scan_inputs(s, at::kBFloat16);
  in[kU] = xz.narrow(1, 0, 70), in[kZ] = xz.narrow(1, 70, 70);
  in[kB] = columns.narrow(2, 5, 16).transpose(1, 2), in[kC] = columns.narrow(2, 21, 16).transpose(1, 2);
  Tensors dense = in;
  for (Tensor& t : dense) t = t.contiguous();
  const Tensor dy = random_tensor({2, 67, 70}, at::kBFloat16).transpose(1, 2);
  const Tensors got = run(s, in, dy, std::nullopt), want = run(s, dense, dy.contiguous(), std::nullopt);
  for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], want[i], kResults[i]);
  for (const int i : {0, 2, 8}) EXPECT_EQ(got[i].strides(), at::IntArrayRef({67 * 70, 1, 70})) << kResults[i];
  EXPECT_TRUE(got[3].is_contiguous());
}

TEST(SelectiveScan, FastAndSlowDecay) {
  for (const double rate : {1e-6, 1e-3, 30., 1e4, 1e30}) {
    const Scan s{.batch = 1, .channels = 5, .length = 300, .states = 4, .rate = rate};
    expect_matches(s, at::kFloat, kAsIs, "rate " + std::to_string(rate));
  }
}

TEST(SelectiveScan, EndsOfSoftplus) {  // x itself above 20; e^x far below 0
  for (const double step : {20., 19., -10., -60.}) {
    const Scan s{.batch = 1, .channels = 5, .length = 70, .states = 4, .initial = false, .rate = 0.01, .step = step};
    expect_matches(s, at::kFloat, kAsIs, "delta around " + std::to_string(step));
  }
}

Tensor sequences(const std::vector<std::pair<int, int64_t>>& runs) {
  Tensors parts;
  for (const auto& [id, length] : runs) parts.push_back(at::full({1, length}, id, at::kInt));
  return at::cat(parts, 1);
}

TEST(SelectiveScan, PackedSequences) {
  Scan s{.batch = 2, .channels = 6, .length = 140, .states = 5, .groups = 2};
  s.seq_idx = at::cat(
      {sequences({{-1, 3}, {0, 61}, {1, 1}, {0, 40}, {-2, 30}, {0, 5}}), sequences({{7, 64}, {3, 70}, {-1, 6}})});
  for (const int dims : {4, 2}) {
    s.b_dims = s.c_dims = dims;
    expect_matches(s, at::kFloat, kAsIs, "packed " + std::to_string(dims));
  }
}

// Whole vectors and other lengths go through different kernels on a GPU: the same sums in another order.
void expect_alike(const Tensor& got, const Tensor& want, const char* name, double close = 2e-6) {
  device().is_cpu() ? expect_equal(got, want, name) : expect_close(got, want, close, name);
}

TEST(SelectiveScan, PackedSequencesAreAsAlone) {
  Scan s{.batch = 1, .channels = 6, .length = 192, .states = 5, .b_dims = 3, .c_dims = 3, .initial = false};
  s.seq_idx = sequences({{0, 64}, {1, 70}, {-1, 58}});
  Tensors in = scan_inputs(s, at::kFloat);
  for (const int i : {kU, kDelta, kB, kC, kZ}) in[i].narrow(2, 134, 58).fill_(std::nan(""));  // nobody looks at padding
  Tensor dy = random_tensor({1, 6, 192}, at::kFloat);
  dy.narrow(2, 134, 58).fill_(std::nan(""));
  const Tensor dlast = random_tensor({1, 6, 5}, at::kFloat);
  const Tensors got = run(s, in, dy, dlast);
  for (const auto& [first, length] : {std::pair<int64_t, int64_t>{0, 64}, {64, 70}}) {
    Scan alone = s;
    alone.seq_idx = Tensor();
    alone.length = length;
    Tensors part = in;
    for (const int i : {kU, kDelta, kB, kC, kZ}) part[i] = in[i].narrow(2, first, length);
    const bool last = first > 0;
    const Tensors want = run(alone, part, dy.narrow(2, first, length), last ? dlast : at::zeros_like(dlast));
    for (const int i : {0, 2, 3, 5, 6, 8}) expect_alike(got[i].narrow(2, first, length), want[i], kResults[i]);
    if (last) expect_alike(got[1], want[1], "last_state");
  }
  for (const int i : {0, 2, 3, 5, 6, 8}) EXPECT_EQ(got[i].narrow(2, 134, 58).abs().max().item<float>(), 0.f);
  for (const int i : {4, 7, 9}) EXPECT_TRUE(got[i].isfinite().all().item<bool>()) << kResults[i];
}

// A long row in two parts, the state handed from one to the other and its gradient back.
TEST(SelectiveScan, LongRowsAreTheirParts) {
  const int64_t length = 65537, half = 32768;
  const Scan s{.batch = 1, .channels = 3, .length = length, .states = 4, .b_dims = 3, .c_dims = 3};
  const Tensors in = scan_inputs(s, at::kFloat);
  const Tensor dy = random_tensor({1, 3, length}, at::kFloat), dlast = random_tensor({1, 3, 4}, at::kFloat);
  const Tensors whole = run(s, in, dy, dlast), want = scan_reference(s, in, dy, dlast);
  // Sums over 65537 steps, in float32 within a chunk of 64 and over 1025 of them.
  for (size_t i = 0; i < whole.size(); ++i) expect_close(whole[i], want[i], 2e-5, kResults[i]);
  const auto part = [&](int64_t first, int64_t count, const Tensor& initial) {
    Tensors cut = in;
    for (const int i : {kU, kDelta, kB, kC, kZ}) cut[i] = in[i].narrow(2, first, count);
    cut[kInitial] = initial;
    return cut;
  };
  Scan first = s, second = s;
  first.length = half, second.length = length - half;
  const Tensors start = part(0, half, in[kInitial]);
  const Tensor middle = run(first, start, dy.narrow(2, 0, half), dlast)[1];
  const Tensors later = run(second, part(half, length - half, middle), dy.narrow(2, half, length - half), dlast);
  const Tensors earlier = run(first, start, dy.narrow(2, 0, half), later[10]);
  for (const int i : {0, 2, 3, 5, 6, 8}) expect_alike(at::cat({earlier[i], later[i]}, 2), whole[i], kResults[i], 2e-5);
  expect_alike(later[1], whole[1], "last_state", 2e-5);
  expect_alike(earlier[10], whole[10], "dinitial_state", 2e-5);
}

TEST(SelectiveScan, FewChannels) {  // a GPU takes parts of the time beside each other (cuda/sm80_scan_split.cuh)
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, lay] : layouts()) {
      for (const int64_t length : {1024, 1075}) {
        for (const bool initial : {true, false}) {
          const Scan s{
              .batch = 1, .channels = 72, .length = length, .states = 16, .b_dims = 3, .c_dims = 3, .initial = initial};
          expect_matches(s, dtype, lay, std::string(toString(dtype)) + " " + name + " " + std::to_string(length));
        }
      }
    }
  }
  const Scan entries{
      .batch = 2, .channels = 6, .length = 2100, .states = 17, .groups = 2, .softplus = false, .step = 0.1};
  expect_matches(entries, at::kFloat, kAsIs, "two entries");
}

TEST(SelectiveScan, StridesBeyond32Bits) {
  const Scan s{.batch = 2, .channels = 6, .length = 70, .states = 5, .groups = 2};
  const Tensors in = scan_inputs(s, at::kHalf);
  const Tensor dy = random_tensor({2, 6, 70}, at::kHalf), dlast = random_tensor({2, 6, 5}, at::kHalf);
  Tensors far = in;
  for (const int i : {kU, kDelta, kB, kC, kZ}) far[i] = far_apart(in[i]);
  const Tensors want = run(s, in, dy, dlast), got = run(s, far, far_apart(dy), far_apart(dlast));
  for (size_t i = 0; i < want.size(); ++i) expect_equal(got[i], want[i], kResults[i]);
}

TEST(SelectiveScan, TheSameWithAnyThreads) {
  const Scan s{.batch = 2, .channels = 200, .length = 150, .states = 16, .groups = 2};
  const Tensors in = scan_inputs(s, at::kBFloat16);
  const Tensor dy = random_tensor({2, 200, 150}, at::kBFloat16), dlast = random_tensor({2, 200, 16}, at::kFloat);
  expect_same_with_any_threads([&] { return run(s, in, dy, dlast); }, "selective_scan");
}

TEST(SelectiveScan, Refusals) {
  const Scan s{.batch = 2, .channels = 6, .length = 5, .states = 3, .groups = 2};
  const Tensors good = scan_inputs(s, at::kFloat);
  const auto with = [&](int i, const Tensor& t, const std::vector<std::string>& words) {
    Tensors in = good;
    in[i] = t;
    expect_refusal(
        [&] {
          package().call("selective_scan", in[kU], in[kDelta], in[kA], in[kB], in[kC], maybe(in[kD]), maybe(in[kZ]),
                         maybe(in[kBias]), maybe(in[kInitial]), std::optional<Tensor>(), true);
        },
        words);
  };
  with(kU, zeros({2, 6}), {"selective_scan: expected u [batch, channels, length]"});
  with(kDelta, zeros({2, 6, 4}), {"expected delta", "[2, 6, 5]", "got [2, 6, 4]"});
  with(kA, zeros({6, 3}, at::kComplexFloat), {"expected A in real values", "complex"});
  with(kA, zeros({6, 257}), {"1 to 256 states", "got 257"});
  with(kA, zeros({5, 3}), {"expected A", "[6, 3]"});
  with(kB, zeros({2, 1, 3, 5}), {"as many groups", "got 1 and 2"});
  with(kB, zeros({2, 4, 5}), {"expected B [batch, states, length]"});
  with(kC, zeros({3}), {"[batch, groups, states, length], [batch, states, length] or [channels, states]"});
  with(kD, zeros({7}), {"expected D", "[6]"});
  with(kZ, zeros({2, 6, 5}, at::kDouble), {"float32, bfloat16 or float16"});
  with(kBias, zeros({6, 1}), {"expected delta_bias"});
  with(kInitial, zeros({2, 3, 6}), {"expected initial_state", "[2, 6, 3]"});
  expect_refusal(
      [&] {
        const auto none = std::optional<Tensor>();
        package().call("selective_scan", zeros({1, 6, 5}), zeros({1, 6, 5}), good[kA], zeros({1, 4, 3, 5}),
                       zeros({1, 4, 3, 5}), none, none, none, none, none, true);
      },
      {"4 groups", "got 6"});
}

}  // namespace
