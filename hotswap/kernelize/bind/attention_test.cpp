// The attention slot with a package bound: values and gradients are the stock ones, by the op that the tokens ask for.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "hotswap/kernelize/bind/test_attention.h"
#include "hotswap/kernelize/example/example.h"
#include "hotswap/layers/latent_attention.h"

namespace hotswap {
namespace {

using test_support::AttentionPackage;
using test_support::difference;
using test_support::expect_has;
using test_support::message_of;
using test_support::row_of;

// Keys of a fixed size, of which the tokens so far are the first ones.
class FixedKeys : public StepMemory {
 public:
  explicit FixedKeys(int64_t room) : room_(room) {}
  Tensor next(int64_t count) {  // the positions of the tokens that update() writes
    positions_ = at::arange(length_, length_ + count, at::kLong);
    length_ += count;
    return positions_;
  }
  std::pair<Tensor, Tensor> update(int64_t /*layer*/, const Tensor& k, const Tensor& v) override {
    if (!k_.defined()) {
      k_ = at::zeros({k.size(0), room_, k.size(2), k.size(3)});
      v_ = at::zeros({v.size(0), room_, v.size(2), v.size(3)});
    }
    return {k_.index_copy_(1, positions_, k), v_.index_copy_(1, positions_, v)};
  }
  std::pair<Tensor, Tensor> writable_rows(int64_t, int64_t) override { return {}; }
  RecurrentStates states(int64_t, const Tensor&, at::IntArrayRef, at::IntArrayRef) override { return {}; }

 private:
  int64_t room_, length_ = 0;
  Tensor positions_, k_, v_;
};

constexpr SelfAttentionOptions kPlain = {.hidden_size = 12, .num_heads = 4, .num_kv_heads = 2, .head_dim = 6};

SelfAttentionOptions with(const std::function<void(SelfAttentionOptions&)>& change) {
  SelfAttentionOptions options = kPlain;
  change(options);
  return options;
}

class BoundAttention : public testing::Test {
 protected:
  BoundAttention() : seed_(test_support::test_seed()), trace_(__FILE__, __LINE__, cat("seed ", seed_)) {
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
  }
  Tensor random(at::IntArrayRef shape) { return at::zeros(shape).normal_(0, 1, generator_); }
  std::unique_ptr<SelfAttention> layer(const SelfAttentionOptions& options) {
    auto made = std::make_unique<SelfAttention>(options);
    made->each_tensor(
        [&](const std::string&, Tensor& tensor) { tensor = random(tensor.sizes()) * 0.3; });  // scores near 1
    made->requires_grad(true);
    set_stock_attention(*made, attention_kind("eager"));
    return made;
  }
  static KernelReport bind(Module& layer, const AttentionPackage& package, Mode mode = Mode::TRAINING) {
    return kernelize(layer, mode, {.config = {{{"attention", package.ref()}}, /*use_local_kernel=*/true}});
  }
  static KernelReport bind_bundled(Module& layer) {
    return kernelize(layer, Mode::TRAINING,
                     {.config = {{{"attention", "hotswap/attention"}}, false, /*inherit_mapping=*/false}});
  }
  // Without a rotation: the places of the tokens are the mask's alone.
  static ForwardContext context(SequenceInfo sequence) {
    const Tensor one = at::ones({1, 1, 6}), zero = at::zeros({1, 1, 6});
    return {.rope = {one, zero}, .attention = AttentionMetadata(std::move(sequence))};
  }

  AttentionPackage package_;

 private:
  uint64_t seed_;
  testing::ScopedTrace trace_;
  at::Generator generator_;
};

// Output and gradients of every parameter and of x.
std::vector<Tensor> run(SelfAttention& layer, const Tensor& x, const SequenceInfo& sequence, const Tensor& counts) {
  const Tensor one = at::ones({1, 1, 6}), zero = at::zeros({1, 1, 6});
  const ForwardContext context{.rope = {one, zero}, .attention = AttentionMetadata(sequence)};
  Tensor leaf = x.clone().set_requires_grad(true);
  layer.each_tensor([](const std::string&, Tensor& tensor) { tensor.mutable_grad() = Tensor(); });
  Tensor y = layer.forward(leaf, context);
  if (counts.defined()) y = y * counts.unsqueeze(-1);  // padded queries see nothing that means anything
  (y * y).sum().backward();
  std::vector<Tensor> all{y.detach(), leaf.grad()};
  layer.each_tensor([&](const std::string&, Tensor& tensor) { all.push_back(tensor.grad()); });
  return all;
}

TEST_F(BoundAttention, ValuesAndGradientsAreTheStockOnes) {
  const std::vector<SelfAttentionOptions> all = {
      kPlain,
      with([](auto& o) { o.num_kv_heads = 4, o.output_bias = true; }),
      with([](auto& o) { o.sliding_window = 3; }),
      with([](auto& o) { o.chunk = 2, o.scale = 0.2; }),
      with([](auto& o) { o.softcap = 3, o.sinks = true, o.qk_norm = RMSNormOptions{}; }),
  };
  Tensor padding = at::ones({2, 7}, at::kBool);
  padding[1].narrow(0, 0, 3).fill_(false);
  struct Tokens {
    const char* forward;
    const char* backward;
    int64_t batch;
    SequenceInfo sequence;
  };
  const std::vector<Tokens> forms = {
      {"forward_train", "backward", 2, {}},
      {"varlen_forward_train", "varlen_backward", 2, {.padding = padding}},
      {"varlen_forward_train", "varlen_backward", 1, {.cu_seqlens = at::tensor({0, 2, 7}, at::kInt), .max_seqlen = 5}},
  };
  const std::map<std::string, std::string> bundled_ops = {{"forward_train", "attention_fwd"},
                                                          {"backward", "attention_bwd"},
                                                          {"varlen_forward_train", "attention_varlen_fwd"},
                                                          {"varlen_backward", "attention_varlen_bwd"}};
  for (size_t n = 0; n < all.size(); ++n) {
    for (const Tokens& form : forms) {
      SCOPED_TRACE(cat("options ", n, " ", form.forward, " batch ", form.batch));
      const auto attention = layer(all[n]);
      const Tensor x = random({form.batch, 7, 12});
      const auto want = run(*attention, x, form.sequence, form.sequence.padding);
      for (const bool bundled : {false, true}) {
        const auto calls = [&](const char* role) {
          return bundled ? op_calls("attention", bundled_ops.at(role)) : package_.calls(role);
        };
        const auto report = bundled ? bind_bundled(*attention) : bind(*attention, package_);
        ASSERT_EQ(row_of(report, "attention").package, bundled ? "attention" : "attn") << report;
        const int64_t before = calls(form.forward), back = calls(form.backward);
        const auto got = run(*attention, x, form.sequence, form.sequence.padding);
        EXPECT_EQ(calls(form.forward), before + 1);
        EXPECT_EQ(calls(form.backward), back + 1);
        ASSERT_EQ(got.size(), want.size());
        // All sum a few products in float32 in another order.
        for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(difference(got[i], want[i]), 2e-5) << i << " " << bundled;
      }
      unkernelize(*attention);
      const auto again = run(*attention, x, form.sequence, form.sequence.padding);
      for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(test_support::same_bits(again[i], want[i])) << i;
    }
  }
}

TEST_F(BoundAttention, InferenceSavesNothingAndFixedKeysDecode) {
  const at::NoGradGuard no_grad;
  const auto attention = layer(with([](auto& o) { o.sliding_window = 3; }));
  attention->eval();
  const Tensor x = random({2, 7, 12});
  const Tensor want = attention->forward(x, context({}));
  bind(*attention, package_, Mode::INFERENCE);
  EXPECT_LE(difference(attention->forward(x, context({})), want), 2e-5);
  EXPECT_EQ(package_.calls("forward"), 1);
  EXPECT_EQ(package_.calls("forward_train"), 0);

  std::vector<std::unique_ptr<CacheLayer>> parts;
  parts.push_back(attention->make_cache_layer(9));
  Cache cache(std::move(parts));
  FixedKeys fixed(9);
  for (StepMemory* memory : {static_cast<StepMemory*>(&cache), static_cast<StepMemory*>(&fixed)}) {
    for (int64_t t = 0; t < 7; ++t) {
      const Tensor positions = memory == &fixed ? fixed.next(1) : Tensor();
      ForwardContext step = context({.start = t, .positions = positions});
      step.memory = memory;
      EXPECT_LE(difference(attention->forward(x.narrow(1, t, 1), step), want.narrow(1, t, 1)), 2e-5) << t;
    }
  }
  EXPECT_EQ(package_.calls("decode"), 7);
  EXPECT_EQ(package_.calls("forward"), 8);
}

// Left-padded rows in keys of a fixed size, several tokens at once and one by one; without a mask.
TEST_F(BoundAttention, FixedKeysWithPadding) {
  const at::NoGradGuard no_grad;
  Tensor padding = at::ones({2, 9}, at::kBool);
  padding[1].narrow(0, 0, 3).fill_(false);
  const Tensor x = random({2, 7, 12}), counts = padding.narrow(1, 0, 7).unsqueeze(2);
  for (const int64_t window : {0, 3}) {
    const auto attention = layer(with([&](auto& o) { o.sliding_window = window; }));
    attention->eval();
    const Tensor want = attention->forward(x, context({.padding = padding.narrow(1, 0, 7)})) * counts;
    for (const bool bundled : {false, true}) {
      bundled ? bind_bundled(*attention) : bind(*attention, package_, Mode::INFERENCE);
      FixedKeys keys(9);
      int64_t seen = 0;
      for (const int64_t count : {4, 1, 2}) {
        ForwardContext step = context({.start = seen, .padding = padding, .positions = keys.next(count)});
        step.memory = &keys;
        const Tensor got = attention->forward(x.narrow(1, seen, count), step) * counts.narrow(1, seen, count);
        EXPECT_LE(difference(got, want.narrow(1, seen, count)), 2e-5) << window << " after " << seen << " " << bundled;
        EXPECT_EQ(step.attention.masks(), 0U);
        seen += count;
      }
    }
  }
  padding[0][8] = false;
  const AttentionMetadata gap({.padding = padding, .positions = at::tensor({0}, at::kLong)});
  expect_has(message_of([&] { gap.padded_rows(1, 9); }), {"padding at the beginning", "a 0 after a 1"});
}

// A window counts positions: three hidden tokens in the middle of a row are none of them fewer.
TEST_F(BoundAttention, WindowsOverPaddingInTheMiddleCountPositions) {
  const Tensor padding = at::tensor({1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}).to(at::kBool).view({2, 9});
  const Tensor x = random({2, 9, 12}), counts = padding.unsqueeze(2);
  for (const int64_t window : {0, 3}) {
    const auto attention = layer(with([&](auto& o) { o.sliding_window = window; }));
    const Tensor want = attention->forward(x, context({.padding = padding})) * counts;
    bind_bundled(*attention);
    const ForwardContext given = context({.padding = padding});
    EXPECT_LE(difference(attention->forward(x, given) * counts, want), 2e-5) << window;
    EXPECT_EQ(given.attention.masks(), window > 0 ? 1U : 0U);  // of the formula alone
  }
}

// Descriptions alone reach a kernel, and what they are made into is made once: the same tensors for every layer.
TEST_F(BoundAttention, NoMaskIsMadeAndPaddingIsCountedOnce) {
  const auto one = layer(kPlain), two = layer(with([](auto&o) { o.sliding_window = 3; }));
  const Tensor x = random({1, 7, 12});
  for (const bool bundled : {false, true}) {
    for (const auto& attention : {one.get(), two.get()}) {
      bundled ? bind_bundled(*attention) : bind(*attention, package_);
    }
    const ForwardContext packed = context({.cu_seqlens = at::tensor({0, 2, 7}, at::kInt), .max_seqlen = 5});
    (one->forward(x, packed) + two->forward(x, packed)).sum().backward();
    EXPECT_EQ(packed.attention.masks(), 0U);
    const ForwardContext padded = context({.padding = at::tensor({0, 0, 1, 1, 1, 1, 1}).to(at::kBool).unsqueeze(0)});
    one->forward(x, padded);
    const void* index = padded.attention.real_tokens(7).index.const_data_ptr();
    two->forward(x, padded).sum().backward();
    EXPECT_EQ(padded.attention.real_tokens(7).index.const_data_ptr(), index);
    EXPECT_EQ(padded.attention.masks(), 0U);
  }
}

TEST_F(BoundAttention, WhatAPackageLacksStaysStockAndSaysWhy) {
  const auto why = [&](const AttentionPackage& package, const SelfAttentionOptions& options) {
    const auto attention = layer(options);
    const auto report = bind(*attention, package);
    EXPECT_FALSE(row_of(report, "attention").package) << report;
    return row_of(report, "attention").reason;
  };
  const AttentionPackage few([](auto& claims) {
    claims["features"] = {"causal"};
    claims["numbers"]["head_dims"] = {6, 8};
  });
  expect_has(why(few, kPlain), {"attn:attention", "gqa"});
  expect_has(why(few, with([](auto& o) { o.num_kv_heads = 4, o.sliding_window = 3; })), {"window"});
  expect_has(why(few, with([](auto& o) { o.num_kv_heads = 4, o.sinks = true; })), {"sinks"});
  expect_has(why(few, with([](auto& o) { o.num_kv_heads = 4, o.head_dim = 10; })), {"head_dims", "10"});
  expect_has(why(package_, with([](auto& o) { o.dropout = 0.1; })), {"dropout"});
  EXPECT_TRUE(row_of(bind(*layer(with([](auto& o) { o.num_kv_heads = 4; })), few), "attention").package);
}

TEST_F(BoundAttention, TheBundledPackageTakesHeadsOfEverySize) {
  for (const int64_t dim : {6, 80, 512}) {
    const auto attention = layer(with([&](auto& o) { o.head_dim = dim; }));
    EXPECT_EQ(row_of(bind_bundled(*attention), "attention").package, "attention") << dim;
  }
  const auto dropped = layer(with([](auto& o) { o.dropout = 0.1; }));
  expect_has(row_of(bind_bundled(*dropped), "attention").reason, {"attention:attention has no dropout"});
}

// Keys and values of different widths: a package must claim the pair.
TEST_F(BoundAttention, LatentAttention) {
  const AttentionPackage pair([](auto& claims) { claims["numbers"]["head_dims"] = {"2-256", "10/6"}; });
  LatentAttention attention({.hidden_size = 12,
                             .num_heads = 3,
                             .q_lora_rank = 7,
                             .kv_lora_rank = 5,
                             .qk_nope_head_dim = 4,
                             .qk_rope_head_dim = 6,
                             .v_head_dim = 6});
  attention.each_tensor([&](const std::string&, Tensor& tensor) { tensor = random(tensor.sizes()); });
  attention.requires_grad(true);
  const Tensor x = random({2, 7, 12});
  const auto run = [&] {
    attention.each_tensor([](const std::string&, Tensor& tensor) { tensor.mutable_grad() = Tensor(); });
    const Tensor y = attention.forward(x, context({}));
    (y * y).sum().backward();
    std::vector<Tensor> all{y.detach()};
    attention.each_tensor([&](const std::string&, Tensor& tensor) { all.push_back(tensor.grad()); });
    return all;
  };
  const auto want = run();
  expect_has(row_of(bind(attention, package_), "attention").reason, {"takes no head_dims of 10/6, only 2-256"});
  ASSERT_EQ(row_of(bind(attention, pair), "attention").package, "attn");
  const auto got = run();
  EXPECT_EQ(pair.calls("forward_train"), 1);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(difference(got[i], want[i]), 2e-5) << i;
}

// What benchmarks time is right.
TEST_F(BoundAttention, TheContractsExample) {
  const PackageLayer& layer = load_package(read_package(package_.variant(), {})).layer("attention");
  const auto example = example_of(layer.contract()).make("attention", {.rows = 5, .dim = 128});
  ASSERT_TRUE(example);
  const Tensor want = example->exact(example->arguments).at(0);
  EXPECT_EQ(want.sizes(), at::IntArrayRef({1, 5, 2, 64}));
  EXPECT_LE(difference(example->bound(layer)(example->arguments).at(0), want), 2e-5);
  EXPECT_EQ(package_.calls("forward"), 1);
}

TEST_F(BoundAttention, FixedKeysHaveNoGradient) {
  const auto attention = layer(kPlain);
  bind(*attention, package_);
  attention->each_tensor(
      [](const std::string& name, Tensor& tensor) { tensor.set_requires_grad(name == "q_proj.weight"); });
  FixedKeys keys(9);
  ForwardContext step = context({.positions = keys.next(2)});
  step.memory = &keys;
  const Tensor x = random({1, 2, 12});
  expect_has(message_of([&] { attention->forward(x, step); }), {"static cache for attn:attention", "NoGradGuard"});
}

TEST_F(BoundAttention, TokensThatAPackageHasNoOpFor) {
  AttentionPackage dense_only;
  dense_only.copy().edit_layers([](auto& manifest) {
    auto& ops = manifest["layers"]["attention"]["ops"];
    for (const char* role : {"varlen_forward", "varlen_forward_train", "varlen_backward", "decode"}) ops.erase(role);
  });
  const auto attention = layer(kPlain);
  bind(*attention, dense_only);
  const Tensor x = random({1, 4, 12});
  const auto refused = [&](const SequenceInfo& sequence) {
    return message_of([&] { attention->forward(x, context(sequence)); });
  };
  EXPECT_EQ(refused({}), "no error");
  expect_has(refused({.padding = at::tensor({0, 1, 1, 1}, at::kLong).to(at::kBool).unsqueeze(0)}),
             {"varlen_forward_train of attn:attention", "padding", "sdpa"});
  expect_has(refused({.cu_seqlens = at::tensor({0, 4}, at::kInt), .max_seqlen = 4}), {"varlen_forward_train"});
}

}  // namespace
}  // namespace hotswap
