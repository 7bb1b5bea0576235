// Whole models whose attention is a kernel that attn_implementation names: what comes out is what stock attention
// gives, and the report says what ran.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include "hotswap/kernelize/bind/test_attention.h"
#include "hotswap/kernelize/test_hub.h"
#include "hotswap/layers/cache.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using test_support::AttentionPackage;
using test_support::difference;
using test_support::expect_has;
using test_support::message_of;
using test_support::row_of;
using test_support::same_bits;
using test_support::ScopedEnv;

constexpr int64_t kLayers = 2, kSteps = 5;

std::shared_ptr<CausalLM> tiny_family(const std::string& family) {
  const nlohmann::ordered_json config = {{"model_type", family},
                                         {"vocab_size", 40},
                                         {"hidden_size", 24},
                                         {"num_hidden_layers", kLayers},
                                         {"num_attention_heads", 4},
                                         {"num_key_value_heads", 2},
                                         {"head_dim", 6},
                                         {"intermediate_size", 32},
                                         {"rms_norm_eps", 1e-5},
                                         {"initializer_range", 0.4},
                                         {"sliding_window", 5},  // of those families that slide
                                         {"sliding_window_pattern", 2},
                                         {"max_position_embeddings", 64}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->requires_grad(true);
  model->init_weights(5);
  model->eval();
  return model;
}

std::vector<KernelRow> attention_rows(const CausalLM& model) {
  std::vector<KernelRow> rows;
  for (const KernelRow& row : model.kernel_report().rows) {
    if (row.layer == kAttentionLayer) rows.push_back(row);
  }
  return rows;
}

// Logits, loss and the gradient of every parameter.
std::vector<Tensor> train_step(CausalLM& model, const Tensor& ids) {
  model.train();
  model.each_tensor([](const std::string&, Tensor& tensor) { tensor.mutable_grad() = Tensor(); });
  const auto out = model({.input_ids = ids, .labels = ids, .need_logits = true});
  out.loss.backward();
  std::vector<Tensor> all{out.logits.detach(), out.loss.detach()};
  model.each_tensor([&](const std::string&, Tensor& tensor) { all.push_back(tensor.grad()); });
  model.eval();
  return all;
}

// mask: of the prompt, padded on the left; or undefined.
Tensor generate(CausalLM& model, Tensor ids, const Tensor& mask = {}) {
  const at::NoGradGuard no_grad;
  const auto cache = model.make_cache();
  Tensor all = mask, positions, next = ids;
  if (mask.defined()) {
    all = at::cat({mask, at::ones({ids.size(0), kSteps}, at::kLong)}, 1);
    positions = (all.cumsum(1) - 1).clamp_min(0);
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t seen = cache->length(), end = seen + next.size(1);
    ForwardArguments forward{.input_ids = next, .cache = cache.get(), .logits_to_keep = 1};
    if (mask.defined()) {
      forward.attention_mask = all.narrow(1, 0, end);
      forward.position_ids = positions.narrow(1, seen, end - seen);
    }
    next = at::argmax(model(forward).logits, -1);
    ids = at::cat({ids, next}, 1);
  }
  return ids;
}

class AttentionByName : public test_support::ServedKernels {
 protected:
  AttentionByName() { serve(package.root(), "acme/attn", "v1"); }
  AttentionPackage package;
};

// A kernel by a name, and what the report says of it.
struct Named {
  const char *name, *package;
  std::string reason;
  std::map<std::string, std::string> ops;  // of roles
};

TEST_F(AttentionByName, ComputesWhatStockAttentionDoes) {
  const std::map<std::string, std::string> bundled = {{"forward", "attention"},
                                                      {"forward_train", "attention_fwd"},
                                                      {"backward", "attention_bwd"},
                                                      {"varlen_forward", "attention_varlen"},
                                                      {"decode", "attention_decode"}};
  std::map<std::string, std::string> roles;
  for (const auto& [role, op] : bundled) roles[role] = role;
  const std::string stands_in = "stands in for kernels-community/flash-attn2:attention";
  const std::vector<Named> kernels = {{"acme/attn", "attn", "from acme/attn@", roles},
                                      {"flash_attention_2", "attention", stands_in, bundled},
                                      {"kernels-community/flash-attn2@>=2.0,<3.0", "attention", stands_in, bundled},
                                      {"hotswap/attention", "attention", "", bundled}};
  const Tensor ids = at::randint(0, 40, {2, 11}, at::kLong);
  Tensor mask = at::ones({2, 11}, at::kLong);
  mask[1].narrow(0, 0, 4).zero_();
  for (const char* family : {"llama", "mistral", "qwen3", "gemma2", "gemma3_text"}) {
    const auto model = tiny_family(family);
    const auto padded = [&] {
      const at::NoGradGuard no_grad;
      return (*model)({.input_ids = ids, .attention_mask = mask}).logits * mask.unsqueeze(-1);
    };
    const auto want = train_step(*model, ids);
    const Tensor want_padded = padded(), want_ids = generate(*model, ids);
    const Tensor want_padded_ids = generate(*model, ids, mask);
    for (const Named& kernel : kernels) {
      SCOPED_TRACE(cat(family, " ", kernel.name));
      model->set_attn_implementation(kernel.name);
      ASSERT_EQ(attention_rows(*model).size(), kLayers);
      EXPECT_EQ(model->kernel_report().bound(), kLayers) << "no other layer";
      for (const KernelRow& row : attention_rows(*model)) {
        EXPECT_EQ(row.package, kernel.package);
        EXPECT_EQ(row.version, 1);
        expect_has(row.reason, {kernel.reason});
      }
      std::map<std::string, int64_t> before;
      const auto ran = [&](const char* role) {
        const int64_t calls =
            kernel.package == std::string("attn") ? package.calls(role) : op_calls("attention", kernel.ops.at(role));
        return calls - std::exchange(before[role], calls);
      };
      for (const auto& [role, op] : kernel.ops) ran(role.c_str());

      const auto got = train_step(*model, ids);
      EXPECT_EQ(ran("forward_train"), kLayers);
      EXPECT_EQ(ran("backward"), kLayers);
      ASSERT_EQ(got.size(), want.size());
      // Another order of float32 sums, or sums in float64: roundings of 6e-8, grown by two layers of weights of 0.4.
      for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(difference(got[i], want[i]), 1e-4) << i;
      EXPECT_LE(difference(padded(), want_padded), 1e-4);
      EXPECT_EQ(ran("varlen_forward"), kLayers);
      EXPECT_EQ(ran("forward"), 0);
      EXPECT_TRUE(at::equal(generate(*model, ids), want_ids));
      EXPECT_EQ(ran("forward"), kSteps * kLayers);
      EXPECT_TRUE(at::equal(generate(*model, ids, mask), want_padded_ids));
      EXPECT_EQ(ran("varlen_forward"), kSteps * kLayers);

      model->kernelize(Mode::INFERENCE);
      EXPECT_EQ(row_of(model->kernel_report(), kAttentionLayer).package, kernel.package) << "also among other kernels";
      EXPECT_EQ(row_of(model->kernel_report(), "RMSNorm").package, "norm");
      if (family == std::string("llama")) {
        const bool by_layers = row_of(model->kernel_report(), "DecoderLayer").package.has_value();
        EXPECT_EQ(by_layers, kernel.name == std::string("hotswap/attention"))
            << "those of another kernel are no whole layer's";
      }
      model->unkernelize();
      model->set_attn_implementation("");
      const auto again = train_step(*model, ids);
      for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(same_bits(again[i], want[i])) << i;
      EXPECT_EQ(ran("forward_train"), 0);
    }
  }
}

TEST_F(AttentionByName, TrustVersionAndDigestHold) {
  const auto model = tiny_family("llama");
  const auto refused = [&](const std::string& name, const KernelOptions& options = {}) {
    std::string text = message_of([&] { model->set_attn_implementation(name, options); });
    EXPECT_EQ(model->attn_implementation(), "sdpa") << name;
    EXPECT_TRUE(model->kernel_report().rows.empty()) << name;
    return text;
  };
  const AttentionPackage theirs;
  serve(theirs.root(), "evil/attn", "v1");
  expect_has(refused("evil/attn"), {"'evil/attn' is not from a trusted publisher", "allow_all_kernels"});
  expect_has(refused("acme/attn@v2"), {"version 2 of acme/attn", "available versions: 1"});
  const AttentionPackage changed;
  write_file(changed.variant() / "layers.json", "{}");  // behind the back of its digest
  serve(changed.root(), "acme/changed", "v1");
  expect_has(refused("acme/changed"), {"layers.json"});
  model->set_attn_implementation("evil/attn", {.allow_all_kernels = true});
  EXPECT_EQ(model->kernel_report().bound(), kLayers);
  model->unkernelize();
  model->set_attn_implementation("acme/attn@>=1,<3");
  expect_has(attention_rows(*model).at(0).reason, {"from acme/attn@", "(v1)"});
}

// By a folder, without a Hub.
TEST(AttentionInAFolder, WhatItLacksStaysStockAndStrictSaysSo) {
  const AttentionPackage few([](auto& claims) { claims["features"] = {"causal", "gqa"}; });
  const AttentionPackage wide([](auto& claims) { claims["numbers"]["head_dims"] = {64}; });
  const ScopedEnv local("LOCAL_KERNELS", cat("acme/few=", few.root().string(), ":acme/wide=", wide.root().string()));
  const auto why = [](CausalLM& model, const std::string& name) {
    model.set_attn_implementation(name);
    EXPECT_EQ(model.kernel_report().bound(), 0);
    return attention_rows(model).at(0).reason;
  };
  const auto llama = tiny_family("llama"), mistral = tiny_family("mistral");
  const Tensor ids = at::randint(0, 40, {1, 9}, at::kLong);
  const Tensor want = (*mistral)({.input_ids = ids}).logits;
  EXPECT_EQ(why(*mistral, "acme/few"), "attn:attention has no window, only causal, gqa");
  EXPECT_TRUE(same_bits((*mistral)({.input_ids = ids}).logits, want));
  EXPECT_EQ(why(*llama, "acme/wide"), "attn:attention takes no head_dims of 6, only 64");
  llama->set_attn_implementation("acme/few");
  EXPECT_EQ(llama->kernel_report().bound(), kLayers);

  const auto strict = tiny_family("mistral");
  expect_has(message_of([&] { strict->set_attn_implementation("acme/few", {.strict = true}); }),
             {"strict", "attention on cpu: attn:attention has no window", "2 layers"});
  EXPECT_EQ(strict->attn_implementation(), "sdpa");
}

}  // namespace
}  // namespace hotswap
