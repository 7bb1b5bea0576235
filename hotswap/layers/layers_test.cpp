// Stock layers against float64 formulas, and what a Slot does.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"
#include "hotswap/layers/loss.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rotary.h"

namespace hotswap {
namespace {

// The seed is in the message of a failure.
class Layers : public testing::Test {
 protected:
  Layers() : seed_(test_support::test_seed()), trace_(__FILE__, __LINE__, cat("seed ", seed_)) {}
  Tensor random(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
    Tensor x = at::zeros(shape, at::TensorOptions(at::kFloat));
    return x.normal_(0, 1, generator()).to(dtype);
  }
  at::Generator generator() {
    if (!generator_.defined()) generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
    return generator_;
  }

 private:
  uint64_t seed_;
  testing::ScopedTrace trace_;
  at::Generator generator_;
};

double relative_error(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

// One rounding of a result, and a few of what leads to it.
double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-6 : 1.0 / 128; }

TEST_F(Layers, RmsNormInEachCasting) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 1}, {3, 7}, {2, 5, 64}, {0, 8}}) {
      const Tensor x = random(shape, dtype), w = random({shape.back()}, dtype);
      const Tensor xd = x.to(at::kDouble);
      const Tensor want = xd * (xd.square().mean(-1, true) + 1e-3).rsqrt() * (w.to(at::kDouble) + 1);
      for (const char* casting : {"llama", "gemma", "none"}) {
        const Tensor got = stock::rms_norm(x, w, 1e-3, 1.0, casting);
        EXPECT_EQ(got.scalar_type(), dtype);
        if (x.numel() == 0) continue;
        EXPECT_LE(relative_error(got, want), tolerance(dtype)) << casting << shape;
      }
    }
  }
  EXPECT_THROW(stock::rms_norm(random({2, 2}), random({2}), 1e-6, 0, "other"), Error);
}

TEST_F(Layers, RmsNormRoundsAsTransformersDoes) {
  const Tensor x = random({5, 96}, at::kBFloat16), w = random({96}, at::kBFloat16);
  const Tensor wide = x.to(at::kFloat);
  const Tensor want = w * (wide * (wide.pow(2).mean(-1, true) + 1e-5).rsqrt()).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(stock::rms_norm(x, w, 1e-5, 0, "llama"), want));
  // A float32 weight widens the result, as w * x does in Python.
  EXPECT_EQ(stock::rms_norm(x, w.to(at::kFloat), 1e-5, 0, "llama").scalar_type(), at::kFloat);
}

TEST_F(Layers, AddRmsNormGoesThroughTheInnerSlot) {
  AddRMSNorm norm(16, {.eps = 1e-5});
  norm.weight = random({16});
  const Tensor x = random({2, 3, 16}), residual = random({2, 3, 16});
  const auto [y, h] = norm.forward(x, residual);
  EXPECT_TRUE(at::equal(h, x + residual));
  EXPECT_TRUE(at::equal(y, norm.forward(h)));
  int inner = 0, outer = 0;
  norm.each_slot([&](const std::string&, SlotBase& slot) {
    if (auto* rms = dynamic_cast<Slot<RmsNormForward>*>(&slot)) {
      rms->bind([&](const Tensor& t, auto&&...) { return ++inner, t; });
    }
  });
  EXPECT_TRUE(at::equal(norm.forward(x, residual).y, x + residual));
  EXPECT_EQ(inner, 1);
  norm.each_slot([&](const std::string&, SlotBase& slot) {
    if (auto* add = dynamic_cast<Slot<AddRmsNormForward>*>(&slot)) {
      add->bind([&](const Tensor& a, const Tensor& b, auto&&...) { return ++outer, std::tuple(a, b); });
    }
  });
  EXPECT_TRUE(at::equal(norm.forward(x, residual).y, x));
  EXPECT_EQ(inner, 1);
  EXPECT_EQ(outer, 1);
  norm.each_slot([](const std::string&, SlotBase& slot) { slot.unbind(); });
  EXPECT_TRUE(at::equal(norm.forward(x, residual).y, y));
}

TEST_F(Layers, LayerNormWithAndWithoutBias) {
  for (const bool with_bias : {true, false}) {
    LayerNorm norm(24, 1e-5, with_bias);
    norm.weight = random({24});
    if (with_bias) norm.bias = random({24});
    const Tensor x = random({3, 24}), xd = x.to(at::kDouble);
    const Tensor centred = xd - xd.mean(-1, true);
    Tensor want = centred * (centred.square().mean(-1, true) + 1e-5).rsqrt() * norm.weight;
    if (with_bias) want = want + norm.bias;
    EXPECT_LE(relative_error(norm.forward(x), want), 1e-6);
  }
}

TEST_F(Layers, Activations) {
  const double k = std::sqrt(2 / M_PI);
  const auto tanh_gelu = [&](const Tensor& x) { return 0.5 * x * (1 + (k * (x + 0.044715 * x.pow(3))).tanh()); };
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> formulas = {
      {"silu", [](const Tensor& x) { return x * x.sigmoid(); }},
      {"swish", [](const Tensor& x) { return x * x.sigmoid(); }},
      {"gelu", [](const Tensor& x) { return 0.5 * x * (1 + (x / std::sqrt(2.0)).erf()); }},
      {"gelu_pytorch_tanh", tanh_gelu},
      {"gelu_new", tanh_gelu},
      {"gelu_fast", tanh_gelu},
      {"quick_gelu", [](const Tensor& x) { return x * (1.702 * x).sigmoid(); }},
  };
  const Tensor x = at::cat({random({1000}) * 3, at::tensor({0.0F, 30.0F, -30.0F})});
  for (const auto& [name, formula] : formulas) {
    const Activation activation(activation_kind(name, "test"));
    EXPECT_LE(relative_error(activation.forward(x), formula(x.to(at::kDouble))), 1e-6) << name;
    EXPECT_LE(relative_error(activation.forward(x.to(at::kBFloat16)), formula(x.to(at::kBFloat16).to(at::kDouble))),
              0.01)
        << name;
  }
  EXPECT_THROW(activation_kind("relu7", "config.json"), Error);
}

TEST_F(Layers, GatedMlp) {
  for (const char* act : {"silu", "gelu_pytorch_tanh", "quick_gelu"}) {
    GatedMLP mlp({.dim = 6, .hidden = 10, .activation = act, .bias = true});
    mlp.each_tensor([&](const std::string&, Tensor& t) { t = random(t.sizes()); });
    const Tensor x = random({2, 3, 6});
    const auto apply = [&](const Linear& l, const Tensor& in) { return in.matmul(l.data().t()) + l.bias; };
    const Tensor gate = mlp.act_fn.forward(apply(mlp.gate_proj, x));
    EXPECT_LE(relative_error(mlp.forward(x), apply(mlp.down_proj, gate * apply(mlp.up_proj, x))), 1e-6) << act;
  }
}

TEST_F(Layers, TiedLinearIsVisitedOnce) {
  struct Whole : Module {
    Embedding embed{5, 4};
    Linear head{embed.weight};
    Whole() {
      own("embed", embed);
      own("head", head);
    }
  } whole;
  EXPECT_EQ(whole.parameters().size(), 1U);
  whole.each_tensor([&](const std::string& name, Tensor& t) {
    EXPECT_EQ(name, "embed.weight");
    t = random({5, 4});
  });
  EXPECT_TRUE(at::equal(whole.head.forward(random({2, 4}) * 0), at::zeros({2, 5})));
  EXPECT_TRUE(whole.head.data().is_same(whole.embed.data()));
}

TEST_F(Layers, RotaryAgainstComplexRotation) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t rotary_dim : {8, 6}) {
      const Tensor q = random({2, 3, 5, 8}), k = random({2, 1, 5, 8});
      const Tensor angle = random({1, 5, rotary_dim / 2}).to(at::kDouble);
      const Tensor cos = at::cat({angle.cos(), angle.cos()}, -1).to(at::kFloat);
      const Tensor sin = at::cat({angle.sin(), angle.sin()}, -1).to(at::kFloat);
      const auto rotate = [&](const Tensor& x) {
        Tensor y = x.to(at::kDouble).clone();
        for (int64_t i = 0; i < rotary_dim / 2; ++i) {
          const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + rotary_dim / 2;
          const Tensor c = angle.select(-1, i).cos().unsqueeze(1), s = angle.select(-1, i).sin().unsqueeze(1);
          const Tensor xa = x.select(-1, a).to(at::kDouble), xb = x.select(-1, b).to(at::kDouble);
          y.select(-1, a).copy_(xa * c - xb * s);
          y.select(-1, b).copy_(xb * c + xa * s);
        }
        return y;
      };
      const auto [qr, kr] = stock::rotary(q, k, cos, sin, rotary_dim, interleaved);
      EXPECT_LE(relative_error(qr, rotate(q)), 1e-6);
      EXPECT_LE(relative_error(kr, rotate(k)), 1e-6);
      const Tensor half_cos = cos.narrow(-1, 0, rotary_dim / 2), half_sin = sin.narrow(-1, 0, rotary_dim / 2);
      EXPECT_TRUE(at::equal(std::get<0>(stock::rotary(q, k, half_cos, half_sin, rotary_dim, interleaved)), qr));
    }
  }
}

TEST_F(Layers, RotaryTablesByRangeAndByIdsAgree) {
  for (const char* type : {"default", "linear", "llama3", "yarn"}) {
    RotaryEmbedding rotary(
        {.type = type, .dim = 16, .max_position_embeddings = 64, .factor = 2, .original_max_position_embeddings = 32});
    const Tensor ids = at::arange(7, 20, at::kLong).unsqueeze(0);
    const auto a = rotary.tables({.start = 7, .length = 13}, at::kFloat, at::kCPU);
    const auto b = rotary.tables({.start = 0, .length = 13, .ids = ids}, at::kFloat, at::kCPU);
    EXPECT_TRUE(at::equal(a.cos, b.cos)) << type;
    EXPECT_TRUE(at::equal(a.sin, b.sin)) << type;
    const auto grown = rotary.tables({.start = 200, .length = 1}, at::kFloat, at::kCPU);
    EXPECT_NEAR((grown.cos.square() + grown.sin.square()).max().item<double>(),
                std::pow(rope_frequencies({.type = type,
                                           .dim = 16,
                                           .max_position_embeddings = 64,
                                           .factor = 2,
                                           .original_max_position_embeddings = 32})
                             .attention_scaling,
                         2),
                1e-5);
  }
}

TEST_F(Layers, DynamicRotaryDependsOnThisLengthAlone) {
  const RopeParameters rope{.type = "dynamic", .dim = 8, .max_position_embeddings = 16, .factor = 4};
  RotaryEmbedding rotary(rope);
  const auto at_one = [&](int64_t length) {
    return rotary.tables({.start = 0, .length = length}, at::kFloat, at::kCPU).cos.select(1, 1).clone();
  };
  const Tensor shorter = at_one(10);
  EXPECT_TRUE(at::equal(shorter.narrow(-1, 0, 4).squeeze(0), rope_frequencies(rope).inverse.cos()));
  const Tensor grown = at_one(32);
  EXPECT_FALSE(at::equal(grown, shorter));
  EXPECT_TRUE(at::equal(grown.narrow(-1, 0, 4).squeeze(0), rope_frequencies(rope, 32).inverse.cos()));
  const Tensor between = at_one(20);  // whatever longer ones came before, another thread's perhaps
  EXPECT_TRUE(at::equal(between.narrow(-1, 0, 4).squeeze(0), rope_frequencies(rope, 20).inverse.cos()));
  EXPECT_TRUE(at::equal(at_one(10), shorter));
}

TEST_F(Layers, TablesMadeWhileGeneratingServeTraining) {
  RotaryEmbedding rotary({.dim = 8, .max_position_embeddings = 16});
  {
    const c10::InferenceMode inference;
    rotary.tables({.start = 0, .length = 4}, at::kFloat, at::kCPU);
  }
  const auto tables = rotary.tables({.start = 0, .length = 4}, at::kFloat, at::kCPU);
  Tensor q = random({1, 2, 4, 8}).set_requires_grad(true);
  std::get<0>(stock::rotary(q, q, tables.cos, tables.sin, 8, false)).sum().backward();
  EXPECT_TRUE(q.grad().defined());
}

TEST_F(Layers, BuffersAreNoParametersAndFreshTensorsSayWhatTheyHold) {
  struct Counted : Module {
    Counted() : linear(3, 2, true), norm(2, {.offset = 1}) {
      own("linear", linear);
      own("norm", norm);
      own_buffer("count", count, {1}, at::kLong, Init::constant(0));
      own_buffer("scale", scale, {2}, at::kFloat, Init::constant(0.5));
    }
    Linear linear;
    RMSNorm norm;
    Tensor count, scale;
  } module;
  std::vector<std::string> all, trained;
  module.each_tensor([&](const std::string& name, Tensor&) { all.push_back(name); });
  module.each_parameter([&](const std::string& name, Tensor&) { trained.push_back(name); });
  EXPECT_EQ(all, (std::vector<std::string>{"count", "scale", "linear.weight", "linear.bias", "norm.weight"}));
  EXPECT_EQ(trained, (std::vector<std::string>{"linear.weight", "linear.bias", "norm.weight"}));
  std::vector<std::optional<double>> fresh;
  module.each_init([&](Tensor&, const Init& init) { fresh.push_back(init.value); });
  EXPECT_EQ(fresh, (std::vector<std::optional<double>>{0.0, 0.5, std::nullopt, 0.0, 0.0}));  // the norm adds 1
  module.requires_grad(true);
  EXPECT_EQ(module.parameters().size(), 3U);
  EXPECT_FALSE(module.scale.requires_grad());
  module.to(at::kBFloat16, at::kMeta);
  EXPECT_EQ(module.scale.scalar_type(), at::kFloat);  // a buffer keeps its type
  EXPECT_EQ(module.count.scalar_type(), at::kLong);
}

TEST_F(Layers, CrossEntropyOptions) {
  const Tensor logits = random({7, 11}) * 3, x = logits.to(at::kDouble);
  Tensor target = at::randint(0, 11, {7}, generator(), at::TensorOptions(at::kLong));
  target[2] = -100;
  for (const double softcap : {0.0, 5.0}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const double z : {0.0, 0.01}) {
        const Tensor capped = softcap == 0 ? x : softcap * (x / softcap).tanh();
        const Tensor logp = at::log_softmax(capped, 1);
        Tensor rows = -(1 - smoothing) * logp.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1) -
                      smoothing * logp.mean(1) + z * at::logsumexp(capped, 1).square();
        rows = rows * target.ne(-100);
        CrossEntropyOptions o{.label_smoothing = smoothing, .softcap = softcap, .z_loss = z, .reduction = "none"};
        EXPECT_LE(relative_error(stock::cross_entropy(logits, target, o), rows), 2e-6);
        o.reduction = "sum";
        EXPECT_LE(relative_error(stock::cross_entropy(logits, target, o), rows.sum()), 2e-6);
        o.reduction = "mean";
        EXPECT_LE(relative_error(stock::cross_entropy(logits, target, o), rows.sum() / 6), 2e-6);
      }
    }
  }
  const Tensor weight = random({11}).abs(), counts = target.ne(-100), word = target.clamp_min(0);
  const Tensor logp = at::log_softmax(x, 1), p = logp.gather(1, word.unsqueeze(1)).squeeze(1).exp();
  const Tensor of_word = weight.to(at::kDouble).index({word}) * counts;
  const Tensor z = 0.01 * at::logsumexp(x, 1).square() * counts;
  const CrossEntropyOptions both{.z_loss = 0.01, .class_weight = weight, .token_scaling = true};
  const Tensor want = (-of_word * p.log() * p).sum() / of_word.sum() + (z * p).sum() / 6;
  EXPECT_LE(relative_error(stock::cross_entropy(logits, target, both), want), 2e-6);
  const auto ignored = at::full({7}, -100, at::TensorOptions(at::kLong));
  EXPECT_TRUE(std::isnan(stock::cross_entropy(logits, ignored, {}).item<double>()));
}

TEST_F(Layers, CausalLossShiftsInside) {
  const CausalLMLoss loss;
  const Tensor hidden = random({2, 5, 6}), weight = random({9, 6});
  const Tensor labels = at::randint(0, 9, {2, 5}, generator(), at::TensorOptions(at::kLong));
  const Tensor logits = hidden.matmul(weight.t());
  const Tensor logp = at::log_softmax(logits.to(at::kDouble), -1).narrow(1, 0, 4);
  const Tensor picked = logp.gather(2, labels.narrow(1, 1, 4).unsqueeze(2));
  EXPECT_NEAR(loss.from_logits(logits, {.labels = labels}).item<double>(), -picked.mean().item<double>(), 1e-5);
  EXPECT_NEAR(loss.from_hidden(hidden, weight, {.labels = labels, .items = 3}).item<double>(),
              -picked.sum().item<double>() / 3, 1e-5);
  EXPECT_FALSE(loss.fuses());
}

}  // namespace
}  // namespace hotswap
