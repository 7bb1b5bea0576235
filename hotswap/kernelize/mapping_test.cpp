#include "hotswap/kernelize/mapping.h"

#include <random>

#include "hotswap/base/test_support.h"
#include "hotswap/kernelize/resolve.h"
#include "hotswap/kernelize/test_modes.h"
#include "hotswap/kernelize/testing.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

using test_support::C;
using test_support::F;
using test_support::I;
using test_support::T;

std::string found(const KernelMapping& mapping, const std::string& layer, const std::string& kind, Mode mode,
                  std::optional<int64_t> capability = std::nullopt) {
  const auto entry = mapping.find(layer, kind, capability, mode);
  return entry ? entry->ref.str() : "none: " + entry.why();
}

TEST(KernelConfig, TakesEveryDocumentedForm) {
  const KernelConfig config{{{"RMSNorm", "kernels-community/rmsnorm"},
                             {"SiLU", {{"cuda", "kernels-community/activation:Silu"}, {"cpu", ""}}},
                             {"MLP", KernelRef{"acme/mlp", {.version = 1, .trust = true}}},
                             {"rotary_pos_emb", {{"cpu", {{I, "acme/rotary"}, {T | C, "acme/rotary2"}}}}},
                             {"LayerNorm", ""}}};
  KernelMapping mapping;
  mapping.add(config);
  for (const Mode mode : {I, T, I | C, T | C}) {
    EXPECT_EQ(found(mapping, "RMSNorm", "cpu", mode), "kernels-community/rmsnorm");
    EXPECT_EQ(found(mapping, "RMSNorm", "cuda", mode, 90), "kernels-community/rmsnorm");
    EXPECT_EQ(found(mapping, "SiLU", "cuda", mode, 90), "kernels-community/activation:Silu");
    EXPECT_EQ(found(mapping, "SiLU", "cpu", mode), "");
    EXPECT_EQ(found(mapping, "SwiGLUMLP", "cpu", mode), "acme/mlp@v1");
    EXPECT_EQ(found(mapping, "GeGLUMLP", "cpu", mode), "acme/mlp@v1");
    EXPECT_EQ(found(mapping, "LayerNorm", "xpu", mode), "");
  }
  EXPECT_EQ(found(mapping, "rotary_pos_emb", "cpu", I), "acme/rotary");
  EXPECT_EQ(found(mapping, "rotary_pos_emb", "cpu", T), "acme/rotary2");
  EXPECT_EQ(found(mapping, "rotary_pos_emb", "cpu", I | C), "acme/rotary2");
  expect_has(found(mapping, "rotary_pos_emb", "cuda", I, 90), {"none", "on cuda, only on cpu"});
  expect_has(found(mapping, "SiLU", "xpu", I), {"only on cpu, cuda"});
  expect_has(found(mapping, "Linear", "cpu", I), {"no kernel is mapped for Linear"});

  const KernelConfig one{{{"SiLU", {{"cpu", ""}}}}};
  EXPECT_EQ(one.kernel_mapping.size(), 1u);
  EXPECT_EQ(one.kernel_mapping[0].second.by_device().size(), 1u);
  const KernelConfig named{.kernel_mapping = {{"RMSNorm", "/opt/norm:RMSNorm"}}, .use_local_kernel = true};
  KernelMapping local;
  local.add(named);
  EXPECT_EQ(found(local, "RMSNorm", "cpu", T), "/opt/norm:RMSNorm");
}

TEST(KernelConfig, AnMlpKernelThatSaysWhichGateItHasGetsOnlyThat) {
  KernelMapping mapping;
  mapping.add(KernelConfig{{{"MLP", "acme/mlp:LigerSwiGLUMLP"}}});
  EXPECT_TRUE(mapping.has("SwiGLUMLP"));
  EXPECT_FALSE(mapping.has("GeGLUMLP"));
  EXPECT_FALSE(mapping.has("MLP"));
}

TEST(KernelConfig, RefusesWhatMakesNoSense) {
  const auto add = [](const KernelConfig& config) { return message_of([&] { KernelMapping().add(config); }); };
  expect_has(add({{{"RMSNorm", "/opt/norm:RMSNorm"}}}), {"RMSNorm", "use_local_kernel"});
  expect_has(add({{{"", "org/norm"}}}), {"layer's name"});
  expect_has(message_of([] { DeviceKey("gpu"); }), {"cpu, cuda, mps, neuron, npu, rocm, tpu, xpu", "'gpu'", "cuda"});
  expect_has(message_of([] { DeviceKey("hip"); }), {"'hip'"});
  expect_has(add({{{"RMSNorm", {{"metal", "a/b"}, {"mps", "a/c"}}}}}),
             {"one entry of RMSNorm for mps", "metal is mps"});
  expect_has(message_of([] { DeviceKey("cpu", {80, 90}); }), {"cuda or rocm"});
  expect_has(message_of([] { DeviceKey("cuda", {90, 80}); }), {"min <= max", "[90, 80]"});
  expect_has(message_of([] { ModeKernels({{C, "a/b"}}); }), {"INFERENCE or TRAINING"});
}

TEST(KernelMapping, RegisteringReplacesAllModesOfThatDeviceAndInterval) {
  KernelMapping mapping;
  mapping.add("L", "cpu", {{I, "a/inference"}, {T, "a/training"}});
  mapping.add("L", DeviceKey("cuda", {80, 89}), "a/ampere");
  mapping.add("L", "cpu", {{I, "b/inference"}});
  EXPECT_EQ(found(mapping, "L", "cpu", I), "b/inference");
  expect_has(found(mapping, "L", "cpu", T), {"serves TRAINING", "only INFERENCE"});
  EXPECT_EQ(found(mapping, "L", "cuda", T, 86), "a/ampere");
}

TEST(KernelMapping, AUsersEntryBeatsNarrowerDefaults) {
  KernelMapping mapping;
  mapping.add("L", DeviceKey("cuda", {90, 90}), "default/hopper");
  mapping.add("L", "cuda", "default/any");
  mapping.add(KernelConfig{{{"L", {{"cuda", "user/any"}}}}});
  EXPECT_EQ(found(mapping, "L", "cuda", I, 90), "user/any");
}

TEST(KernelMapping, FallbackServesEveryModeAndComesLast) {
  KernelMapping mapping;
  mapping.add("L", "cpu", {{F, "a/fallback"}, {T | C, "a/compile"}});
  EXPECT_EQ(found(mapping, "L", "cpu", I), "a/compile");
  mapping.add("L", "cpu", "a/fallback");
  for (const Mode mode : {I, T, I | C, T | C}) EXPECT_EQ(found(mapping, "L", "cpu", mode), "a/fallback");
  EXPECT_EQ(mapping.find("L", "cpu", std::nullopt, I)->mode, F);
}

TEST(KernelMapping, TheNarrowestIntervalWinsAsByBruteForce) {
  std::mt19937 random{static_cast<std::mt19937::result_type>(test_support::test_seed())};
  for (int round = 0; round < 200; ++round) {
    KernelMapping mapping;
    std::vector<CapabilityRange> ranges;
    for (int i = 0; i < 6; ++i) {
      const int64_t min = random() % 20, max = min + random() % 12;
      ranges.push_back({min, max});
      mapping.add("L", DeviceKey("cuda", ranges.back()), KernelRef(cat("a/r", min, "_", max)));
    }
    for (int64_t capability = 0; capability < 34; ++capability) {
      std::string want;
      CapabilityRange best;
      for (const auto& range : ranges) {
        if (capability < range.min || capability > range.max) continue;
        const int64_t width = range.max - range.min, best_width = best.max - best.min;
        if (!want.empty() && (width > best_width || (width == best_width && range.min <= best.min))) continue;
        best = range;
        want = cat("a/r", range.min, "_", range.max);
      }
      const auto got = found(mapping, "L", "cuda", I, capability);
      if (want.empty()) {
        expect_has(got, {"none", cat("capability ", capability)});
      } else {
        EXPECT_EQ(got, want) << "capability " << capability;
      }
    }
  }
}

TEST(KernelMapping, ChosenIntervalsLackingTheModeDoNotFallThrough) {
  KernelMapping mapping;
  mapping.add("L", DeviceKey("cuda", {90, 90}), {{T, "a/narrow"}});
  mapping.add("L", "cuda", "a/wide");
  expect_has(found(mapping, "L", "cuda", I | C, 90), {"none", "serves INFERENCE|TORCH_COMPILE"});
  EXPECT_EQ(found(mapping, "L", "cuda", I | C, 80), "a/wide");
  EXPECT_EQ(found(mapping, "L", "cuda", I | C), "a/wide");  // unknown: unbounded entries only
}

TEST(LocalKernels, AreParsedOrRefused) {
  const auto parsed = parse_local_kernels("org/a=/x/y:org/b=/z=1");
  EXPECT_EQ(parsed.at("org/a"), "/x/y");
  EXPECT_EQ(parsed.at("org/b"), "/z=1");
  EXPECT_TRUE(parse_local_kernels("").empty());
  for (const char* bad : {"org/a", "org/a=", "=/x", "org/a=/x:", "org/a=/x:junk"}) {
    expect_has(message_of([&] { parse_local_kernels(bad); }), {"LOCAL_KERNELS as org/repo=path"});
  }
}

}  // namespace
}  // namespace hotswap
