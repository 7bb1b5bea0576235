// transformers' guides to kernels in this host's words, snippet by snippet, against a served Hub: docs/snippets.md has
// the table. Of the guides' text only the names of models, repositories and devices are others.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include "hotswap/generation/generate.h"
#include "hotswap/kernelize/bind/test_attention.h"
#include "hotswap/kernelize/test_hub.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using test_support::AttentionPackage;
using test_support::expect_has;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::row_of;
using test_support::ScopedEnv;
using test_support::TempFolder;

class Guide : public test_support::ServedKernels {
 protected:
  Guide() {
    trust("kernels-community");
    const nlohmann::ordered_json config = {{"model_type", "qwen3"},
                                           {"vocab_size", 40},
                                           {"hidden_size", 24},
                                           {"num_hidden_layers", 2},
                                           {"num_attention_heads", 4},
                                           {"num_key_value_heads", 2},
                                           {"head_dim", 6},
                                           {"intermediate_size", 32},
                                           {"rms_norm_eps", 1e-5},
                                           {"max_position_embeddings", 64}};
    const auto made = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
    made->init_weights(5);
    made->save_pretrained(folder.path());
  }
  std::shared_ptr<CausalLM> load(const PretrainedOptions& options) const {
    return AutoModelForCausalLM::from_pretrained(folder.path(), options);
  }
  static std::string reason(const CausalLM& model, const std::string& layer) {
    return row_of(model.kernel_report(), layer).reason;
  }
  static std::string package(const CausalLM& model, const std::string& layer) {
    return row_of(model.kernel_report(), layer).package.value_or("stock");
  }
  const TempFolder folder;
  const Tensor ids = at::randint(0, 40, {2, 7}, at::kLong);
};

TEST_F(Guide, UseKernels) {
  const auto model = load({.use_kernels = true});
  for (const char* layer : {"RMSNorm", "SwiGLUMLP", "rotary_pos_emb", "Linear"})
    EXPECT_NE(package(*model, layer), "stock");
  EXPECT_EQ(asked(), 0U);
}

TEST_F(Guide, AMappingOfOneLayer) {
  const KernelConfig config{{{"RMSNorm", "kernels-community/rmsnorm"}}};
  const auto model = load({.use_kernels = true, .kernel_config = config});
  expect_has(reason(*model, "RMSNorm"), {"stands in for kernels-community/rmsnorm:RMSNorm"});
}

TEST_F(Guide, ARepositoryWithoutALayersName) {
  const KernelConfig config{
      {{"SiLU", "kernels-community/activation"}, {"SwiGLUMLP", "kernels-community/liger_kernels"}}};
  const auto model = load({.kernel_config = config});
  expect_has(reason(*model, "SiLU"), {"stands in for kernels-community/activation:Silu"});
  expect_has(reason(*model, "SwiGLUMLP"), {"stands in for kernels-community/liger_kernels:LigerSwiGLUMLP"});
  const AttentionPackage attention;  // of the Hub, where the name is the mapping's own
  serve(attention.root(), "kernels-community/attn", "v1");
  expect_has(reason(*load({.kernel_config = KernelConfig{{{"attention", "kernels-community/attn"}}}}), "attention"),
             {"from kernels-community/attn@"});
}

TEST_F(Guide, AttentionKernels) {
  for (const char* name :
       {"kernels-community/flash-attn2", "kernels-community/flash-attn", "kernels-community/flash-attn2@>=2.0,<3.0",
        "kernels-community/flash-attn2:FlashAttention2"}) {
    const auto model = load({.attn_implementation = name});
    EXPECT_EQ(package(*model, kAttentionLayer), "attention") << name;
    expect_has(reason(*model, kAttentionLayer), {"stands in for kernels-community/flash-attn"});
  }
  EXPECT_EQ(asked(), 0U);
}

TEST_F(Guide, AnAttentionKernelOfATag) {
  const AttentionPackage tagged;
  serve(tagged.root(), "kernels-community/flash-attn2", "v2.1.0");
  const auto model = load({.attn_implementation = "kernels-community/flash-attn2@v2.1.0"});
  expect_has(reason(*model, kAttentionLayer), {"from kernels-community/flash-attn2@", "(v2.1.0)"});
}

TEST_F(Guide, AnAttentionKernelOfAnybody) {
  const AttentionPackage theirs;
  serve(theirs.root(), "random-repo/random-attention", "v1");
  const char* name = "random-repo/random-attention";
  expect_has(message_of([&] { load({.attn_implementation = name}); }),
             {"not from a trusted publisher", "allow_all_kernels"});
  const auto model = load({.allow_all_kernels = true, .attn_implementation = name});
  expect_has(reason(*model, kAttentionLayer), {"from random-repo/random-attention@"});
}

TEST_F(Guide, ModesFollowTheModel) {
  const auto model = load({.use_kernels = true, .strict = true});
  const auto stock = load({});
  model->eval();
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(model->generate(ids, {.max_new_tokens = 50}), stock->generate(ids, {.max_new_tokens = 50})));
  }
  EXPECT_EQ(row_of(model->kernel_report(), "RMSNorm").mode, "INFERENCE");
  model->train();
  EXPECT_EQ(row_of(model->kernel_report(), "RMSNorm").mode, "TRAINING");
  const Tensor loss = (*model)({.input_ids = ids, .labels = ids}).loss;
  loss.backward();
  for (const Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_F(Guide, ModesByName) {
  const auto model = load({});
  for (const Mode mode : {Mode::INFERENCE, Mode::TRAINING, Mode::TRAINING | Mode::TORCH_COMPILE}) {
    model->train(mode.has(Mode::TRAINING));
    EXPECT_EQ(row_of(model->kernelize(mode), "RMSNorm").mode, mode.str());
    EXPECT_EQ(package(*model, "RMSNorm"), "norm");
  }
}

TEST_F(Guide, ALayerOfARepositoryBesideAnAttentionKernel) {
  const KernelConfig config{{{"RMSNorm", "kernels-community/liger_kernels:LigerRMSNorm"}}};
  const auto model = load({.use_kernels = true,
                           .kernel_config = config,
                           .attn_implementation = "kernels-community/flash-attn2:FlashAttention2"});
  EXPECT_EQ(package(*model, kAttentionLayer), "attention");
  expect_has(reason(*model, "RMSNorm"), {"stands in for kernels-community/liger_kernels:LigerRMSNorm"});
}

TEST_F(Guide, ATagAndARangeOfVersionsAndMetadata) {
  const PackageCopy norm("norm");
  for (const char* revision : {"v1", "v2", "v0.1.0"}) serve(norm.root(), "kernels-community/fast-norm", revision);
  serve(norm.root(), "random-repo/random-norm", "v1");
  const auto said = [&](const KernelRef& ref) {
    return reason(*load({.kernel_config = KernelConfig{{{"RMSNorm", ref}}}}), "RMSNorm");
  };
  expect_has(said("kernels-community/fast-norm@v0.1.0:RMSNorm"), {"from kernels-community/fast-norm@", "(v0.1.0)"});
  expect_has(said("kernels-community/fast-norm@>=1,<3:RMSNorm"), {"from kernels-community/fast-norm@", "(v2)"});
  expect_has(said(KernelRef("random-repo/random-norm:RMSNorm", {.version = 1, .trust = true})),
             {"from random-repo/random-norm@"});
}

TEST_F(Guide, AKernelForEachDevice) {
  const PackageCopy fast("norm");
  serve(fast.root(), "kernels-community/cpu-norm", "v1");
  const KernelConfig config{{{"RMSNorm",
                              {{"cpu", "kernels-community/cpu-norm:RMSNorm"},
                               {"cuda", "kernels-community/liger_kernels:LigerRMSNorm"},
                               {"rocm", "kernels-community/rocm-kernels:RocmRMSNorm"},
                               {"metal", "kernels-community/metal-kernels:MetalRMSNorm"},
                               {"xpu", "kernels-community/xpu-kernels:XpuRMSNorm"}}}}};
  expect_has(reason(*load({.kernel_config = config}), "RMSNorm"), {"from kernels-community/cpu-norm@"});
  // As the guide has it, for no CPU: the default kernel serves it, and the row says so.
  const KernelConfig others{{{"RMSNorm",
                              {{"cuda", "kernels-community/liger_kernels:LigerRMSNorm"},
                               {"rocm", "kernels-community/rocm-kernels:RocmRMSNorm"},
                               {"metal", "kernels-community/metal-kernels:MetalRMSNorm"},
                               {"xpu", "kernels-community/xpu-kernels:XpuRMSNorm"}}}}};
  EXPECT_EQ(reason(*load({.kernel_config = others}), "RMSNorm"),
            "the mapping names RMSNorm on cuda, mps, rocm, xpu alone");
}

TEST_F(Guide, LocalKernels) {
  const PackageCopy copy("norm");
  const KernelConfig config{.kernel_mapping = {{"RMSNorm", copy.root().string() + ":RMSNorm"}},
                            .use_local_kernel = true};
  const auto model = load({.use_kernels = true, .kernel_config = config});
  EXPECT_EQ(package(*model, "RMSNorm"), "norm");
  EXPECT_EQ(package(*model, "SwiGLUMLP"), "stock");  // as there: local kernels alone
}

TEST_F(Guide, ALayerKeptStock) {
  const KernelConfig config{{{"RMSNorm", ""}}};
  const auto model = load({.use_kernels = true, .kernel_config = config});
  EXPECT_EQ(reason(*model, "RMSNorm"), "the mapping says stock");
  EXPECT_NE(package(*model, "SwiGLUMLP"), "stock");
}

TEST_F(Guide, NoKernelsAtAll) {
  for (const char* off : {"0", "OFF", "NO"}) {
    const ScopedEnv disabled("USE_HUB_KERNELS", off);
    const auto model = load({.use_kernels = true});
    EXPECT_EQ(model->kernel_report().bound(), 0);
    EXPECT_EQ(reason(*model, "RMSNorm"), "USE_HUB_KERNELS is off");
  }
}

}  // namespace
}  // namespace hotswap
