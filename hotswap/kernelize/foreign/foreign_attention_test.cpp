// flash-attn2, flash-attn3 and vllm-flash-attn3 through their adapters: packages in the same shapes, made here.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "hotswap/kernelize/example/example.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/testing.h"
#include "hotswap/layers/self_attention.h"

namespace hotswap {
namespace {

using binding::BoundLayer;
using test_support::difference;
using test_support::expect_has;
using test_support::ForeignCopy;
using test_support::message_of;
using test_support::row_of;

struct Shape {
  const char *name, *library;
};
constexpr Shape kShapes[] = {{"flash-attn2", HOTSWAP_TEST_FOREIGN_FLASH2},
                             {"flash-attn3", HOTSWAP_TEST_FOREIGN_FLASH3},
                             {"vllm-flash-attn3", HOTSWAP_TEST_FOREIGN_VLLM3}};

class ForeignAttention : public testing::TestWithParam<Shape> {
 protected:
  ForeignAttention() : seed_(test_support::test_seed()), trace_(__FILE__, __LINE__, cat("seed ", seed_)) {
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
  }
  Tensor random(at::IntArrayRef shape) { return at::zeros(shape).normal_(0, 1, generator_).to(at::kBFloat16); }
  bool is(const char* name) const { return std::string(GetParam().name) == name; }

  ForeignCopy foreign_{GetParam().name, GetParam().library};
  const Package& package_ = foreign_.load();
  const PackageLayer& layer_ = package_.layer("attention");

 private:
  uint64_t seed_;
  testing::ScopedTrace trace_;
  at::Generator generator_;
};

struct ForeignInputs {
  Tensor q, k, v, dout;
  ForeignInputs as(at::ScalarType dtype) const { return {q.to(dtype), k.to(dtype), v.to(dtype), dout.to(dtype)}; }
};

template <typename Forward>
std::vector<Tensor> run_foreign(const Forward& forward, const ForeignInputs& in, const AttentionOptions& o,
                                const SequenceInfo& s) {
  const auto leaf = [](const Tensor& t) { return t.detach().clone().set_requires_grad(true); };
  const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const Tensor out = forward(q, k, v, o, AttentionMetadata(s));
  torch::autograd::backward({out}, {in.dout});
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

// The packages sum in float64 and round once, so what differs from the formula on float32 is bfloat16's rounding of
// each result, 2^-9, and of the output, which the backward reads again.
constexpr double kForward = 4e-3, kBackward = 1e-2;

TEST_P(ForeignAttention, ValuesAndGradients) {
  Tensor padding = at::ones({2, 7}, at::kBool);
  padding[1].narrow(0, 0, 3).fill_(false);
  const std::vector<std::pair<int64_t, SequenceInfo>> forms = {
      {2, {}},
      {2, {.padding = padding}},
      {1, {.cu_seqlens = at::tensor({0, 2, 7}, at::kInt), .max_seqlen = 5}},
  };
  const BoundLayer<AttentionForward> got(layer_, stock::eager);
  int64_t dense = 0, varlen = 0;
  for (const auto& [batch, sequence] : forms) {
    for (const AttentionOptions& o :
         {AttentionOptions{.scale = 0.3}, AttentionOptions{.scale = 0.4, .window_left = 2, .softcap = 1.5}}) {
      ForeignInputs in{random({batch, 7, 4, 8}), random({batch, 7, 2, 8}), random({batch, 7, 2, 8}),
                       random({batch, 7, 4, 8})};
      if (sequence.padding.defined()) in.dout = in.dout * padding.unsqueeze(2).unsqueeze(3);
      const auto have = run_foreign(got.slot, in, o, sequence),
                 want = run_foreign(stock::eager, in.as(at::kFloat), o, sequence);
      Tensor counted = at::ones({batch, 7});
      if (sequence.padding.defined()) counted = padding.to(at::kFloat);
      const Tensor counts = counted.unsqueeze(2).unsqueeze(3);
      EXPECT_LE(difference(have[0] * counts, want[0] * counts), kForward);
      for (size_t i = 1; i < want.size(); ++i) EXPECT_LE(difference(have[i], want[i]), kBackward) << i;
      (sequence.padding.defined() || sequence.cu_seqlens.defined() ? varlen : dense) += 1;
    }
  }
  EXPECT_EQ(package_.calls("forward_train"), dense);
  EXPECT_EQ(package_.calls("backward"), dense);
  EXPECT_EQ(package_.calls("varlen_forward_train"), varlen);
  EXPECT_EQ(package_.calls("varlen_backward"), varlen);
}

// Every key is there for some queries, and none for the first two.
TEST_P(ForeignAttention, QueriesThatSeeNothing) {
  const BoundLayer<AttentionForward> got(layer_, stock::eager);
  const AttentionOptions options{.scale = 0.3};
  ForeignInputs in{random({1, 5, 2, 8}), random({1, 3, 2, 8}), random({1, 3, 2, 8}), random({1, 5, 2, 8})};
  const auto have = run_foreign(got.slot, in, options, {});
  EXPECT_EQ(have[0].narrow(1, 0, 2).abs().sum().item<double>(), 0);
  EXPECT_EQ(have[1].narrow(1, 0, 2).abs().sum().item<double>(), 0);
  const ForeignInputs seeing{in.q.narrow(1, 2, 3), in.k, in.v, in.dout.narrow(1, 2, 3)};
  const auto want = run_foreign(stock::eager, seeing.as(at::kFloat), options, {});
  EXPECT_LE(difference(have[0].narrow(1, 2, 3), want[0]), kForward);
  EXPECT_LE(difference(have[1].narrow(1, 2, 3), want[1]), kBackward);
  for (size_t i = 2; i < want.size(); ++i) EXPECT_LE(difference(have[i], want[i]), kBackward) << i;

  const at::NoGradGuard no_grad;
  std::vector<c10::IValue> stack = {in.q, in.k, in.v, c10::IValue(), c10::IValue(), 0.3, true, -1, -1, 0, 0.0};
  c10::Dispatcher::singleton().findSchemaOrThrow(layer_.op("forward_train").c_str(), "").callBoxed(&stack);
  const Tensor lse = stack.at(1).toTensor();  // [1, heads, 5]
  ASSERT_EQ(lse.sizes(), (std::vector<int64_t>{1, 2, 5}));
  EXPECT_TRUE(lse.narrow(2, 0, 2).eq(-std::numeric_limits<double>::infinity()).all().item<bool>());
  const Tensor scores =
      in.q.to(at::kFloat)[0].narrow(0, 4, 1).transpose(0, 1).matmul(in.k.to(at::kFloat)[0].permute({1, 2, 0})) *
      0.3;  // of the last query: [heads, 1, 3]
  EXPECT_LE(difference(lse[0].select(1, 4), at::logsumexp(scores, {2}).squeeze(1)), 1e-5);
}

TEST_P(ForeignAttention, KeysOfAFixedSize) {
  const at::NoGradGuard no_grad;
  const BoundLayer<AttentionForward> got(layer_, stock::eager);
  const SequenceInfo sequence{.start = 4, .positions = at::tensor({4, 5}, at::kLong)};
  const Tensor q = random({2, 2, 4, 8}), k = random({2, 9, 2, 8}), v = random({2, 9, 2, 8});
  for (const int64_t window : {-1, 2}) {
    const AttentionOptions o{.scale = 0.3, .window_left = window};
    const Tensor want =
        stock::eager(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), o, AttentionMetadata(sequence));
    EXPECT_LE(difference(got.slot(q, k, v, o, AttentionMetadata(sequence)), want), kForward) << window;
  }
  EXPECT_EQ(package_.calls("decode"), 2);
}

TEST_P(ForeignAttention, SinksAndChunksWhereTheyAre) {
  const auto bound = [&](Mode mode, const std::function<void(SelfAttentionOptions&)>& change) {
    SelfAttentionOptions options{.hidden_size = 32, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8};
    change(options);
    SelfAttention attention(options);
    attention.each_tensor([&](const std::string&, Tensor& tensor) { tensor = random(tensor.sizes()); });
    KernelOptions kernels{
        .config = {{{"attention", KernelRef(foreign_.root().string() + ":attention")}}, false, false}};
    kernels.config.use_local_kernel = true;
    const KernelReport report = kernelize(attention, mode, kernels);
    const KernelRow& row = row_of(report, "attention");
    return row.package ? std::string("bound") : row.reason;
  };
  const Mode I = Mode::INFERENCE, T = Mode::TRAINING;
  const auto plain = [](SelfAttentionOptions&) {};
  const auto sinks = [](SelfAttentionOptions& o) { o.sinks = true; };
  const auto chunks = [](SelfAttentionOptions& o) { o.chunk = 4; };
  const auto odd = [](SelfAttentionOptions& o) { o.head_dim = 6; };
  EXPECT_EQ(bound(I, plain), "bound");
  EXPECT_EQ(bound(T, plain), "bound");
  EXPECT_EQ(bound(I, sinks), is("vllm-flash-attn3") ? "bound"
                                                    : cat(GetParam().name,
                                                          ":attention has no sinks, only "
                                                          "causal, gqa, softcap, window"));
  expect_has(bound(T, sinks), {is("vllm-flash-attn3") ? "has no gradient of sinks" : "has no sinks"});
  EXPECT_EQ(bound(I, chunks) == "bound", is("flash-attn3"));
  expect_has(bound(T, chunks), {is("flash-attn3") ? "has no gradient of chunk" : "has no chunk"});
  expect_has(bound(I, odd), {"takes no head_dims of 6, only 8, 16, 24"});
}

TEST_P(ForeignAttention, ValuesWithSinksOrChunks) {
  const at::NoGradGuard no_grad;
  const BoundLayer<AttentionForward> got(layer_, stock::eager);
  const Tensor q = random({2, 7, 4, 8}), k = random({2, 7, 2, 8}), v = random({2, 7, 2, 8}), sinks = random({4});
  const auto both = [&](AttentionOptions o) {
    const Tensor have = got.slot(q, k, v, o, AttentionMetadata());
    return difference(have, stock::eager(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), o, AttentionMetadata()));
  };
  const AttentionOptions with_sinks{.scale = 0.3, .sinks = sinks.to(at::kFloat)};
  const AttentionOptions with_chunks{.scale = 0.3, .chunk = 3}, with_alibi{.scale = 0.3, .alibi_slopes = at::ones({4})};
  if (is("vllm-flash-attn3")) {
    EXPECT_LE(both(with_sinks), kForward);
  } else {
    expect_has(message_of([&] { both(with_sinks); }), {is("flash-attn2") ? "sinks" : "s_aux"});
  }
  if (is("flash-attn3")) {
    EXPECT_LE(both(with_chunks), kForward);
  } else {
    expect_has(message_of([&] { both(with_chunks); }), {"chunk"});
  }
  expect_has(message_of([&] { both(with_alibi); }), {"ALiBi", "hotswap/attention"});
}

INSTANTIATE_TEST_SUITE_P(Packages, ForeignAttention, testing::ValuesIn(kShapes), [](const auto& info) {
  std::string name = info.param.name;
  std::erase(name, '-');
  return name;
});

TEST(ForeignAttentionPackages, OtherOpsUnderTheNameAreListed) {
  expect_has(message_of([] { ForeignCopy("flash-attn2", HOTSWAP_TEST_FOREIGN_FLASH3).load(); }),
             {"::varlen_fwd is not registered", "::fwd_kvcache is not registered", "where fwd(Tensor! q"});
  expect_has(message_of([] { ForeignCopy("flash-attn3", HOTSWAP_TEST_FOREIGN_VLLM3).load(); }), {"attention_chunk"});
}

}  // namespace
}  // namespace hotswap
