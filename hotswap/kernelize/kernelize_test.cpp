#include "hotswap/kernelize/kernelize.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <set>
#include <sstream>

#include "hotswap/kernelize/test_modes.h"
#include "hotswap/kernelize/testing.h"
#include "hotswap/layers/slot.h"

namespace hotswap {
namespace {

using test_support::difference;
using test_support::expect_has;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::same_bits;
using test_support::ScopedEnv;
using test_support::TempFolder;
using test_support::TinyModel;

using test_support::C;
using test_support::I;
using test_support::T;

const KernelRow& row(const KernelReport& report, const std::string& layer, const std::string& name = "") {
  for (const KernelRow& r : report.rows) {
    if (r.layer == layer && (name.empty() || r.name == name)) return r;
  }
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = "a row " + layer + " " + name,
               .got = "none",
               .next = "print the report"});
}

std::string kernel(const KernelReport& report, const std::string& layer, const std::string& name = "") {
  const KernelRow& r = row(report, layer, name);
  return r.package ? *r.package + ":" + r.package_layer : "stock";
}

int64_t bound_slots(Module& model) {
  int64_t bound = 0;
  model.each_slot([&](const std::string&, SlotBase& slot) { bound += slot.bound(); });
  return bound;
}

Tensor input() { return at::randn({2, 3, 16}, at::kFloat); }

TEST(Kernelize, TheDefaultMappingBindsEverySlotToABundledPackage) {
  TinyModel model;
  const KernelReport report = kernelize(model, T, {.strict = true});
  EXPECT_EQ(report.stock(), 0);
  EXPECT_EQ(bound_slots(model), static_cast<int64_t>(report.rows.size()));
  EXPECT_EQ(kernel(report, "RMSNorm"), "norm:RMSNorm");
  EXPECT_EQ(kernel(report, "AddRMSNorm"), "norm:AddRMSNorm");
  EXPECT_EQ(kernel(report, "SwiGLUMLP"), "mlp:SwiGLUMLP");
  EXPECT_EQ(kernel(report, "GeLU"), "activation:GeLU");
  EXPECT_EQ(kernel(report, "rotary_pos_emb"), "rotary:rotary_pos_emb");
  EXPECT_EQ(kernel(report, "LinearCrossEntropy"), "loss:LinearCrossEntropy");
  EXPECT_EQ(kernel(report, "Linear", "mlp.gate_proj"), "linear:Linear");
  const KernelRow& norm = row(report, "RMSNorm", "norm");
  EXPECT_EQ(norm.device, "cpu");
  EXPECT_EQ(norm.mode, "TRAINING");
  EXPECT_GE(norm.version, 1);
  EXPECT_EQ(norm.digest.substr(0, 7), "sha256:");
  EXPECT_EQ(norm.reason, "");
}

// What a slot needs beyond its contract, a kernel must claim.
TEST(Kernelize, ASlotsNeedsAreHeldAgainstWhatAKernelClaims) {
  class Needy : public Module {
   public:
    explicit Needy(SlotNeeds needs) : slot(this, "RMSNorm", "rms_norm/1", stock::rms_norm, std::move(needs)) {
      own("weight", weight, {8});
      weight = at::ones({8});
    }
    Tensor weight;
    Slot<RmsNormForward> slot;
  };
  const auto reason = [](SlotNeeds needs) {
    Needy model(std::move(needs));
    const KernelReport report = kernelize(model, I);
    EXPECT_EQ(model.slot.bound(), report.rows[0].package.has_value());
    return report.rows[0].reason;
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({.features = {"window"}, .numbers = {}}), "norm:RMSNorm has no window");
  EXPECT_EQ(reason({.features = {}, .numbers = {{"head_dims", {192, 128}}}}),
            "norm:RMSNorm declares no head_dims; this layer needs 192/128");
}

TEST(Kernelize, TrainsWithThePackagesOpsAndSwapsBackToTheBit) {
  // Always the same draw: of 3000 at random 14 were so ill-conditioned that float32 itself loses more than 1e-5, the
  // most 5e-5; of 60 half stay below 6e-7.
  at::manual_seed(0);
  TinyModel model;
  const Tensor x = input();
  const auto loss_and_grads = [&] {
    model.each_tensor([](const std::string&, Tensor& t) { t.mutable_grad() = Tensor(); });
    std::vector<Tensor> result = {model.forward(x)};
    result[0].backward();
    model.each_tensor([&](const std::string&, Tensor& t) { result.push_back(t.grad()); });
    return result;
  };
  const auto before = loss_and_grads();
  kernelize(model, T);
  struct Count {
    const char *package, *op;
    int64_t per_step;
  };
  const std::vector<Count> counts = {{"norm", "rms_norm_fwd", 1},
                                     {"norm", "rms_norm_bwd", 1},
                                     {"norm", "add_rms_norm_fwd", 1},
                                     {"norm", "add_rms_norm_bwd", 1},
                                     {"norm", "layer_norm_fwd", 1},
                                     {"norm", "layer_norm_bwd", 1},
                                     {"mlp", "swiglu", 1},
                                     {"mlp", "swiglu_bwd_again_", 1},
                                     {"activation", "gelu", 1},
                                     {"activation", "gelu_bwd", 1},
                                     {"rotary", "rotary", 1},
                                     {"rotary", "rotary_bwd", 1},
                                     {"linear", "linear", 0},  // the MLP's, which its one node multiplies itself
                                     {"linear", "linear_bwd", 0},
                                     {"loss", "linear_cross_entropy_fwd", 1}};
  std::vector<int64_t> old;
  old.reserve(counts.size());
  for (const auto& c : counts) old.push_back(op_calls(c.package, c.op));
  const auto swapped = loss_and_grads();
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(op_calls(counts[i].package, counts[i].op), old[i] + counts[i].per_step) << counts[i].op;
  }
  for (size_t i = 0; i < before.size(); ++i) EXPECT_LT(difference(swapped[i], before[i]), 1e-5) << i;
  unkernelize(model);
  EXPECT_EQ(bound_slots(model), 0);
  const auto after = loss_and_grads();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(after[i], before[i])) << i;
}

TEST(Kernelize, HubNamesResolveThroughStandsInForAndTheReportSaysSo) {
  TinyModel model;
  const KernelConfig config{{{"RMSNorm", "kernels-community/liger_kernels:LigerRMSNorm"},
                             {"SiLU", KernelRef("kernels-community/activation:Silu", {.version = 1})},
                             {"MLP", "kernels-community/liger-kernels@v3:LigerTiledSwiGLUMLP"},
                             {"rotary_pos_emb", "kernels-community/rotary:apply_rotary_transformers"},
                             {"GeLU", {{"cpu", "kernels-community/activation:Gelu"}}}}};
  const KernelReport report = kernelize(model, I, {.config = config});
  EXPECT_EQ(row(report, "RMSNorm").reason, "stands in for kernels-community/liger_kernels:LigerRMSNorm");
  EXPECT_EQ(kernel(report, "RMSNorm"), "norm:LigerRMSNorm");
  EXPECT_EQ(kernel(report, "SiLU"), "activation:Silu");
  EXPECT_EQ(kernel(report, "GeLU"), "activation:Gelu");
  EXPECT_EQ(row(report, "SwiGLUMLP").reason, "stands in for kernels-community/liger-kernels:LigerTiledSwiGLUMLP");
  EXPECT_EQ(kernel(report, "rotary_pos_emb"), "rotary:apply_rotary_transformers");
  EXPECT_EQ(kernel(report, "LayerNorm"), "norm:LayerNorm");  // inherited
  EXPECT_EQ(kernel(report, "AddRMSNorm"), "stock");
  expect_has(row(report, "AddRMSNorm").reason, {"names its part RMSNorm"});
}

// All entries of transformers' default mapping whose layers this repository covers.
TEST(Kernelize, TransformersDefaultMappingIsUnderstood) {
  const std::vector<std::array<const char*, 3>> entries = {
      {"RMSNorm", "kernels-community/liger-kernels@v3:LigerRMSNorm", "rms_norm/1"},
      {"RMSNorm", "kernels-community/rmsnorm@v1", "rms_norm/1"},
      {"SwiGLUMLP", "kernels-community/liger-kernels@v3:LigerSwiGLUMLP", "gated_mlp/1"},
      {"SwiGLUMLP", "kernels-community/liger-kernels@v3:LigerTiledSwiGLUMLP", "gated_mlp/1"},
      {"GeGLUMLP", "kernels-community/liger-kernels@v3:LigerGEGLUMLP", "gated_mlp/1"},
      {"GeGLUMLP", "kernels-community/liger-kernels@v3:LigerTiledGEGLUMLP", "gated_mlp/1"},
      {"Linear", "kernels-community/liger-kernels@v3:LigerLinear", "linear/1"},
      {"FastGELU", "kernels-community/activation@v1", "activation/1"},
      {"QuickGELU", "kernels-community/activation@v1", "activation/1"},
      {"NewGELU", "kernels-community/activation@v1", "activation/1"},
      {"SiLU", "kernels-community/activation@v1:Silu", "activation/1"},
      {"GeLU", "kernels-community/activation@v1:Gelu", "activation/1"},
      {"GeluTanh", "kernels-community/activation@v1", "activation/1"},
      {"rotary_pos_emb", "kernels-community/rotary@v2:apply_rotary_transformers", "rotary/1"},
      {"ForCausalLMLoss", "kernels-community/liger-kernels@v3:LigerForCausalLMLossLayer", "cross_entropy/1"}};
  class Bare : public Module {
   public:
    Bare(const char* layer, const char* contract) : slot(*this, layer, contract) {
      own("weight", weight, {1});
      weight = at::ones({1}, at::kFloat);
    }
    struct BareSlot : SlotBase {  // never bound: planning is what is tested
      BareSlot(Module& owner, const char* layer, const char* contract) : SlotBase(&owner, layer, contract) {}
      bool bound() const override { return false; }
      void unbind() override {}
    };
    Tensor weight;
    BareSlot slot;
  };
  for (const auto& [layer, ref, contract] : entries) {
    Bare model(layer, contract);
    // Binding is reached only when all else is right: it is the one thing that a bare slot refuses.
    const std::string text = message_of([&, l = layer, r = ref] { kernelize(model, T, {.config = {{{l, r}}}}); });
    expect_has(text, {"C++ type of its contract"});
  }
}

TEST(Kernelize, SlotsSayWhichKernelsNeedTheHost) {
  PackageCopy copy("norm");
  copy.edit_layers([](nlohmann::ordered_json& json) {
    json["layers"]["RMSNorm"]["capabilities"] = {{"capture", false}, {"needs_host_sync", true}};
  });
  TinyModel model;
  const auto layers = [&] {
    std::set<std::string> found;
    model.each_slot([&](const std::string&, const SlotBase& slot) {
      if (slot.needs_host_sync()) found.insert(slot.layer());
    });
    return found;
  };
  EXPECT_EQ(layers(), std::set<std::string>());
  const KernelConfig config{.kernel_mapping = {{"RMSNorm", copy.root().string() + ":RMSNorm"}},
                            .use_local_kernel = true};
  kernelize(model, I, {.config = config});
  EXPECT_EQ(layers(), std::set<std::string>{"RMSNorm"});
  unkernelize(model);
  EXPECT_EQ(layers(), std::set<std::string>());
}

TEST(Kernelize, StockByChoice) {
  TinyModel model;
  const KernelConfig config{{{"RMSNorm", ""}, {"GeLU", {{"cpu", ""}, {"cuda", "kernels-community/activation:Gelu"}}}}};
  const KernelReport report = kernelize(model, I, {.config = config, .strict = true});
  EXPECT_EQ(kernel(report, "RMSNorm"), "stock");
  EXPECT_EQ(row(report, "RMSNorm").reason, "the mapping says stock");
  EXPECT_EQ(kernel(report, "AddRMSNorm"), "stock");  // it would compute the norms all the same
  EXPECT_EQ(kernel(report, "GeLU"), "stock");
  EXPECT_EQ(kernel(report, "LayerNorm"), "norm:LayerNorm");
}

TEST(Kernelize, LocalPackagesAndInheritance) {
  PackageCopy copy("norm");
  TinyModel model;
  KernelConfig config{.kernel_mapping = {{"RMSNorm", copy.root().string() + ":RMSNorm"}}, .use_local_kernel = true};
  KernelReport report = kernelize(model, T, {.config = config});
  EXPECT_EQ(kernel(report, "RMSNorm"), "norm:RMSNorm");
  EXPECT_EQ(kernel(report, "LayerNorm"), "stock");  // as transformers: local kernels alone
  const int64_t before = op_calls(copy.id(), "rms_norm_fwd");
  model.forward(input());
  EXPECT_EQ(op_calls(copy.id(), "rms_norm_fwd"), before + 2);  // norm, and add_norm through its part
  config.inherit_mapping = true;
  report = kernelize(model, T, {.config = config});
  EXPECT_EQ(kernel(report, "LayerNorm"), "norm:LayerNorm");
  report = kernelize(model, T, {.config = {.kernel_mapping = {{"RMSNorm", "hotswap/norm"}}, .inherit_mapping = false}});
  EXPECT_EQ(kernel(report, "RMSNorm"), "norm:RMSNorm");
  EXPECT_EQ(kernel(report, "LayerNorm"), "stock");
}

TEST(Kernelize, LocalKernelsOverrideARepository) {
  PackageCopy copy("norm");
  const ScopedEnv local("LOCAL_KERNELS", "kernels-community/liger_kernels=" + copy.root().string());
  TinyModel model;
  const KernelReport report =
      kernelize(model, I, {.config = {{{"RMSNorm", "kernels-community/liger-kernels@v3:LigerRMSNorm"}}}});
  expect_has(row(report, "RMSNorm").reason, {"LOCAL_KERNELS", copy.root().string()});
  const Tensor x = input();
  const at::NoGradGuard guard;
  const int64_t before = op_calls(copy.id(), "rms_norm");
  model.forward(x);
  EXPECT_EQ(op_calls(copy.id(), "rms_norm"), before + 2);
}

TEST(Kernelize, WhatDoesNotExistIsAnErrorAndChangesNothing) {
  TinyModel model;
  kernelize(model, I);
  const int64_t bound = bound_slots(model);
  const auto with = [&](const char* layer, const char* ref) {
    return message_of([&] { kernelize(model, I, {.config = {{{layer, ref}}}}); });
  };
  {
    const TempFolder empty;  // no cache
    const ScopedEnv offline("HF_HUB_OFFLINE", "1"), cache("HF_HUB_CACHE", empty.path().string());
    expect_has(with("RMSNorm", "acme/nothing:Norm"),
               {"acme/nothing:Norm", "HF_HUB_OFFLINE", "`hotswap kernel list`", "LOCAL_KERNELS"});
  }
  expect_has(with("RMSNorm", "kernels-community/liger_kernels:Nope"),
             {"liger_kernels:Nope", "only the layers", "LigerRMSNorm"});
  expect_has(with("RMSNorm", "hotswap/norm:Nope"), {"'Nope'", "AddRMSNorm, LayerNorm"});
  expect_has(with("RMSNorm", "hotswap/norm@v99"), {"hotswap/norm@v99", "version 1"});
  expect_has(with("RMSNorm", "hotswap/norm:LayerNorm"), {"contract rms_norm/1", "norm:LayerNorm of layer_norm/1"});
  expect_has(with("RMSNrom", "hotswap/norm"), {"'RMSNrom'", "layers that the model has", "AddRMSNorm, "});
  EXPECT_EQ(bound_slots(model), bound);
}

TEST(Kernelize, KeyMlpNeedsOneOfItsLayers) {
  TinyModel model;  // SwiGLU
  EXPECT_EQ(kernel(kernelize(model, I, {.config = {{{"MLP", "hotswap/mlp"}}}}), "SwiGLUMLP"), "mlp:SwiGLUMLP");
  class Bare : public Module {
  } bare;
  expect_has(message_of([&] { kernelize(bare, I, {.config = {{{"MLP", "hotswap/mlp"}}}}); }), {"'MLP'", "has: none"});
}

TEST(Kernelize, CapabilitiesDecide) {
  PackageCopy copy("norm");
  copy.edit_layers([](nlohmann::ordered_json& json) {
    json["defaults"].erase("capabilities");
    json["layers"]["RMSNorm"]["capabilities"] = {{"dtypes", {"float32"}}};
    json["layers"]["LayerNorm"]["capabilities"] = {{"backward", true}};
  });
  const std::string norm = copy.root().string() + ":RMSNorm", layer_norm = copy.root().string() + ":LayerNorm";
  TinyModel model;
  const auto reason = [&](Mode mode, const KernelChoice& choice, const char* layer = "RMSNorm") {
    const KernelReport report =
        kernelize(model, mode, {.config = {.kernel_mapping = {{layer, choice}}, .use_local_kernel = true}});
    const KernelRow& r = row(report, layer);
    return r.package ? "bound" : r.reason;
  };
  EXPECT_EQ(reason(I, norm), "bound");
  EXPECT_EQ(reason(T, norm), "norm:RMSNorm has no backward");
  EXPECT_EQ(reason(I | C, norm), "norm:RMSNorm cannot be captured");
  EXPECT_EQ(reason(I, layer_norm, "LayerNorm"), "norm:LayerNorm has no float32, only none");
  // What a mapping promises must hold, where a FALLBACK promises nothing.
  const KernelChoice promises_training{{"cpu", {{T, norm}}}}, promises_capture{{"cpu", {{I | C, norm}}}};
  expect_has(message_of([&] { reason(I, promises_training); }), {"supports backward", "registered for TRAINING"});
  expect_has(message_of([&] { reason(I, promises_capture); }),
             {"supports capture", "registered for INFERENCE|TORCH_COMPILE"});

  at::globalContext().setDeterministicAlgorithms(true, false);
  const std::string refused = reason(I, norm);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(refused, "norm:RMSNorm is not deterministic");
}

TEST(Kernelize, ADtypeThatNoKernelHasStaysStock) {
  TinyModel model(at::kDouble);
  const KernelReport report = kernelize(model, I);
  EXPECT_EQ(report.bound(), 0);
  expect_has(row(report, "RMSNorm").reason, {"norm:RMSNorm has no float64, only bfloat16, float16, float32"});
  expect_has(row(report, "GeLU").reason, {"no float64"});  // by the module above, having no tensor of its own
}

TEST(Kernelize, EveryLayerGoesByItsOwnDevice) {
  class Two : public Module {
   public:
    Two() : here(16, {}), there(16, {}) {
      own("here", here);
      own("there", there);
      own("loss", loss);
      here.weight = at::ones({16}, at::kFloat);
    }
    RMSNorm here, there;  // the second stays on the meta device
    CausalLMLoss loss;
  } model;
  const KernelReport report = kernelize(model, I);
  EXPECT_EQ(kernel(report, "RMSNorm", "here"), "norm:RMSNorm");
  EXPECT_EQ(row(report, "RMSNorm", "here").device, "cpu");
  EXPECT_EQ(kernel(report, "RMSNorm", "there"), "stock");
  EXPECT_EQ(row(report, "RMSNorm", "there").device, "meta");
  expect_has(row(report, "RMSNorm", "there").reason, {"no kernel runs on the device meta"});
  expect_has(row(report, "ForCausalLMLoss").reason, {"its tensors lie on cpu and meta"});
}

TEST(Kernelize, StrictNamesEveryStockLayer) {
  TinyModel model;
  kernelize(model, I);
  const int64_t bound = bound_slots(model);
  const KernelConfig config{.kernel_mapping = {{"RMSNorm", "hotswap/norm"}}, .inherit_mapping = false};
  const std::string text = message_of([&] { kernelize(model, I, {.config = config, .strict = true}); });
  expect_has(text, {"every layer (strict)", "no kernel is mapped for LayerNorm",
                    "no kernel is mapped for Linear (4 layers)", "AddRMSNorm on cpu"});
  EXPECT_EQ(text.find("for RMSNorm"), text.npos);
  EXPECT_EQ(bound_slots(model), bound);
}

TEST(Kernelize, EnvironmentSwitchesLeaveAllStock) {
  for (const auto& [name, value] :
       {std::pair{"USE_HUB_KERNELS", "OFF"}, {"USE_HUB_KERNELS", "0"}, {"DISABLE_KERNEL_MAPPING", "1"}}) {
    TinyModel model;
    kernelize(model, I);
    const ScopedEnv off(name, value);
    const KernelReport report = kernelize(model, I);
    EXPECT_EQ(report.bound(), 0);
    EXPECT_EQ(bound_slots(model), 0);
    expect_has(row(report, "RMSNorm").reason, {name});
    expect_has(message_of([&] { kernelize(model, I, {.strict = true}); }), {name, "strict"});
  }
}

TEST(Kernelize, WithoutBundledPackagesTheReasonSaysWhere) {
  TempFolder empty;
  const ScopedEnv nothing("HOTSWAP_PACKAGES", empty.path().string());
  TinyModel model;
  const KernelReport report = kernelize(model, I);
  EXPECT_EQ(report.bound(), 0);
  expect_has(row(report, "RMSNorm").reason,
             {"no kernel is mapped for RMSNorm", "no package in " + empty.path().string()});
}

TEST(Kernelize, TwoBundledPackagesForOneLayerAreRefused) {
  PackageCopy a("norm"), b("norm");
  b.edit_metadata([](nlohmann::ordered_json& json) { json["name"] = "other-norm"; });
  std::filesystem::rename(b.root(), a.root().parent_path() / "other-norm");
  const ScopedEnv both("HOTSWAP_PACKAGES", a.root().parent_path().string());
  TinyModel model;
  expect_has(message_of([&] { kernelize(model, I); }), {"one bundled package for the layer", "norm and other-norm"});
}

TEST(Kernelize, NeedsInferenceOrTraining) {
  TinyModel model;
  expect_has(message_of([&] { kernelize(model, Mode::FALLBACK); }), {"FALLBACK"});
  expect_has(message_of([&] { kernelize(model, C); }), {"INFERENCE or TRAINING"});
}

TEST(Kernelizer, FollowsTrainAndEvalWithTheUsersConfig) {
  PackageCopy copy("norm");
  copy.edit_layers([](nlohmann::ordered_json& json) { json["layers"]["RMSNorm"]["capabilities"]["backward"] = false; });
  TinyModel model;
  model.eval();
  model.train();
  EXPECT_FALSE(model.kernels.active());
  EXPECT_EQ(bound_slots(model), 0);
  model.eval();
  const KernelConfig config{.kernel_mapping = {{"RMSNorm", copy.root().string() + ":RMSNorm"}},
                            .use_local_kernel = true};
  model.kernels.kernelize(model, I, {.config = config});
  EXPECT_EQ(kernel(model.kernels.report(), "RMSNorm"), "norm:RMSNorm");
  model.train();
  EXPECT_EQ(row(model.kernels.report(), "RMSNorm").reason, "norm:RMSNorm has no backward");
  EXPECT_EQ(row(model.kernels.report(), "RMSNorm").mode, "TRAINING");
  EXPECT_EQ(bound_slots(model), 0);
  model.eval();
  EXPECT_EQ(kernel(model.kernels.report(), "RMSNorm"), "norm:RMSNorm");
  EXPECT_EQ(bound_slots(model), 2);
  model.kernels.unkernelize(model);
  model.train();
  EXPECT_EQ(bound_slots(model), 0);
  EXPECT_TRUE(model.kernels.report().rows.empty());
  model.kernels.kernelize(model, T | C);  // the config is kept
  EXPECT_EQ(row(model.kernels.report(), "LayerNorm").package, std::nullopt);
  model.eval();
  EXPECT_EQ(row(model.kernels.report(), "RMSNorm").mode, "INFERENCE|TORCH_COMPILE");
}

TEST(Report, Json) {
  TinyModel model;
  const auto json = kernelize(model, I, {.config = {{{"GeLU", ""}}}}).to_json();
  const auto& layers = json.at("layers");
  ASSERT_EQ(layers.size(), 14u);
  std::vector<std::string> keys;
  for (const auto& [key, value] : layers[0].items()) keys.push_back(key);
  EXPECT_EQ(join(keys), "name, layer, device, mode, package, package_layer, version, digest, reason");
  EXPECT_EQ(layers[0]["name"], "norm");
  EXPECT_EQ(layers[0]["package"], "norm");
  EXPECT_EQ(layers[0]["version"], 1);
  EXPECT_EQ(layers[0]["reason"], "");
  for (const auto& layer : layers) {
    if (layer["layer"] != "GeLU") continue;
    EXPECT_TRUE(layer["package"].is_null() && layer["digest"].is_null() && layer["version"].is_null());
    EXPECT_EQ(layer["reason"], "the mapping says stock");
  }
}

TEST(Report, PrintsLayersThatFaredAlikeAsOneLine) {
  KernelReport report;
  for (int i = 0; i < 12; ++i) {
    report.rows.push_back({.name = cat("model.layers.", i, ".mlp"),
                           .layer = "SwiGLUMLP",
                           .device = "cpu",
                           .mode = "INFERENCE",
                           .package = "mlp",
                           .package_layer = "SwiGLUMLP",
                           .version = 1});
  }
  report.rows.push_back({.name = "", .layer = "X", .device = "cpu", .mode = "INFERENCE", .reason = "no kernel"});
  std::ostringstream out;
  out << report;
  EXPECT_EQ(out.str(),
            "kernels: 12 of 13 slots bound, mode INFERENCE\n"
            "  layer      slots  device  kernel            where\n"
            "  SwiGLUMLP     12  cpu     mlp:SwiGLUMLP v1  model.layers.*.mlp\n"
            "  X              1  cpu     stock             (model); no kernel\n");
}

}  // namespace
}  // namespace hotswap
