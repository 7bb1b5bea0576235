// Experts, routers and the loss that balances them, each against its formula written out token by token in float64.
#include "hotswap/layers/mixture.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/sparse_mixer.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

constexpr double kDouble = 1e-12;  // both sides in float64: the order of sums alone

class Mixtures : public testing::Test {
 protected:
  Mixtures()
      : generator_(at::make_generator<at::CPUGeneratorImpl>(test_support::test_seed())),
        trace_(__FILE__, __LINE__, cat("seed ", test_support::test_seed())) {}
  Tensor random(at::IntArrayRef shape) {
    return at::zeros(shape, at::TensorOptions(at::kDouble)).normal_(0, 1, generator_);
  }
  Tensor choices(int64_t tokens, int64_t k, int64_t experts) {
    return at::randint(0, experts, {tokens, k}, generator_, at::TensorOptions(at::kLong));
  }
  at::Generator generator_;

 private:
  testing::ScopedTrace trace_;
};

double difference(const Tensor& got, const Tensor& want) {
  return ((got - want).norm() / want.norm().clamp_min(1e-30)).item<double>();
}

Tensor logistic(const Tensor& x) { return 1 / (1 + (-x).exp()); }

Tensor act(const std::string& name, const Tensor& x) {
  if (name == "gelu" || name == "geglu") return 0.5 * x * (1 + (x / std::sqrt(2.0)).erf());
  if (name == "gelu_tanh" || name == "geglu_tanh") {
    return 0.5 * x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)).tanh());
  }
  if (name == "reglu") return x.clamp_min(0);
  if (name == "relu2") return x.clamp_min(0) * x.clamp_min(0);
  return x * logistic(x);
}

Tensor activated(const Tensor& h, const ExpertsOptions& o, bool has_gate) {  // [n] -> [hidden]
  if (!has_gate) return act(o.activation, h);
  const int64_t hidden = h.size(0) / 2;
  const Tensor pairs = o.interleaved ? h.view({hidden, 2}) : h.view({2, hidden}).t();
  Tensor gate = pairs.select(1, 0), up = pairs.select(1, 1);
  if (o.activation == "swiglu_oai" || o.activation == "swiglu_clamped") {
    gate = gate.clamp_max(o.limit);
    up = up.clamp(-o.limit, o.limit);
  }
  if (o.activation == "swiglu_oai") return (up + 1) * gate * logistic(o.alpha * gate);
  return act(o.activation, gate) * up;
}

// One token, one of its experts after the other.
Tensor token_by_token(const Tensor& x, const Routing& r, const ExpertWeights& w, const ExpertsOptions& o,
                      bool has_gate) {
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    Tensor sum = at::zeros({x.size(1)}, x.options());
    for (int64_t j = 0; j < r.index.size(1); ++j) {
      const int64_t e = r.index[t][j].item<int64_t>();
      if (e < 0 || e >= w.up.size(0)) continue;
      const auto project = [&](const Tensor& in, const Tensor& weight, const Tensor& bias) {
        const Tensor out = (o.transposed ? weight[e].t() : weight[e]).matmul(in);
        return bias.defined() ? out + bias[e] : out;
      };
      const Tensor s = r.weights[t][j];
      const Tensor h = project(o.scale_input ? s * x[t] : x[t], w.up, w.up_bias);
      const Tensor y = project(activated(h, o, has_gate), w.down, w.down_bias);
      sum = sum + (o.scale_input ? y : s * y);
    }
    rows.push_back(sum);
  }
  return at::stack(rows);
}

struct Inputs {
  Tensor x, weights;
  ExpertWeights w;
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = {x, weights, w.up, w.down};
    for (const Tensor& bias : {w.up_bias, w.down_bias}) {
      if (bias.defined()) all.push_back(bias);
    }
    return all;
  }
};

struct Size {
  int64_t tokens, k, experts, dim, hidden;
};

TEST_F(Mixtures, StockExpertsNeedTheHost) {
  Experts experts({.experts = 2, .dim = 4, .hidden = 3}, {});
  int64_t slots = 0;
  experts.each_slot([&](const std::string&, const SlotBase& slot) { slots += slot.needs_host_sync() ? 1 : 0; });
  EXPECT_EQ(slots, 1);
}

TEST_F(Mixtures, EveryActivationAndLayoutIsTheFormula) {
  const Size s{7, 3, 5, 6, 4};
  for (const char* name : {"swiglu", "geglu_tanh", "geglu", "reglu", "swiglu_oai", "swiglu_clamped", "relu2", "silu",
                           "gelu_tanh", "gelu"}) {
    const std::string activation = name;
    const bool has_gate = activation.starts_with("swiglu") || activation.ends_with("glu") || activation == "geglu_tanh";
    for (int form = 0; form < 16; ++form) {
      const bool bias = (form & 8) != 0;
      const ExpertsOptions o{.activation = activation,
                             .alpha = 1.7,
                             .limit = 0.8,
                             .interleaved = (form & 1) != 0 && has_gate,
                             .transposed = (form & 2) != 0,
                             .scale_input = (form & 4) != 0};
      SCOPED_TRACE(cat(name, " interleaved ", o.interleaved, " transposed ", o.transposed, " bias ", bias, " scaled ",
                       o.scale_input));
      const int64_t n = has_gate ? 2 * s.hidden : s.hidden;
      const auto weights = [&](int64_t out, int64_t in) {
        return random(o.transposed ? std::vector<int64_t>{s.experts, in, out}
                                   : std::vector<int64_t>{s.experts, out, in});
      };
      const Tensor index = choices(s.tokens, s.k, s.experts);
      index[0].fill_(2);        // three times to one expert
      index[1][0].fill_(-1);    // to none
      index[2][1].fill_(5);     // to none
      index[2][2].fill_(1000);  // to none
      const auto gradients = [&](const auto& forward, const Inputs& in, Tensor& y) {
        for (Tensor leaf : in.leaves()) leaf.set_requires_grad(true);
        y = forward(in);
        (y * at::arange(y.numel(), y.options()).view_as(y).cos()).sum().backward();
      };
      Inputs a{random({s.tokens, s.dim}),
               random({s.tokens, s.k}),
               {.up = weights(n, s.dim), .down = weights(s.dim, s.hidden)}};
      if (bias) a.w.up_bias = random({s.experts, n}), a.w.down_bias = random({s.experts, s.dim});
      const auto copy = [](const Tensor& t) { return t.defined() ? t.detach().clone() : t; };
      const Inputs b{
          copy(a.x),
          copy(a.weights),
          {.up = copy(a.w.up), .up_bias = copy(a.w.up_bias), .down = copy(a.w.down), .down_bias = copy(a.w.down_bias)}};
      Tensor got, want;
      gradients([&](const Inputs& in) { return stock::experts(in.x, {index, in.weights}, in.w, o); }, a, got);
      gradients(
          [&](const Inputs& in) {
            return token_by_token(in.x, {index, in.weights}, in.w, o, has_gate);
          },
          b, want);
      EXPECT_LT(difference(got, want), kDouble);
      for (size_t i = 0; i < a.leaves().size(); ++i) {
        EXPECT_LT(difference(a.leaves()[i].grad(), b.leaves()[i].grad()), kDouble) << "gradient " << i;
      }
      const Tensor again = stock::experts(a.x, {index.to(at::kInt), a.weights}, a.w, o);
      EXPECT_TRUE(at::equal(again, got)) << "int32";
    }
  }
}

TEST_F(Mixtures, ExpertsWithoutTokensAndTokensWithoutExperts) {
  const ExpertWeights w{.up = random({4, 6, 5}).requires_grad_(true), .down = random({4, 5, 3}).requires_grad_(true)};
  const Tensor weights = random({3, 2}).requires_grad_(true);
  Tensor x = random({3, 5});
  x[1].fill_(std::nan(""));
  const Tensor index = at::tensor({1, 1, 2, 2, 7, -3}, at::kLong).view({3, 2});
  const Tensor y = stock::experts(x, {index, weights}, w, {});
  EXPECT_FALSE(y[0].isnan().any().item<bool>());
  EXPECT_TRUE(y[1].isnan().all().item<bool>());  // and nowhere else
  EXPECT_TRUE(at::equal(y[2], at::zeros({5}, y.options())));
  y[0].sum().backward();
  for (const int64_t expert : {0, 3}) EXPECT_EQ(w.up.grad()[expert].abs().max().item<double>(), 0);
  EXPECT_EQ(weights.grad()[2].abs().max().item<double>(), 0);
  EXPECT_NE(weights.grad()[0].abs().max().item<double>(), 0);

  const Tensor none = stock::experts(random({0, 5}), {choices(0, 2, 4), random({0, 2})}, w, {});
  EXPECT_EQ(none.sizes(), at::IntArrayRef({0, 5}));
}

TEST_F(Mixtures, NarrowTypesComeBack) {
  const ExpertWeights w{.up = random({4, 6, 5}).to(at::kBFloat16), .down = random({4, 5, 3}).to(at::kBFloat16)};
  const Tensor x = random({3, 5}).to(at::kBFloat16), index = choices(3, 2, 4), weights = random({3, 2}).to(at::kFloat);
  const Tensor y = stock::experts(x, {index, weights}, w, {});
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const ExpertWeights wide{.up = w.up.to(at::kDouble), .down = w.down.to(at::kDouble)};
  const Tensor want = token_by_token(x.to(at::kDouble), {index, weights.to(at::kDouble)}, wide, {}, true);
  EXPECT_LT(difference(y.to(at::kDouble), want), 1.0 / 64);  // five roundings to 8 bits, one after the other
}

TEST_F(Mixtures, UnknownActivationsAreNamed) {
  expect_has(message_of([&] { Experts({.experts = 2, .dim = 4, .hidden = 4}, {.activation = "glu"}); }),
             {"swiglu_oai", "\"glu\""});
  expect_has(message_of([&] { gated_by("mish", "config.json: hidden_act"); }), {"silu", "hidden_act = \"mish\""});
  EXPECT_EQ(gated_by("gelu_pytorch_tanh", ""), "geglu_tanh");
}

// The places of the k largest, the largest first.
std::vector<int64_t> largest(const Tensor& values, int64_t k) {
  std::vector<int64_t> places(values.size(0));
  std::iota(places.begin(), places.end(), 0);
  std::sort(places.begin(), places.end(),
            [&](int64_t a, int64_t b) { return values[a].item<double>() > values[b].item<double>(); });
  places.resize(k);
  return places;
}

void fill(Module& module, at::Generator& generator) {
  module.each_tensor([&](const std::string&, Tensor& tensor) {
    tensor = at::zeros(tensor.sizes(), at::TensorOptions(at::kDouble)).normal_(0, 1, generator);
  });
}

std::vector<Tensor> tensors_of(Module& module) {
  std::vector<Tensor> all;
  module.each_tensor([&](const std::string&, Tensor& tensor) { all.push_back(tensor); });
  return all;
}

TEST_F(Mixtures, RoutersChooseAndWeigh) {
  const int64_t tokens = 9, dim = 5, experts = 8, k = 3;
  const Tensor x = random({tokens, dim});
  const auto softmax = [](const Tensor& v) { return v.exp() / v.exp().sum(); };
  for (const Scoring scoring :
       {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSoftmaxOfChosen, Scoring::kSigmoidOfChosen}) {
    for (const bool renormalize : {false, true}) {
      SCOPED_TRACE(cat("scoring ", static_cast<int>(scoring), " renormalize ", renormalize));
      Router router({.dim = dim,
                     .experts = experts,
                     .top_k = k,
                     .scoring = scoring,
                     .bias = true,
                     .renormalize = renormalize,
                     .eps = 0.1,
                     .scale = 2.5});
      fill(router, generator_);
      const auto parts = tensors_of(router);  // weight, bias
      const Router::Result got = router.route(x);
      for (int64_t t = 0; t < tokens; ++t) {
        const Tensor logits = parts[0].matmul(x[t]) + parts[1];
        EXPECT_LT(difference(got.logits[t], logits), kDouble);
        Tensor scores = logits;
        if (scoring == Scoring::kSoftmax) scores = softmax(logits);
        if (scoring == Scoring::kSigmoid) scores = logistic(logits);
        const auto places = largest(scores, k);
        Tensor weights = at::zeros({k}, at::kDouble);
        for (int64_t j = 0; j < k; ++j) {
          EXPECT_EQ(got.routing.index[t][j].item<int64_t>(), places[j]);
          weights[j] = scores[places[j]];
        }
        if (scoring == Scoring::kSoftmaxOfChosen) weights = softmax(weights);
        if (scoring == Scoring::kSigmoidOfChosen) weights = logistic(weights);
        if (renormalize) weights = weights / (weights.sum() + 0.1);
        // softmax and the last sigmoid are float32 whatever they are given, as in transformers
        EXPECT_LT(difference(got.routing.weights[t], 2.5 * weights), 1e-6);
      }
    }
  }
}

// DeepSeek-V3's: the best groups by their two best, a correction that chooses and does not weigh.
TEST_F(Mixtures, RoutersChooseGroupsFirst) {
  const int64_t experts = 12, groups = 4, k = 4;
  Router router({.dim = 5,
                 .experts = experts,
                 .top_k = k,
                 .scoring = Scoring::kSigmoid,
                 .correction = true,
                 .groups = groups,
                 .top_groups = 2,
                 .renormalize = true,
                 .eps = 1e-20});
  fill(router, generator_);
  const auto parts = tensors_of(router);  // weight, e_score_correction_bias
  const Tensor x = random({20, 5});
  const Router::Result got = router.route(x);
  for (int64_t t = 0; t < x.size(0); ++t) {
    const Tensor scores = logistic(parts[0].matmul(x[t])), ranked = scores + parts[1];
    Tensor of_group = at::zeros({groups}, at::kDouble);
    for (int64_t g = 0; g < groups; ++g) {
      const Tensor own = ranked.narrow(0, 3 * g, 3);
      for (const int64_t place : largest(own, 2)) of_group[g] += own[place];
    }
    Tensor allowed = at::full({experts}, -INFINITY, at::kDouble);
    for (const int64_t g : largest(of_group, 2)) allowed.narrow(0, 3 * g, 3).copy_(ranked.narrow(0, 3 * g, 3));
    auto want = largest(allowed, k);
    std::vector<int64_t> chosen;
    double sum = 0;
    for (const int64_t place : want) sum += scores[place].item<double>();
    for (int64_t j = 0; j < k; ++j) {
      chosen.push_back(got.routing.index[t][j].item<int64_t>());
      EXPECT_NEAR(got.routing.weights[t][j].item<double>(), scores[chosen.back()].item<double>() / sum, 1e-12);
    }
    std::sort(want.begin(), want.end());
    std::sort(chosen.begin(), chosen.end());
    EXPECT_EQ(chosen, want);
  }
}

// Of the experts whose logits are within 40 percent of the best one's, by a softmax over them.
TEST_F(Mixtures, SparseMixerTakesTheBestTwo) {
  const Tensor logits = at::tensor({2.0, -1.0, 1.9, 1.5, 0.1, 1.19}, at::kDouble).unsqueeze(0);
  const Routing got = sparse_mixer(logits, 0.2, /*training=*/false);
  EXPECT_TRUE(at::equal(got.index, at::tensor({0, 2}, at::kLong).unsqueeze(0)));
  const double first = std::exp(2.0) / (std::exp(2.0) + std::exp(1.9) + std::exp(1.5));
  const double second = std::exp(1.9) / (std::exp(1.9) + std::exp(1.5) + std::exp(1.19));
  EXPECT_NEAR(got.weights[0][0].item<double>(), first, 1e-12);
  EXPECT_NEAR(got.weights[0][1].item<double>(), second, 1e-12);
}

// How often is drawn what: 5 standard deviations of 20000 draws. The gradient is that of the share itself.
TEST_F(Mixtures, SparseMixerDrawsInTraining) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(test_support::test_seed());
  const int64_t draws = 20000;
  const Tensor one = at::tensor({2.0, -1.0, 1.9, 1.5}, at::kDouble);
  const Tensor logits = one.repeat({draws, 1}).requires_grad_(true);
  const Routing got = sparse_mixer(logits, 0.2, /*training=*/true);
  const Tensor near = at::tensor({2.0, -1e30, 1.9, 1.5}, at::kDouble), shares = near.exp() / near.exp().sum();
  const auto expect_share = [&](double count, double of, double share) {
    EXPECT_NEAR(count / of, share, 5 * std::sqrt(share * (1 - share) / of));
  };
  const Tensor first = got.index.select(1, 0), weight = got.weights.select(1, 0).detach();
  for (int64_t e = 0; e < 4; ++e) {
    const double share = shares[e].item<double>(), count = (first == e).sum().item<double>();
    expect_share(count, draws, share);
    const Tensor of = weight.index({first == e}), whole = (of - share).abs() < 1e-9;
    if (e == 0) EXPECT_TRUE(whole.all().item<bool>());
    if (e < 2) continue;
    expect_share(whole.sum().item<double>(), count, 0.25);
    EXPECT_TRUE(at::logical_or(whole, (of - 0.3333 * share).abs() < 1e-9).all().item<bool>());
  }
  EXPECT_FALSE((got.index.select(1, 1) == first).any().item<bool>());
  got.weights.select(1, 0).sum().backward();
  const Tensor chosen = shares.index({first}).unsqueeze(1), is_chosen = (at::arange(4) == first.unsqueeze(1));
  EXPECT_LT(difference(logits.grad(), chosen * (is_chosen.to(at::kDouble) - shares)), kDouble);
}

TEST_F(Mixtures, LoadBalancingLossCountsAndWeighs) {
  const int64_t tokens = 10, experts = 4, k = 2;
  const std::vector<Tensor> logits = {random({tokens, experts}), random({tokens, experts})};
  const Tensor mask = at::tensor({0, 1, 1, 1, 1, 0, 0, 1, 1, 1}, at::kLong).view({2, 5});
  for (const bool masked : {false, true}) {
    std::vector<double> chosen(experts), likely(experts);
    double counted = 0;
    for (const Tensor& layer : logits) {
      for (int64_t t = 0; t < tokens; ++t) {
        if (masked && mask.view(-1)[t].item<int64_t>() == 0) continue;
        ++counted;
        const Tensor p = layer[t].exp() / layer[t].exp().sum();
        for (const int64_t e : largest(p, k)) ++chosen[e];
        for (int64_t e = 0; e < experts; ++e) likely[e] += p[e].item<double>();
      }
    }
    double want = 0;
    for (int64_t e = 0; e < experts; ++e) want += experts * (chosen[e] / counted) * (likely[e] / counted);
    const Tensor got = load_balancing_loss(logits, k, masked ? mask : Tensor());
    EXPECT_NEAR(got.item<double>(), want, 1e-5 * want) << masked;  // summed in float32
  }
  const Tensor even = at::zeros({tokens, experts}, at::kFloat);
  EXPECT_FLOAT_EQ(load_balancing_loss({even}, 1, {}).item<float>(), 1);
}

// The part for all tokens, behind its own gate; logits where they are asked for; noise in training alone.
TEST_F(Mixtures, SharedExpertsAndJitter) {
  Mixture mixture({.router = {.dim = 6, .experts = 4, .top_k = 2},
                   .hidden = 5,
                   .jitter = 0.2,
                   .shared_hidden = 7,
                   .shared_gate = true});
  fill(mixture, generator_);
  std::map<std::string, Tensor> named;
  mixture.each_tensor([&](const std::string& name, Tensor& tensor) { named[name] = tensor; });
  mixture.eval();
  const Tensor x = random({2, 3, 6});
  std::vector<Tensor> logits;
  const Tensor y = mixture.forward(x, {.router_logits = &logits});
  ASSERT_EQ(logits.size(), 1U);
  EXPECT_TRUE(at::equal(mixture.forward(x, {}), y));
  const Tensor rows = x.view({6, 6});
  EXPECT_LT(difference(logits[0], rows.matmul(named.at("gate.weight").t())), kDouble);
  const Tensor p = logits[0].softmax(-1);
  const auto [weights, index] = p.topk(2);
  Tensor want =
      token_by_token(rows, {index, weights},
                     {.up = named.at("experts.gate_up_proj"), .down = named.at("experts.down_proj")}, {}, true);
  const auto through = [&](const char* name) {
    return rows.matmul(named.at(cat("shared_expert.", name, ".weight")).t());
  };
  const Tensor inner = act("silu", through("gate_proj")) * through("up_proj");
  const Tensor shared = inner.matmul(named.at("shared_expert.down_proj.weight").t());
  want = want + logistic(rows.matmul(named.at("shared_expert_gate.weight").t())) * shared;
  EXPECT_LT(difference(y.view({6, 6}), want), 1e-6);  // the router's softmax is float32
  mixture.train();
  EXPECT_FALSE(at::equal(mixture.forward(x, {}), y));
}

}  // namespace
}  // namespace hotswap
