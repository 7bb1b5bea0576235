// The stock recurrences against the formulas token by token in float64, with sequences packed into one row and a state
// to begin with; a step at a time against all at once; what the cache keeps; fresh weights.
#include "hotswap/layers/mamba.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"
#include "hotswap/layers/mamba2_mixer.h"
#include "hotswap/layers/mamba_mixer.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

Tensor random(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return at::randn(shape, at::kFloat).to(dtype);
}

double relative_difference(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

// Of [batch, time] ids: whether token t goes on where the one before it was, [batch].
Tensor goes_on(const OptionalTensor& seq, int64_t t, int64_t batch) {
  if (!seq || t == 0) return at::ones({batch}, at::kDouble);
  return seq->select(1, t).eq(seq->select(1, t - 1)).to(at::kDouble);
}

// h = exp(dt A) h + dt B u, one head and number after another. u, dt: [batch, time, channels]; A: [channels, state] or
// its one column; B, C: [batch, time, channels, state]
std::pair<Tensor, Tensor> scanned(const Tensor& u, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                  const OptionalTensor& first, const OptionalTensor& seq) {
  Tensor h = first ? *first : at::zeros(B.select(1, 0).sizes(), u.options());
  std::vector<Tensor> y;
  for (int64_t t = 0; t < u.size(1); ++t) {
    const Tensor step = dt.select(1, t).unsqueeze(-1), on = goes_on(seq, t, u.size(0)).view({-1, 1, 1});
    h = (step * A).exp() * on * h + step * B.select(1, t) * u.select(1, t).unsqueeze(-1);
    y.push_back((h * C.select(1, t)).sum(-1));
  }
  return {at::stack(y, 1), h};
}

struct MambaCase {
  int64_t time;
  bool packed, begun;
};
constexpr MambaCase kCases[] = {{1, false, false}, {9, false, true}, {13, true, false}, {8, true, true}};

OptionalTensor sequences(const MambaCase& c) {
  if (!c.packed) return std::nullopt;
  return at::arange(c.time, at::kInt).div(3, "floor").unsqueeze(0).expand({2, -1}).contiguous();
}

TEST(Mamba, CausalConv) {
  for (const MambaCase& c : kCases) {
    for (const int64_t width : {1, 2, 4}) {
      const Tensor x = random({2, 5, c.time}), weight = random({5, width}), bias = random({5});
      const OptionalTensor seq = sequences(c);
      const OptionalTensor before = c.begun ? OptionalTensor(random({2, 5, width - 1})) : std::nullopt;
      const Tensor seen = at::cat({before.value_or(at::zeros({2, 5, width - 1}, x.options())), x}, 2);
      Tensor want = at::zeros(x.sizes(), x.options());
      for (int64_t t = 0; t < c.time; ++t) {
        for (int64_t k = 0; k < width; ++k) {
          const int64_t from = std::max<int64_t>(0, t + k - width + 1);
          const Tensor same = seq ? seq->select(1, from).eq(seq->select(1, t)).to(at::kDouble).unsqueeze(1)
                                  : at::ones({2, 1}, at::kDouble);
          want.select(2, t) += same * weight.select(1, k) * seen.select(2, t + k);
        }
      }
      want = at::silu(want + bias.unsqueeze(1));
      EXPECT_LE(relative_difference(stock::causal_conv1d(x, weight, bias, before, seq, "silu"), want), 1e-13);
      const auto to = [](const Tensor& t) { return t.to(at::kFloat); };
      const auto maybe = [&](const OptionalTensor& t) { return t ? OptionalTensor(to(*t)) : std::nullopt; };
      EXPECT_LE(
          relative_difference(stock::causal_conv1d(to(x), to(weight), to(bias), maybe(before), seq, "silu"), want),
          1e-6);
    }
  }
  expect_has(
      message_of([] {
        stock::causal_conv1d(random({1, 1, 2}), random({1, 2}), std::nullopt, std::nullopt, std::nullopt, "gelu");
      }),
      {"silu or none", "gelu"});
}

TEST(Mamba, SelectiveScan) {
  for (const MambaCase& c : kCases) {
    const int64_t channels = 5, state = 3;
    SelectiveScanInputs in{.u = random({2, channels, c.time}),
                           .delta = random({2, channels, c.time}),
                           .A = -at::rand({channels, state}, at::kDouble) * 3,
                           .B = random({2, state, c.time}),
                           .C = random({2, state, c.time}),
                           .D = random({channels}),
                           .z = random({2, channels, c.time}),
                           .delta_bias = random({channels}),
                           .seq_idx = sequences(c)};
    if (c.begun) in.initial_state = random({2, channels, state});
    const auto last = [](const Tensor& t) { return t.transpose(1, 2); };
    const auto all = [&](const Tensor& t) { return last(t).unsqueeze(2).expand({-1, -1, channels, -1}); };
    auto [want, want_state] = scanned(last(in.u), at::softplus(last(in.delta) + *in.delta_bias), in.A, all(in.B),
                                      all(in.C), in.initial_state, in.seq_idx);
    want = (last(want) + in.u * in.D->unsqueeze(-1)) * at::silu(*in.z);
    const auto [y, state_got] = stock::selective_scan(in);
    EXPECT_LE(relative_difference(y, want), 1e-13);
    EXPECT_LE(relative_difference(state_got, want_state), 1e-13);
  }
}

TEST(Mamba, StateSpaceDuality) {
  for (const MambaCase& c : kCases) {
    for (const int64_t chunk : {1, 4, 64}) {
      const int64_t heads = 4, groups = 2, head_dim = 3, state = 5;
      SsdInputs in{.x = random({2, c.time, heads, head_dim}),
                   .dt = random({2, c.time, heads}),
                   .A = -at::rand({heads}, at::kDouble) * 3,
                   .B = random({2, c.time, groups, state}),
                   .C = random({2, c.time, groups, state}),
                   .D = random({heads}),
                   .z = random({2, c.time, heads, head_dim}),
                   .dt_bias = random({heads}),
                   .seq_idx = sequences(c),
                   .chunk_size = chunk,
                   .dt_min = 0.2,
                   .dt_max = chunk == 4 ? kInfinite : 1.5};
      if (c.begun) in.initial_state = random({2, heads, head_dim, state});
      const auto flat = [&](const Tensor& t) {  // of a head, every number of it
        return t.repeat_interleave(head_dim, 2);
      };
      const auto of_groups = [&](const Tensor& t) { return flat(t.repeat_interleave(heads / groups, 2)); };
      const Tensor dt = at::softplus(in.dt + *in.dt_bias).clamp(in.dt_min, in.dt_max);
      const OptionalTensor first =
          in.initial_state ? OptionalTensor(in.initial_state->view({2, heads * head_dim, state})) : std::nullopt;
      auto [want, want_state] = scanned(in.x.flatten(2), flat(dt), in.A.repeat_interleave(head_dim).unsqueeze(-1),
                                        of_groups(in.B), of_groups(in.C), first, in.seq_idx);
      want = (want.view_as(in.x) + in.x * in.D->unsqueeze(-1)) * at::silu(*in.z);
      const auto [y, state_got] = stock::ssd(in);
      EXPECT_LE(relative_difference(y, want), 1e-12) << chunk;
      EXPECT_LE(relative_difference(state_got, want_state.view_as(state_got)), 1e-12) << chunk;
    }
  }
}

TEST(Mamba, GatedNorm) {
  const Tensor x = random({3, 4, 12}), z = random({3, 4, 12}), weight = random({12});
  for (const int64_t group : {12, 4}) {
    for (const bool before : {false, true}) {
      const Tensor u = before ? x : x * at::silu(z);
      Tensor want = u.clone();
      for (int64_t from = 0; from < 12; from += group) {
        const Tensor part = u.narrow(-1, from, group);
        want.narrow(-1, from, group) = part / (part.square().mean(-1, true) + 1e-3).sqrt();
      }
      want = want * weight;
      if (before) want = want * at::silu(z);
      EXPECT_LE(relative_difference(stock::gated_rms_norm(x, z, weight, 1e-3, group, before), want), 1e-13);
    }
  }
}

TEST(Mamba, RecurrentCache) {
  std::vector<std::unique_ptr<CacheLayer>> parts;
  parts.push_back(std::make_unique<RecurrentLayer>());
  parts.push_back(make_key_value_layer());
  Cache cache(std::move(parts));
  const Tensor x = random({2, 3}, at::kBFloat16);
  const auto states = cache.states(0, x, {2, 3, 4}, {2, 3, 5});
  EXPECT_EQ(states.conv.scalar_type(), at::kBFloat16);
  EXPECT_EQ(states.ssm.scalar_type(), at::kFloat);
  states.ssm.fill_(1);
  states.conv.fill_(1);
  cache.advance(6);
  const auto again = cache.states(0, x, {2, 3, 4}, {2, 3, 5});
  EXPECT_EQ(again.ssm.data_ptr(), states.ssm.data_ptr());
  expect_has(message_of([&] { cache.states(0, x, {1, 3, 4}, {1, 3, 5}); }), {"one cache per batch"});
  expect_has(message_of([&] { cache.crop(3); }), {"go back to token 3", "crop(0)"});
  expect_has(message_of([&] {
               cache.states(1, x, {2, 3, 4}, {2, 3, 5});
             }),
             {"a recurrent state in the cache of layer 1", "another kind"});
  expect_has(message_of([&] {
               cache.states(0, random({1}).set_requires_grad(true), {2, 3, 4}, {2, 3, 5});
             }),
             {"without gradients"});
  cache.crop(0);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(states.ssm.abs().sum().item<double>() + states.conv.abs().sum().item<double>(), 0);  // in place
}

TEST(Mamba, FreshWeights) {
  const MambaOptions one{.hidden_size = 24, .channels = 4000, .state = 6, .conv_width = 4, .rank = 16};
  MambaMixer mixer(one);
  std::map<std::string, Tensor> fresh;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
  std::map<Tensor*, const Init*> seen;
  std::vector<std::string> names;
  mixer.each_tensor([&](const std::string& name, Tensor&) { names.push_back(name); });
  size_t next = 0;
  mixer.each_init([&](Tensor& tensor, const Init& init) {
    Tensor t = at::zeros(tensor.sizes(), at::kFloat);
    if (init.value) t.fill_(*init.value);
    if (init.draw) init.draw(t, generator);
    fresh[names[next++]] = t;
  });
  EXPECT_TRUE(at::equal(fresh.at("A_log")[7], at::tensor({1., 2., 3., 4., 5., 6.}, at::kFloat).log()));
  EXPECT_TRUE(fresh.at("D").eq(1).all().item<bool>());
  const auto within = [&](const char* name, double low, double high) {
    const Tensor t = fresh.at(name);
    EXPECT_GE(t.min().item<double>(), low) << name;
    EXPECT_LE(t.max().item<double>(), high) << name;
    EXPECT_GE((t.max() - t.min()).item<double>(), 0.8 * (high - low)) << name;
  };
  within("conv1d.weight", -0.5, 0.5);
  within("dt_proj.weight", -0.25, 0.25);
  const double bound = 1 / std::sqrt(4000.0);
  within("out_proj.weight", -bound, bound);
  fresh["dt"] = at::softplus(fresh.at("dt_proj.bias")).log();
  within("dt", std::log(0.001) - 1e-2, std::log(0.1) + 1e-2);
}

}  // namespace
}  // namespace hotswap
