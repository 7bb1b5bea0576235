// A bound slot computes what its stock forward computes, forward and backward, and the package's ops are what ran. How
// near both are to float64 is tested in each package and in layers/.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/kernelize/bind/test_bind.h"

namespace hotswap {
namespace {

using test_support::Bound;
using test_support::bundled_layer;
using test_support::difference;
using test_support::expect_has;
using test_support::kTolerance;
using test_support::leaves;
using test_support::message_of;
using Run = std::function<Tensors(const Tensors& in)>;

Tensor randn(at::IntArrayRef shape) { return at::randn(shape, at::kFloat); }

// Outputs, then the gradients of all floating inputs; an undefined dout: that output is not used.
Tensors forward_backward(const Run& run, const Tensors& inputs, const Tensors& douts) {
  const Tensors in = leaves(inputs, true);
  Tensors roots, grads, result;
  const Tensors out = run(in);
  for (size_t i = 0; i < out.size(); ++i) {
    result.push_back(out[i].detach());
    if (!douts.at(i).defined()) continue;
    roots.push_back(out[i]);
    grads.push_back(douts[i]);
  }
  torch::autograd::backward(roots, grads);
  for (const Tensor& tensor : in) {
    if (tensor.is_floating_point()) result.push_back(tensor.grad());
  }
  return result;
}

Tensors in_float64(const Tensors& values) {
  Tensors result;
  for (const Tensor& t : values) result.push_back(t.defined() && t.is_floating_point() ? t.to(at::kDouble) : t);
  return result;
}

// The norm of each result, of a gradient the largest of several draws of douts: it is linear in them, and one draw may
// leave hardly more of it than the rounding of terms that cancel.
std::vector<double> sizes_of(const Tensors& want, const Run& stock, const Tensors& inputs, const Tensors& douts) {
  std::vector<double> sizes;
  const auto grow = [&](size_t i, const Tensor& result) {
    if (result.defined()) sizes[i] = std::max(sizes[i], result.norm().item<double>());
  };
  for (const Tensor& result : want) {
    sizes.push_back(1e-30);
    grow(sizes.size() - 1, result);
  }
  for (int draw = 0; draw < 4; ++draw) {
    Tensors other;
    for (const Tensor& dout : douts) other.push_back(dout.defined() ? at::randn_like(dout) : dout);
    const Tensors results = forward_backward(stock, inputs, other);
    for (size_t i = douts.size(); i < results.size(); ++i) grow(i, results[i]);
  }
  return sizes;
}

struct Ops {
  std::string package, forward, train, backward;
  int64_t backward_calls = 1;
  double tolerance = kTolerance;
  std::string inplace = {};  // what may run in backward's place, where it owns what it writes over
};

void check(const Run& bound, const Run& stock, const Tensors& inputs, const Tensors& douts, const Ops& ops) {
  const auto calls = [&](const std::string& op) { return op_calls(ops.package, op); };
  const bool one_op = ops.forward == ops.train;
  const auto backward_calls = [&] { return calls(ops.backward) + (ops.inplace.empty() ? 0 : calls(ops.inplace)); };
  const int64_t train = calls(ops.train), backward = backward_calls();
  const Tensors got = forward_backward(bound, inputs, douts);
  // In float64, as stock in float32 may be further from it than the kernel: in a gradient of decays five times as far.
  const Tensors exact_inputs = in_float64(inputs), exact_douts = in_float64(douts);
  const Tensors want = forward_backward(stock, exact_inputs, exact_douts);
  EXPECT_EQ(calls(ops.train), train + 1) << ops.train;
  EXPECT_EQ(backward_calls(), backward + ops.backward_calls) << ops.backward;
  ASSERT_EQ(got.size(), want.size());
  const std::vector<double> sizes = sizes_of(want, stock, exact_inputs, exact_douts);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << ops.forward << " result " << i;
    if (!got[i].defined()) continue;
    ASSERT_EQ(got[i].sizes(), want[i].sizes()) << ops.forward << " result " << i;
    const double error = (got[i].to(at::kDouble) - want[i]).norm().item<double>();
    EXPECT_LT(error / sizes[i], ops.tolerance) << ops.forward << " result " << i;
  }
  const int64_t forward = calls(ops.forward);
  const auto quietly = [&](const Tensors& in) {
    const Tensors out = bound(in);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_FALSE(out[i].requires_grad());
      EXPECT_LT(difference(out[i], want[i]), ops.tolerance) << ops.forward << " without gradients";
    }
  };
  quietly(leaves(inputs, false));
  {
    const at::NoGradGuard guard;
    quietly(leaves(inputs, true));
  }
  {
    const c10::InferenceMode guard;
    quietly(leaves(inputs, false));
  }
  EXPECT_EQ(calls(ops.forward), forward + 3) << ops.forward;
  if (one_op) return;
  EXPECT_EQ(calls(ops.train), train + 1) << "without gradients the inference op runs";
}

// The examples that benchmarks time, so that what they time is right.
TEST(Bind, EveryBundledLayerOnItsContractsExample) {
  int layers = 0;
  for (const Manifest& manifest : bundled_packages()) {
    if (manifest.backend != "cpu") continue;
    for (const auto& [name, entry] : manifest.layers) {
      SCOPED_TRACE(cat(manifest.name, ":", name));
      const PackageLayer& layer = load_package(manifest).layer(name);
      const auto made = example_of(layer.contract()).make(name, {.rows = 5, .dim = 64, .out = 24});
      const LayerExample& example = *made;
      Tensors inputs;
      const auto is_input = [](const c10::IValue& value) {
        return value.isTensor() && value.toTensor().is_floating_point();
      };
      for (const c10::IValue& value : example.arguments) {
        if (is_input(value) && inputs.size() < example.trained) inputs.push_back(value.toTensor());
      }
      const auto run = [&](const ExampleForward& forward) {
        return [&, forward](const Tensors& in) {
          auto arguments = example.arguments;
          size_t next = 0;
          for (c10::IValue& value : arguments) {
            if (!is_input(value)) continue;
            value = next < in.size() ? in[next++] : value.toTensor().to(in[0].scalar_type());
          }
          return forward(arguments);
        };
      };
      Tensors douts;
      for (const Tensor& out : example.stock(example.arguments)) douts.push_back(at::randn_like(out));
      if (!entry.capabilities.backward) {  // inference alone
        const int64_t before = op_calls(manifest.name, entry.ops.at("forward"));
        const Tensor got = example.bound(layer)(example.arguments).at(0), want = example.stock(example.arguments).at(0);
        EXPECT_LT(difference(got, want), kTolerance);
        EXPECT_EQ(op_calls(manifest.name, entry.ops.at("forward")), before + 1);
        ++layers;
        continue;
      }
      const Ops ops{manifest.name,
                    entry.ops.at("forward"),
                    entry.ops.at("forward_train"),
                    entry.ops.at("backward"),
                    entry.contract == "linear_cross_entropy/1" ? 0 : 1,  // its forward_train gives the gradients
                    kTolerance,
                    entry.contract == "moe/1" ? entry.ops.at("backward_inplace") : ""};
      check(run(example.bound(layer)), run(example.stock), inputs, douts, ops);
      ++layers;
    }
  }
  EXPECT_GT(layers, 20);
}

TEST(Bind, RmsNorm) {
  const Bound<RmsNormForward> bound(bundled_layer("norm", "RMSNorm"), stock::rms_norm);
  for (const auto& c : {std::pair<std::string, double>{"llama", 0}, {"gemma", 1}, {"none", 0.5}}) {
    const std::string& casting = c.first;
    const double offset = c.second;
    check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], 1e-6, offset, casting)}; },
          [&](const Tensors& in) { return Tensors{stock::rms_norm(in[0], in[1], 1e-6, offset, casting)}; },
          {randn({2, 3, 37}), randn({37})}, {randn({2, 3, 37})}, {"norm", "rms_norm", "rms_norm_fwd", "rms_norm_bwd"});
  }
}

TEST(Bind, RmsNormTakesExpandedAndStridedGradients) {
  const Bound<RmsNormForward> bound(bundled_layer("norm", "RMSNorm"), stock::rms_norm);
  for (const Tensor& dy : {at::full({}, 0.7f).expand({4, 5}), randn({5, 4}).t(), randn({4, 10}).slice(1, 0, 10, 2)}) {
    check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], 1e-6, 0., "llama")}; },
          [&](const Tensors& in) { return Tensors{stock::rms_norm(in[0], in[1], 1e-6, 0, "llama")}; },
          {randn({4, 5}), randn({5})}, {dy}, {"norm", "rms_norm", "rms_norm_fwd", "rms_norm_bwd"});
  }
}

TEST(Bind, AddRmsNormWithEitherOutputUnused) {
  const auto stock = [](const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, double offset,
                        const std::string& casting) {
    const Tensor h = x + residual;
    return std::tuple(stock::rms_norm(h, weight, eps, offset, casting), h);
  };
  const Bound<AddRmsNormForward> bound(bundled_layer("norm", "AddRMSNorm"), stock);
  const auto run = [](const auto& forward) {
    return [&](const Tensors& in) {
      auto [y, h] = forward(in[0], in[1], in[2], 1e-5, 0., std::string("llama"));
      return Tensors{y, h};
    };
  };
  for (const auto& douts :
       {Tensors{randn({3, 19}), randn({3, 19})}, {randn({3, 19}), Tensor()}, {Tensor(), randn({3, 19})}}) {
    // Where y is unused plain autograd leaves the weight's gradient undefined; a kernel gives zeros.
    const bool no_y = !douts[0].defined();
    if (no_y) {
      const Tensors got = forward_backward(run(bound), {randn({3, 19}), randn({3, 19}), randn({19})}, douts);
      EXPECT_TRUE(test_support::same_bits(got[2], douts[1]) && test_support::same_bits(got[3], douts[1]));
      EXPECT_EQ(got[4].abs().sum().item<double>(), 0);
      continue;
    }
    check(run(bound), run(stock), {randn({3, 19}), randn({3, 19}), randn({19})}, douts,
          {"norm", "add_rms_norm", "add_rms_norm_fwd", "add_rms_norm_bwd"});
  }
}

TEST(Bind, LayerNormWithAndWithoutBias) {
  const Bound<LayerNormForward> bound(bundled_layer("norm", "LayerNorm"), stock::layer_norm);
  const Ops ops{"norm", "layer_norm", "layer_norm_fwd", "layer_norm_bwd"};
  check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], in[2], 1e-5)}; },
        [&](const Tensors& in) { return Tensors{stock::layer_norm(in[0], in[1], in[2], 1e-5)}; },
        {randn({7, 21}), randn({21}), randn({21})}, {randn({7, 21})}, ops);
  for (const std::optional<Tensor>& none : {std::optional<Tensor>(), std::optional<Tensor>(Tensor())}) {
    check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], none, 1e-5)}; },
          [&](const Tensors& in) { return Tensors{stock::layer_norm(in[0], in[1], std::nullopt, 1e-5)}; },
          {randn({7, 21}), randn({21})}, {randn({7, 21})}, ops);
  }
}

TEST(Bind, EveryActivation) {
  const std::vector<std::array<std::string, 3>> table = {{"silu", "SiLU", "silu"},
                                                         {"gelu", "GeLU", "gelu"},
                                                         {"gelu_pytorch_tanh", "GeluTanh", "gelu_tanh"},
                                                         {"gelu_new", "NewGELU", "gelu_new"},
                                                         {"gelu_fast", "FastGELU", "gelu_fast"},
                                                         {"quick_gelu", "QuickGELU", "gelu_quick"},
                                                         {"relu2", "ReLUSquared", "relu_squared"}};
  for (const auto& [name, layer, op] : table) {
    const auto& kind = activation_kind(name, "a test");
    EXPECT_EQ(kind.layer, layer);
    const Bound<ActivationForward> bound(bundled_layer("activation", layer), kind.stock);
    check([&](const Tensors& in) { return Tensors{bound(in[0])}; },
          [&](const Tensors& in) { return Tensors{kind.stock(in[0])}; }, {randn({3, 5, 7})}, {randn({3, 5, 7})},
          {"activation", op, op, op + "_bwd"});
  }
}

TEST(Bind, GatedMlpOnHalvesOfOneTensor) {
  for (const auto& [layer, name, op] :
       {std::array<const char*, 3>{"SwiGLUMLP", "silu", "swiglu"}, {"GeGLUMLP", "gelu_pytorch_tanh", "geglu"}}) {
    const auto act = activation_kind(name, "a test").stock;
    const auto stock = [&](const Tensor& gate, const Tensor& up) { return act(gate) * up; };
    const Bound<GatedForward> bound(bundled_layer("mlp", layer), stock);
    const Ops ops{"mlp", op, op, std::string(op) + "_bwd"};
    check([&](const Tensors& in) { return Tensors{bound(in[0], in[1])}; },
          [&](const Tensors& in) { return Tensors{stock(in[0], in[1])}; }, {randn({5, 9}), randn({5, 9})},
          {randn({5, 9})}, ops);
    check([&](const Tensors& in) { return Tensors{bound(in[0].narrow(1, 0, 9), in[0].narrow(1, 9, 9))}; },
          [&](const Tensors& in) { return Tensors{stock(in[0].narrow(1, 0, 9), in[0].narrow(1, 9, 9))}; },
          {randn({5, 18})}, {randn({5, 9})}, ops);
  }
}

// The gradients go over gate and up where nobody can read these again, and only there.
TEST(Bind, GatedMlpWritesGradientsOverWhatOnlyTheGraphHolds) {
  const auto act = activation_kind("silu", "a test").stock;
  const auto stock = [&](const Tensor& gate, const Tensor& up) { return act(gate) * up; };
  const Bound<GatedForward> bound(bundled_layer("mlp", "SwiGLUMLP"), stock);
  const Tensors values = {randn({5, 9}), randn({5, 9})};
  struct Case {
    const char* what;
    std::function<Tensor(const std::function<Tensor(Tensor, Tensor)>&, Tensor gate, Tensor up, Tensors& held)> loss;
    bool in_place = false, keep_graph = false;
  };
  const auto alone = [](const auto& gated, Tensor gate, Tensor up, Tensors&) {
    return gated(std::move(gate), std::move(up)).sum();
  };
  const std::vector<Case> cases = {
      {"alone", alone, true},
      {"kept graph", alone, false, true},
      {"held",
       [](const auto& gated, Tensor gate, Tensor up, Tensors& held) {
         held.push_back(gate);
         return gated(gate, std::move(up)).sum();
       }},
      {"held through a view",
       [](const auto& gated, Tensor gate, Tensor up, Tensors& held) {
         held.push_back(up.detach().narrow(0, 1, 2));
         return gated(std::move(gate), std::move(up)).sum();
       }},
      {"saved by a node that runs later",
       [](const auto& gated, Tensor gate, Tensor up, Tensors&) {
         const Tensor square = up * up;
         return (gated(std::move(gate), std::move(up)) + square).sum();
       }},
      {"twice the same", [](const auto& gated, Tensor gate, Tensor, Tensors&) { return gated(gate, gate).sum(); }},
      {"halves",
       [](const auto& gated, Tensor gate, Tensor up, Tensors&) {
         const Tensor both = at::cat({gate, up}, 1);
         return gated(both.narrow(1, 0, 9), both.narrow(1, 9, 9)).sum();
       }},
  };
  for (const Case& c : cases) {
    const auto gradients = [&](const std::function<Tensor(Tensor, Tensor)>& gated) {
      const Tensors in = leaves(values, true);
      Tensors held;
      const Tensor loss = c.loss(gated, in[0] * 2, in[1] * 2, held);  // products: what only the graph knows
      const Tensors before = [&] {
        Tensors copies;
        for (const Tensor& t : held) copies.push_back(t.detach().clone());
        return copies;
      }();
      torch::autograd::backward({loss}, {}, c.keep_graph);
      if (c.keep_graph) torch::autograd::backward({loss}, {});
      for (size_t i = 0; i < held.size(); ++i)
        EXPECT_TRUE(test_support::same_bits(held[i].detach(), before[i])) << c.what;
      return Tensors{in[0].grad(), in[1].grad()};
    };
    const int64_t in_place = op_calls("mlp", "swiglu_bwd_"), apart = op_calls("mlp", "swiglu_bwd");
    const Tensors got = gradients([&](const Tensor& gate, const Tensor& up) { return bound(gate, up); });
    EXPECT_EQ(op_calls("mlp", "swiglu_bwd_") - in_place, c.in_place || c.keep_graph) << c.what;
    EXPECT_EQ(op_calls("mlp", "swiglu_bwd") - apart, !c.in_place) << c.what;
    const Tensors want = gradients(stock);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].defined(), want[i].defined()) << c.what;
      if (!want[i].defined()) continue;
      EXPECT_LT(difference(got[i], want[i]), kTolerance) << c.what;
    }
  }
}

TEST(Bind, RotaryTurnsBothAndBack) {
  const Bound<RotaryForward> bound(bundled_layer("rotary", "rotary_pos_emb"), stock::rotary);
  const Tensor angle = randn({1, 5, 4}).repeat({1, 1, 2}), cos = angle.cos(), sin = angle.sin();  // [1, 5, 8]
  const auto run = [&](const auto& forward) {
    return [&](const Tensors& in) {
      auto [q, k] = forward(in[0].transpose(1, 2), in[1].transpose(1, 2), cos, sin, int64_t{8}, false);
      return Tensors{q, k};
    };
  };
  const Ops ops{"rotary", "rotary", "rotary", "rotary_bwd"};
  const Tensors in = {randn({2, 5, 4, 8}), randn({2, 5, 2, 8})};
  check(run(bound), run(stock::rotary), in, {randn({2, 4, 5, 8}), randn({2, 2, 5, 8})}, ops);
  check(run(bound), run(stock::rotary), in,
        {at::full({}, 0.3f).expand({2, 4, 5, 8}), randn({2, 2, 8, 5}).transpose(2, 3)}, ops);
  const Tensor needy = cos.clone().set_requires_grad(true);
  expect_has(message_of([&] {
               bound(randn({2, 4, 5, 8}), randn({2, 2, 5, 8}), needy, sin, int64_t{8}, false);
             }),
             {"cos and sin without gradient", "rotary:rotary_pos_emb"});
}

TEST(Bind, LinearWithAndWithoutBias) {
  const Bound<LinearForward> bound(bundled_layer("linear", "Linear"), stock::linear);
  const Ops ops{"linear", "linear", "linear", "linear_bwd"};
  check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], in[2])}; },
        [&](const Tensors& in) { return Tensors{stock::linear(in[0], in[1], in[2])}; },
        {randn({2, 3, 17}), randn({11, 17}), randn({11})}, {randn({2, 3, 11})}, ops);
  check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], std::optional<Tensor>())}; },
        [&](const Tensors& in) { return Tensors{stock::linear(in[0], in[1], std::nullopt)}; },
        {randn({1, 17}), randn({11, 17})}, {randn({1, 11})}, ops);
}

const Tensor& targets() {  // [6], one ignored
  static const Tensor target = [] {
    Tensor t = at::randint(0, 13, {6}, at::kLong);
    t[2] = -100;
    return t;
  }();
  return target;
}

std::vector<CrossEntropyOptions> loss_options() {
  return {{},
          {.reduction = "sum"},
          {.reduction = "none"},
          {.label_smoothing = 0.1, .softcap = 5, .z_loss = 1e-2, .reduction = "mean"},
          {.softcap = 5, .z_loss = 1e-2, .reduction = "none"},
          {.class_weight = randn({13}).abs()},
          {.label_smoothing = 0.1, .z_loss = 1e-2, .class_weight = randn({13}).abs(), .token_scaling = true},
          {.z_loss = 1e-2, .reduction = "none", .class_weight = randn({13}).abs(), .token_scaling = true}};
}

Tensor dloss_for(const CrossEntropyOptions& options, double scale) {
  return options.reduction == "none" ? randn({6}) : at::full({}, scale, at::kFloat);
}

TEST(Bind, CrossEntropy) {
  const Bound<CrossEntropyForward> bound(bundled_layer("loss", "ForCausalLMLoss"), stock::cross_entropy);
  for (const auto& options : loss_options()) {
    check([&](const Tensors& in) { return Tensors{bound(in[0], targets(), options)}; },
          [&](const Tensors& in) { return Tensors{stock::cross_entropy(in[0], targets(), options)}; }, {randn({6, 13})},
          {dloss_for(options, 0.25)}, {"loss", "cross_entropy", "cross_entropy_fwd", "cross_entropy_bwd"});
  }
}

TEST(Bind, LinearCrossEntropyWhateverComesBack) {
  const Bound<LinearCrossEntropyForward> bound(bundled_layer("loss", "LinearCrossEntropy"),
                                               stock::linear_cross_entropy);
  for (const auto& options : loss_options()) {
    // Products of 8 numbers are logits up to 10, whose float32 rounding, half of 2^-20, is the probabilities' relative
    // one on both sides: 1e-6; and the bias's gradient is a sum of them that cancels.
    constexpr double kOfLogits = 1e-5;
    const Ops ops{"loss",
                  "linear_cross_entropy",
                  "linear_cross_entropy_fwd",
                  "linear_cross_entropy_bwd",
                  options.reduction == "none",
                  kOfLogits};
    for (const double scale : {1.0, 0.25}) {
      const Tensor dloss = dloss_for(options, scale);
      check([&](const Tensors& in) { return Tensors{bound(in[0], in[1], in[2], targets(), options)}; },
            [&](const Tensors& in) {
              return Tensors{stock::linear_cross_entropy(in[0], in[1], in[2], targets(), options)};
            },
            {randn({6, 8}), randn({13, 8}), randn({13})}, {dloss}, ops);
      check(
          [&](const Tensors& in) { return Tensors{bound(in[0], in[1], std::optional<Tensor>(), targets(), options)}; },
          [&](const Tensors& in) {
            return Tensors{stock::linear_cross_entropy(in[0], in[1], std::nullopt, targets(), options)};
          },
          {randn({6, 8}), randn({13, 8})}, {dloss}, ops);
    }
  }
}

TEST(Bind, LinearCrossEntropyGraphsCanBeWalkedTwice) {
  const Bound<LinearCrossEntropyForward> bound(bundled_layer("loss", "LinearCrossEntropy"),
                                               stock::linear_cross_entropy);
  const Tensors in = leaves({randn({6, 8}), randn({13, 8})}, true);
  const Tensor loss = bound(in[0], in[1], std::optional<Tensor>(), targets(), CrossEntropyOptions{});
  const Tensor dloss = at::full({}, 0.5f);
  torch::autograd::backward({loss}, {dloss}, /*retain_graph=*/true);
  const Tensor once = in[1].grad().clone();
  torch::autograd::backward({loss}, {dloss}, /*retain_graph=*/true);
  torch::autograd::backward({loss}, {at::full({}, 1.f)}, /*retain_graph=*/false);
  EXPECT_LT(difference(in[1].grad(), once * 4), kTolerance);

  const Tensor other = bound(in[0], in[1], std::optional<Tensor>(), targets(), CrossEntropyOptions{});
  const Tensor first = torch::autograd::grad({other}, {in[1]}, {}, /*retain_graph=*/true)[0], copy = first.clone();
  first.zero_();  // whose it is now
  EXPECT_TRUE(at::equal(torch::autograd::grad({other}, {in[1]})[0], copy));
}

// A third is no number of sixteen bits, and a loss scaler's 2^17 none of float16.
TEST(Bind, LinearCrossEntropyTimesWhatNoShortNumberHolds) {
  const Bound<LinearCrossEntropyForward> bound(bundled_layer("loss", "LinearCrossEntropy"),
                                               stock::linear_cross_entropy);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Tensors values = {(randn({6, 8}) * 1e-3).to(dtype), (randn({13, 8}) * 1e-3).to(dtype)};
    const auto gradients = [&](const Tensor& dloss) {
      const auto run = [&](const Tensors& in) {
        return Tensors{bound(in[0], in[1], std::optional<Tensor>(), targets(), CrossEntropyOptions{})};
      };
      return forward_backward(run, values, {dloss});
    };
    const Tensors one = gradients(at::full({}, 1.f));
    for (const float factor : {1.f / 3, 131072.f}) {
      const Tensors got = gradients(at::full({}, factor));
      for (size_t i = 1; i < got.size(); ++i) {
        EXPECT_TRUE(got[i].isfinite().all().item<bool>());
        EXPECT_TRUE(at::equal(got[i], (one[i].to(at::kFloat) * factor).to(dtype))) << dtype << " times " << factor;
      }
    }
  }
}

TEST(Bind, TiedWeightsAddUpTheirGradients) {
  const Bound<LinearCrossEntropyForward> bound(bundled_layer("loss", "LinearCrossEntropy"),
                                               stock::linear_cross_entropy);
  const auto loss_of = [&](const auto& forward, const Tensors& in) {
    return Tensors{forward(in[0] * in[1].sum(), in[1], std::optional<Tensor>(), targets(), CrossEntropyOptions{})};
  };
  const Tensors in = {randn({6, 8}), randn({13, 8})}, dloss = {at::full({}, 1.f)};
  const Tensors got = forward_backward([&](const Tensors& t) { return loss_of(bound, t); }, in, dloss);
  const Tensors want =
      forward_backward([&](const Tensors& t) { return loss_of(stock::linear_cross_entropy, t); }, in, dloss);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(difference(got[i], want[i]), 10 * kTolerance) << i;
}

}  // namespace
}  // namespace hotswap
