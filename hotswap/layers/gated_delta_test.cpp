// The gated delta rule against its formula token by token in float64, with sequences packed into one row and a state to
// begin with; its gradients; a step at a time against all at once; the mixers that have a short convolution.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "hotswap/layers/gated_delta_net.h"
#include "hotswap/layers/short_conv.h"

namespace hotswap {
namespace {

constexpr int64_t kKeyHeads = 2, kHeads = 4, kKeyDim = 3, kValueDim = 5;

double difference_of(const Tensor& got, const Tensor& exact) {
  const Tensor a = got.to(at::kDouble), b = exact.to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

Tensor drawn(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

GatedDeltaInputs delta_inputs(int64_t time, bool packed, bool begun) {
  GatedDeltaInputs in{.q = drawn({2, time, kKeyHeads, kKeyDim}),
                      .k = drawn({2, time, kKeyHeads, kKeyDim}),
                      .v = drawn({2, time, kHeads, kValueDim}),
                      .g = -at::rand({2, time, kHeads}, at::kDouble),
                      .beta = at::rand({2, time, kHeads}, at::kDouble)};
  if (begun) in.initial_state = drawn({2, kHeads, kKeyDim, kValueDim});
  if (packed) in.seq_idx = at::arange(time, at::kInt).div(3, "floor").unsqueeze(0);
  return in;
}

// S = exp(g) S; S += k (beta (v - S^T k))^T; y = S^T q / sqrt(key_dim)
std::pair<Tensor, Tensor> rule_by_tokens(const GatedDeltaInputs& in) {
  const auto unit = [](const Tensor& t) {
    return (t / (t.square().sum(-1, true) + 1e-6).sqrt()).repeat_interleave(kHeads / kKeyHeads, 2);
  };
  const Tensor q = unit(in.q) / std::sqrt(static_cast<double>(kKeyDim)), k = unit(in.k);
  Tensor S = in.initial_state ? *in.initial_state : at::zeros({2, kHeads, kKeyDim, kValueDim}, in.v.options());
  std::vector<Tensor> y;
  for (int64_t t = 0; t < in.v.size(1); ++t) {
    const bool goes_on = !in.seq_idx || t == 0 || in.seq_idx->select(1, t).equal(in.seq_idx->select(1, t - 1));
    S = S * in.g.select(1, t).exp().view({2, kHeads, 1, 1}) * (goes_on ? 1.0 : 0.0);
    const Tensor at_key = at::einsum("bhkv,bhk->bhv", {S, k.select(1, t)});
    const Tensor lacks = (in.v.select(1, t) - at_key) * in.beta.select(1, t).unsqueeze(-1);
    S = S + at::einsum("bhk,bhv->bhkv", {k.select(1, t), lacks});
    y.push_back(at::einsum("bhkv,bhk->bhv", {S, q.select(1, t)}));
  }
  return {at::stack(y, 1), S};
}

TEST(GatedDelta, RuleIsItsFormula) {
  for (const int64_t time : {1, 9, 13, 70}) {
    for (const int64_t chunk : {1, 4, 64}) {
      for (const bool packed : {false, true}) {
        for (const bool begun : {false, true}) {
          GatedDeltaInputs in = delta_inputs(time, packed, begun);
          in.chunk_size = chunk;
          const auto [exact, exact_state] = rule_by_tokens(in);
          const auto [y, state] = gated_delta_rule(in);
          EXPECT_LE(difference_of(y, exact), 1e-13) << time << " by " << chunk << packed << begun;
          EXPECT_LE(difference_of(state, exact_state), 1e-13) << time << " by " << chunk << packed << begun;
        }
      }
    }
  }
}

// Decays so strong that a chunk's product of them is 0 in float32: nothing may become NaN.
TEST(GatedDelta, StrongDecays) {
  GatedDeltaInputs in = delta_inputs(70, false, true);
  in.g = in.g * 40;
  const auto [exact, exact_state] = rule_by_tokens(in);
  for (Tensor* t : {&in.q, &in.k, &in.v, &in.g, &in.beta, &*in.initial_state}) *t = t->to(at::kFloat);
  const auto [y, state] = gated_delta_rule(in);
  // float32: a chunk's decays sum up to more than 1000, where values are 1e-4 apart, and are then subtracted.
  EXPECT_LE(difference_of(y, exact), 1e-5);
  EXPECT_LE(difference_of(state, exact_state), 1e-5);
}

TEST(GatedDelta, GradientsAreThoseOfTheFormula) {
  for (const bool packed : {false, true}) {
    GatedDeltaInputs in = delta_inputs(11, packed, true);
    in.chunk_size = 4;
    const std::vector<Tensor*> inputs = {&in.q, &in.k, &in.v, &in.g, &in.beta, &*in.initial_state};
    const Tensor of_y = drawn({2, 11, kHeads, kValueDim}), of_state = drawn({2, kHeads, kKeyDim, kValueDim});
    const auto gradients = [&](const auto& run) {
      for (Tensor* t : inputs) *t = t->detach().requires_grad_(true);
      const auto [y, state] = run(in);
      ((y * of_y).sum() + (state * of_state).sum()).backward();
      std::vector<Tensor> all;
      for (Tensor* t : inputs) all.push_back(t->grad());
      return all;
    };
    const std::vector<Tensor> exact = gradients(rule_by_tokens), got = gradients(gated_delta_rule);
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_LE(difference_of(got[i], exact[i]), 1e-12) << i << packed;
  }
}

TEST(GatedDelta, StepsWriteTheStateInPlace) {
  const at::NoGradGuard no_grad;
  const GatedDeltaInputs in = delta_inputs(6, false, true);
  const auto [exact, exact_state] = rule_by_tokens(in);
  const Tensor state = in.initial_state->clone();
  std::vector<Tensor> y;
  for (int64_t t = 0; t < 6; ++t) {
    const auto token = [&](const Tensor& all) { return all.narrow(1, t, 1); };
    y.push_back(gated_delta_step(
        {.q = token(in.q), .k = token(in.k), .v = token(in.v), .g = token(in.g), .beta = token(in.beta)}, state));
  }
  EXPECT_LE(difference_of(at::cat(y, 1), exact), 1e-13);
  EXPECT_LE(difference_of(state, exact_state), 1e-13);
}

// ---- the mixers ----

struct MixerKind {
  const char* name;
  std::function<std::unique_ptr<TokenMixer>()> make;
};

const std::vector<MixerKind>& mixer_kinds() {
  const auto net = [](bool packed) {
    return std::make_unique<GatedDeltaNet>(GatedDeltaNetOptions{.hidden_size = 12,
                                                                .key_heads = kKeyHeads,
                                                                .key_dim = kKeyDim,
                                                                .heads = kHeads,
                                                                .value_dim = kValueDim,
                                                                .packed = packed});
  };
  static const std::vector<MixerKind> all = {
      {"packed", [net] { return net(true); }},
      {"separate", [net] { return net(false); }},
      {"short_conv", [] { return std::make_unique<ShortConv>(ShortConvOptions{.hidden_size = 12, .bias = true}); }}};
  return all;
}

std::unique_ptr<TokenMixer> fresh_mixer(const MixerKind& kind) {
  auto mixer = kind.make();
  mixer->each_tensor([](const std::string&, Tensor& t) { t = at::randn(t.sizes(), at::kFloat); });
  return mixer;
}

// In pieces of these lengths, by a cache.
Tensor in_pieces(const TokenMixer& mixer, const Tensor& x, const std::vector<int64_t>& lengths) {
  std::vector<std::unique_ptr<CacheLayer>> layers;
  layers.push_back(mixer.make_cache_layer(0));
  Cache cache(std::move(layers));
  std::vector<Tensor> y;
  for (const int64_t length : lengths) {
    ForwardContext context;
    context.memory = &cache;
    context.attention = AttentionMetadata({.start = cache.length()});
    y.push_back(mixer.forward(x.narrow(1, cache.length(), length), context));
    cache.advance(length);
  }
  return at::cat(y, 1);
}

TEST(GatedDelta, MixersGoOnFromACache) {
  const at::NoGradGuard no_grad;
  for (const MixerKind& kind : mixer_kinds()) {
    const auto mixer = fresh_mixer(kind);
    const Tensor x = at::randn({2, 9, 12}, at::kFloat), whole = mixer->forward(x, {});
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{9}, {6, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 3, 4}, {1, 5, 1, 2}}) {
      EXPECT_LE(difference_of(in_pieces(*mixer, x, lengths), whole), 1e-6) << kind.name << " in " << lengths.size();
    }
  }
}

TEST(GatedDelta, PaddingOnTheLeftIsNotSeen) {
  const at::NoGradGuard no_grad;
  for (const MixerKind& kind : mixer_kinds()) {
    const auto mixer = fresh_mixer(kind);
    const Tensor x = at::randn({2, 9, 12}, at::kFloat);
    ForwardContext context;
    context.real = at::ones({2, 9}, at::kBool);
    context.real.select(0, 1).narrow(0, 0, 4).fill_(false);
    const Tensor y = mixer->forward(x, context);
    EXPECT_LE(difference_of(y[0], mixer->forward(x.narrow(0, 0, 1), {})[0]), 1e-6) << kind.name;
    EXPECT_LE(difference_of(y[1].narrow(0, 4, 5), mixer->forward(x.narrow(0, 1, 1).narrow(1, 4, 5), {})[0]), 1e-6)
        << kind.name;
  }
}

TEST(GatedDelta, PackedSequencesDoNotSeeEachOther) {
  const at::NoGradGuard no_grad;
  for (const MixerKind& kind : mixer_kinds()) {
    const auto mixer = fresh_mixer(kind);
    const Tensor x = at::randn({1, 9, 12}, at::kFloat);
    ForwardContext context;
    context.seq_idx = at::arange(9, at::kInt).ge(5).to(at::kInt).unsqueeze(0);
    const Tensor y = mixer->forward(x, context);
    EXPECT_LE(difference_of(y.narrow(1, 0, 5), mixer->forward(x.narrow(1, 0, 5), {})), 1e-6) << kind.name;
    EXPECT_LE(difference_of(y.narrow(1, 5, 4), mixer->forward(x.narrow(1, 5, 4), {})), 1e-6) << kind.name;
  }
}

TEST(GatedDelta, FreshDecays) {
  GatedDeltaNet mixer({.hidden_size = 8, .key_heads = 500, .key_dim = 1, .heads = 1000, .value_dim = 1});
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
  int64_t seen = 0;
  mixer.each_init([&](Tensor& tensor, const Init& init) {
    if (!init.draw || tensor.sizes() != at::IntArrayRef({1000})) return;
    const Tensor fresh = at::zeros({1000}, at::kFloat);
    Tensor decays = fresh;
    init.draw(decays, generator);
    EXPECT_GE(decays.exp().min().item<double>(), 0.01 * (1 - 1e-6));
    EXPECT_LE(decays.exp().max().item<double>(), 16 * (1 + 1e-6));
    EXPECT_GE(decays.exp().max().item<double>(), 15);
    ++seen;
  });
  EXPECT_EQ(seen, 1);
}

}  // namespace
}  // namespace hotswap
