#include "hotswap/hub/names/variant.h"

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using Names = std::vector<std::string>;
using Candidates = std::vector<VariantCandidate>;

Backend backend(const char* text) { return Backend::parse(text).value(); }

// Python 3.12 with torch 2.11 on a PC, as most rows start out.
System pc(const char* of) {
  return {.torch = {{2, 11}},
          .cxx11_abi = true,
          .tvm_ffi = {{0, 1}},
          .backend = backend(of),
          .macos = {},
          .capability = {}};
}
System without_torch(const char* of) {
  System system = pc(of);
  system.torch.reset();
  system.cxx11_abi.reset();
  return system;
}
System mac(std::optional<MajorMinor> macos) {
  System system = pc("metal");
  system.cpu = "aarch64";
  system.os = "darwin";
  system.cxx11_abi.reset();
  system.macos = macos;
  return system;
}

TEST(VariantName, EveryFormGoesThereAndBack) {
  for (const char* text : {"torch-cpu",
                           "torch-cuda",
                           "torch-rocm",
                           "torch-metal",
                           "torch-xpu",
                           "torch-neuron",
                           "torch-tpu",
                           "torch-npu",
                           "torch-universal",
                           "torch-something-else",
                           "torch211-cpu-x86_64-linux",
                           "torch28-cxx11-cu128-x86_64-linux",
                           "torch27-cxx98-cu118-x86_64-linux",
                           "torch-stable-abi29-cpu-aarch64-linux",
                           "torch-stable-abi210-cu130-x86_64-linux",
                           "tvm-ffi01-cpu-x86_64-linux",
                           "tvm-ffi110-cu130-x86_64-linux",
                           "torch211-metal-aarch64-darwin",
                           "torch211-rocm71-x86_64-linux",
                           "torch211-xpu20253-x86_64-linux",
                           "torch211-cann81-aarch64-linux",
                           "torch211-neuron-x86_64-linux",
                           "torch211-tpu-x86_64-linux",
                           "torch211-cu128-x86_64-windows"}) {
    const auto name = VariantName::parse(text);
    ASSERT_TRUE(name) << text;
    EXPECT_EQ(name->str(), text);
  }
}

TEST(VariantName, RefusesTheRest) {
  for (const std::string& bad : Names{"",
                                      "torch",
                                      "torch-",
                                      "torch2-cpu-x86_64-linux",
                                      "torch211",
                                      "torch211-cpu",
                                      "torch211-cpu-x86_64",
                                      "torch211-cpu-x86_64-linux-more",
                                      "torch211-cxx14-cpu-x86_64-linux",
                                      "torch-stable-abi2-cpu-x86_64-linux",
                                      "torch-stable-abi-cpu-x86_64-linux",
                                      "torch-stable-abi211",
                                      "tvm-ffi1-cpu-x86_64-linux",
                                      "jax04-cpu-x86_64-linux",
                                      "torch211-cuda-x86_64-linux",
                                      "torch211-cu1-x86_64-linux",
                                      "torch211-cpu8-x86_64-linux",
                                      "torch211-cu0128-x86_64-linux",
                                      "torch2011x-cpu-x86_64-linux",
                                      "torch211-cpu--linux",
                                      "torch-../x",
                                      "torch211-cpu-x86_64-linux/../x",
                                      "Torch211-cpu-x86_64-linux",
                                      "torch211-cu99999999999-x86_64-linux",
                                      std::string(100000, 't'),
                                      "torch-" + std::string(100000, 'x'),
                                      std::string("torch-cpu\0", 10)}) {
    EXPECT_FALSE(VariantName::parse(bad)) << bad.substr(0, 80);
  }
}

TEST(VariantName, VersionsOfBackends) {
  const std::pair<const char*, const char*> table[] = {
      {"cu128", "cuda 12.8"}, {"cu1210", "cuda 12.10"}, {"cu92", "cuda 9.2"},       {"cu130", "cuda 13.0"},
      {"rocm71", "rocm 7.1"}, {"rocm710", "rocm 7.10"}, {"xpu20253", "xpu 2025.3"}, {"cann81", "cann 8.1"}};
  for (const auto& [text, want] : table) {
    const Backend b = backend(text);
    EXPECT_EQ(cat(b.name(), " ", b.version->str()), want);
    EXPECT_EQ(b.text(), text);
  }
  EXPECT_EQ(MajorMinor::parse("2.11.0+cu130")->str(), "2.11");
  EXPECT_EQ(MajorMinor::parse("3")->str(), "3.0");
  EXPECT_FALSE(MajorMinor::parse("x"));
}

// The rejection rules one by one, in the order in which they are asked; a row that breaks two says the first.
TEST(Variant, WhyNot) {
  struct Row {
    const char* variant;
    System system;
    const char* reason;  // null: fits
  };
  System gil_free = pc("cpu");
  gil_free.free_threaded = true;
  System old_abi = pc("cpu");
  old_abi.cxx11_abi = false;
  System no_tvm = pc("cpu");
  no_tvm.tvm_ffi.reset();
  const Row table[] = {
      {"torch211-cpu-x86_64-linux", gil_free, "arch kernel not supported on free-threaded Python <3.15"},
      {"torch-cpu", gil_free, nullptr},
      {"torch211-cpu-aarch64-linux", pc("cpu"), "CPU (aarch64) does not match system CPU (x86_64)"},
      {"torch29-cu130-aarch64-darwin", pc("cpu"), "CPU (aarch64) does not match system CPU (x86_64)"},
      {"torch29-cu130-x86_64-darwin", pc("cpu"), "OS (darwin) does not match system OS (linux)"},
      {"torch211-cpu-x86_64-windows", pc("cpu"), "OS (windows) does not match system OS (linux)"},
      {"torch29-cu130-x86_64-linux", pc("cpu"), "Torch version (2.9) does not match environment Torch version (2.11)"},
      {"torch212-cpu-x86_64-linux", pc("cpu"), "Torch version (2.12) does not match environment Torch version (2.11)"},
      {"torch211-cpu-x86_64-linux", without_torch("cpu"),
       "Torch version (2.11) does not match environment Torch version (None)"},
      {"torch211-cxx98-cpu-x86_64-linux", pc("cpu"),
       "Torch CXX11 ABI (False) does not match environment Torch CXX11 ABI (True)"},
      {"torch211-cxx11-cpu-x86_64-linux", old_abi,
       "Torch CXX11 ABI (True) does not match environment Torch CXX11 ABI (False)"},
      {"torch211-cxx11-cpu-x86_64-linux", pc("cpu"), nullptr},
      {"torch211-cpu-x86_64-linux", old_abi, nullptr},
      {"torch-stable-abi212-cpu-x86_64-linux", pc("cpu"),
       "Torch stable ABI version (2.12) is too new for environment Torch version (2.11)"},
      {"torch-stable-abi29-cpu-x86_64-linux", without_torch("cpu"),
       "Torch stable ABI version (2.9) is too new for environment Torch version (None)"},
      {"torch-stable-abi211-cpu-x86_64-linux", pc("cpu"), nullptr},
      {"torch-stable-abi20-cpu-x86_64-linux", pc("cpu"), nullptr},  // there is no lower bound
      {"tvm-ffi02-cpu-x86_64-linux", pc("cpu"),
       "tvm-ffi version (0.2) does not match environment tvm-ffi version (0.1)"},
      {"tvm-ffi01-cpu-x86_64-linux", no_tvm, "tvm-ffi version (0.1) does not match environment tvm-ffi version (None)"},
      {"tvm-ffi01-cpu-x86_64-linux", without_torch("cpu"), nullptr},
      {"torch211-cu126-x86_64-linux", pc("cu130"),
       "CUDA version (12.6) is not compatible with system CUDA version (13.0)"},
      {"torch211-cu131-x86_64-linux", pc("cu130"),
       "CUDA version (13.1) is not compatible with system CUDA version (13.0)"},
      {"torch211-cu130-x86_64-linux", pc("cu132"), nullptr},
      {"torch211-cu128-x86_64-linux", pc("cu1210"), nullptr},  // 12.10 is newer than 12.8
      {"torch211-cu1210-x86_64-linux", pc("cu128"),
       "CUDA version (12.10) is not compatible with system CUDA version (12.8)"},
      {"torch211-cpu-x86_64-linux", pc("cu130"), "backend (cpu) does not match selected backend (cu130)"},
      {"torch211-cu130-x86_64-linux", pc("cpu"), "backend (cu130) does not match selected backend (cpu)"},
      {"torch211-rocm71-x86_64-linux", pc("rocm72"), "backend (rocm71) does not match selected backend (rocm72)"},
      {"torch211-rocm71-x86_64-linux", pc("rocm71"), nullptr},
      {"torch211-xpu20252-x86_64-linux", pc("xpu20253"),
       "backend (xpu20252) does not match selected backend (xpu20253)"},
      {"torch211-xpu20253-x86_64-linux", pc("xpu20253"), nullptr},
      {"torch211-cann81-x86_64-linux", pc("cann81"), nullptr},
      {"torch211-cann82-x86_64-linux", pc("cann81"), "backend (cann82) does not match selected backend (cann81)"},
      {"torch211-neuron-x86_64-linux", pc("neuron"), nullptr},
      {"torch211-tpu-x86_64-linux", pc("tpu"), nullptr},
      {"torch211-tpu-x86_64-linux", pc("neuron"), "backend (tpu) does not match selected backend (neuron)"},
      {"torch211-metal-aarch64-darwin", mac({{26, 0}}), nullptr},
      {"torch211-metal-aarch64-darwin", mac({{15, 7}}),
       "Metal kernels require macOS 26.0 or later, system macOS version is 15.7"},
      {"torch211-metal-aarch64-darwin", mac({}),
       "Metal kernels require macOS 26.0 or later, system macOS version is unknown"},
      {"torch-metal", mac({{15, 7}}), nullptr},
      {"torch-cpu", pc("cpu"), nullptr},
      {"torch-cuda", pc("cu130"), nullptr},
      {"torch-rocm", pc("rocm71"), nullptr},
      {"torch-npu", pc("cann81"), nullptr},
      {"torch-cann", pc("cann81"), "backend (cann) does not match system backend (npu) and is not universal"},
      {"torch-universal", pc("xpu20253"), nullptr},
      {"torch-cuda", pc("cpu"), "backend (cuda) does not match system backend (cpu) and is not universal"},
      {"torch-rocm", pc("cu130"), "backend (rocm) does not match system backend (cuda) and is not universal"},
      {"no-variant", pc("cpu"), "is no name of a build variant"},
  };
  for (const Row& row : table) {
    const VariantChoice choice = choose_variant(Names{row.variant}, row.system);
    EXPECT_EQ(choice.chosen.has_value(), row.reason == nullptr) << row.variant << ": " << choice.trace_text();
    EXPECT_EQ(choice.trace.at(0).second, row.reason ? row.reason : "compatible, preferred") << row.variant;
  }
}

// Best first. Each line of the table is given in every rotation: the order of folders must not matter.
TEST(Variant, Order) {
  struct Row {
    const char* what;
    System system;
    Names best_first;
  };
  const Row table[] = {
      {"stable ABI, torch, tvm-ffi, noarch, universal",
       pc("cpu"),
       {"torch-stable-abi211-cpu-x86_64-linux", "torch-stable-abi29-cpu-x86_64-linux", "torch211-cpu-x86_64-linux",
        "torch211-cxx11-cpu-x86_64-linux", "tvm-ffi01-cpu-x86_64-linux", "torch-cpu", "torch-universal"}},
      {"a newer stable ABI before a newer CUDA",
       pc("cu130"),
       {"torch-stable-abi211-cu130-x86_64-linux", "torch-stable-abi210-cu130-x86_64-linux"}},
      {"2.10 is newer than 2.9",
       pc("cpu"),
       {"torch-stable-abi210-cpu-x86_64-linux", "torch-stable-abi29-cpu-x86_64-linux"}},
      {"the highest CUDA minor",
       pc("cu132"),
       {"torch211-cu132-x86_64-linux", "torch211-cu131-x86_64-linux", "torch211-cu130-x86_64-linux"}},
      {"no tag before a tag, even with an older CUDA",
       pc("cu132"),
       {"torch211-cu130-x86_64-linux", "torch211-cxx11-cu132-x86_64-linux"}},
      {"tvm-ffi by CUDA minor, then noarch",
       pc("cu132"),
       {"tvm-ffi01-cu132-x86_64-linux", "tvm-ffi01-cu130-x86_64-linux", "torch-cuda", "torch-universal"}},
      {"a wheel of CUDA 13.0, as in the field",
       pc("cu130"),
       {"torch-stable-abi211-cu130-x86_64-linux", "torch211-cu130-x86_64-linux", "torch211-cxx11-cu130-x86_64-linux",
        "torch-cuda", "torch-universal"}},
      {"a CPU wheel",
       pc("cpu"),
       {"torch-stable-abi211-cpu-x86_64-linux", "torch-stable-abi210-cpu-x86_64-linux",
        "torch211-cxx11-cpu-x86_64-linux", "torch-cpu", "torch-universal"}},
  };
  for (const Row& row : table) {
    Names names = row.best_first;
    for (size_t turn = 0; turn < names.size(); ++turn) {
      std::rotate(names.begin(), names.begin() + 1, names.end());
      const VariantChoice choice = choose_variant(names, row.system);
      EXPECT_EQ(choice.fitting, row.best_first) << row.what << ": " << choice.trace_text();
      EXPECT_EQ(choice.chosen, row.best_first[0]) << row.what;
    }
  }
}

TEST(Variant, TheTraceAsPythonPrintsIt) {
  const VariantChoice choice = choose_variant(
      Names{"torch211-cu126-x86_64-linux", "torch-universal", "torch211-cu130-x86_64-linux"}, pc("cu130"));
  EXPECT_EQ(choice.trace_lines(),
            "torch211-cu130-x86_64-linux compatible, preferred \u2705\n"
            "torch-universal compatible \u2705\n"
            "torch211-cu126-x86_64-linux: CUDA version (12.6) is not compatible with system CUDA version (13.0)");
}

TEST(Variant, WhatWouldMakeTheNearestFit) {
  const VariantChoice choice =
      choose_variant(Names{"torch211-cpu-aarch64-linux", "torch-stable-abi212-cpu-x86_64-linux",
                           "torch29-cpu-x86_64-linux", "torch-stable-abi212-cu131-x86_64-linux", "torch-cuda"},
                     pc("cpu"));
  EXPECT_FALSE(choice.chosen);
  EXPECT_EQ(choice.nearest_text(),
            "torch-stable-abi212-cpu-x86_64-linux needs torch 2.12 or newer; torch29-cpu-x86_64-linux needs torch 2.9; "
            "torch-cuda needs the backend cuda");
  EXPECT_EQ(choice.nearest.back().variant, "torch211-cpu-aarch64-linux");
  EXPECT_EQ(choose_variant(Names{"torch-stable-abi212-cu131-x86_64-linux"}, pc("cu130")).nearest_text(),
            "torch-stable-abi212-cu131-x86_64-linux needs torch 2.12 or newer and a torch built for CUDA 13.1 or a "
            "newer 13.x");
  expect_has(no_variant(choice, "org/repo", "v1").what(),
             {"Cannot find a build variant for this system in org/repo (revision: v1):\n\n",
              "torch29-cpu-x86_64-linux: Torch version (2.9)", "nearest: torch-stable-abi212"});
  expect_has(no_variant(choose_variant(Names{}, pc("cpu")), "org/repo", "v1").what(), {"no variant at all"});
  expect_has(choose_variant(Names{}, pc("cpu")).trace_text(), {"no built variant"});
}

TEST(Variant, AHostWithoutPythonTakesCompiledTorchVariants) {
  System host = pc("cpu");
  host.no_python = true;
  const auto choice =
      choose_variant(Names{"torch211-cpu-x86_64-linux", "torch-stable-abi29-cpu-x86_64-linux", "torch-cpu",
                           "torch-stable-abi210-cpu-x86_64-linux", "torch-stable-abi212-cpu-x86_64-linux",
                           "torch211-cxx11-cpu-x86_64-linux", "tvm-ffi01-cpu-x86_64-linux", "torch-universal"},
                     host);
  EXPECT_EQ(choice.fitting, (Names{"torch-stable-abi210-cpu-x86_64-linux", "torch-stable-abi29-cpu-x86_64-linux",
                                   "torch211-cpu-x86_64-linux", "torch211-cxx11-cpu-x86_64-linux"}));
  // The C++ API ties a library to one torch and one C++ ABI.
  struct Row {
    const char* variant;
    const char* reason;
  };
  const Row table[] = {
      {"torch210-cxx11-cpu-x86_64-linux", "Torch version (2.10) does not match environment Torch version (2.11)"},
      {"torch212-cxx11-cpu-x86_64-linux", "Torch version (2.12) does not match environment Torch version (2.11)"},
      {"torch211-cxx98-cpu-x86_64-linux", "Torch CXX11 ABI (False) does not match environment Torch CXX11 ABI (True)"},
      {"torch211-cxx11-cu130-x86_64-linux", "backend (cu130) does not match selected backend (cpu)"},
      {"torch-cpu", "is for Python"},
      {"torch-universal", "is for Python"},
      {"tvm-ffi01-cpu-x86_64-linux", "is for Python"},
      {"", "is no name of a build variant"},
      {"torch-stable-abi2-cpu-x86_64-linux", "is no name of a build variant"},
      {"torch-stable-abi210-cpu-x86_64-linux/../x", "is no name of a build variant"}};
  for (const Row& row : table) {
    const auto none = choose_variant(Names{row.variant}, host);
    EXPECT_FALSE(none.chosen) << row.variant;
    expect_has(none.trace_text(), {row.reason});
  }
}

TEST(Variant, CodeForTheGpuThatIsThere) {
  struct Row {
    const char* arch;
    MajorMinor capability;
    bool runs;
  };
  const Row table[] = {{"9.0", {9, 0}, true},       {"8.0", {8, 6}, true},        {"8.6", {8, 0}, false},
                       {"8.0", {9, 0}, false},      {"8.0+PTX", {9, 0}, true},    {"9.0a", {9, 0}, true},
                       {"9.0a", {9, 1}, false},     {"10.0f", {10, 3}, true},     {"10.0f", {12, 0}, false},
                       {"10.0+PTX", {12, 1}, true}, {"12.0+PTX", {10, 0}, false}, {"gfx942", {9, 0}, false},
                       {"", {9, 0}, false}};
  for (const Row& row : table)
    EXPECT_EQ(arch_runs_on(row.arch, row.capability), row.runs) << row.arch << row.capability.str();

  System blackwell = pc("cu130");
  blackwell.capability = MajorMinor{12, 0};
  const auto hopper_only =
      choose_variant(Candidates{{"torch211-cu130-x86_64-linux", {"9.0a"}}, {"torch-cuda"}}, blackwell);
  EXPECT_EQ(hopper_only.chosen, "torch-cuda");
  expect_has(hopper_only.trace_text(), {"its code (9.0a) does not run on compute capability 12.0"});
  System mi300 = pc("rocm71");
  mi300.gfx = "gfx942:sramecc+:xnack-";
  EXPECT_TRUE(choose_variant(Candidates{{"torch211-rocm71-x86_64-linux", {"gfx90a", "gfx942"}}}, mi300).chosen);
  expect_has(choose_variant(Candidates{{"torch211-rocm71-x86_64-linux", {"gfx90a"}}}, mi300).trace_text(),
             {"does not run on gfx942"});
}

TEST(Backend, DetectedInTheReferencesOrder) {
  BackendFacts facts;
  EXPECT_EQ(detect_backend(facts).text(), "cpu");
  facts.cann = MajorMinor{8, 1};
  EXPECT_EQ(detect_backend(facts).text(), "cann81");
  facts.xpu = MajorMinor{2025, 3};
  EXPECT_EQ(detect_backend(facts).text(), "xpu20253");
  facts.metal = true;
  EXPECT_EQ(detect_backend(facts).text(), "metal");
  facts.rocm = MajorMinor{7, 1};
  EXPECT_EQ(detect_backend(facts).text(), "rocm71");
  facts.cuda = MajorMinor{13, 0};
  EXPECT_EQ(detect_backend(facts).text(), "cu130");
  facts.neuron = true;
  EXPECT_EQ(detect_backend(facts).text(), "neuron");
  facts.tpu = true;
  EXPECT_EQ(detect_backend(facts).text(), "tpu");
  facts.torch = false;
  EXPECT_EQ(detect_backend(facts).text(), "cpu");
  facts.cudart = MajorMinor{12, 8};
  EXPECT_EQ(detect_backend(facts).text(), "cu128");
}

TEST(Backend, AskedForByName) {
  EXPECT_EQ(select_backend(backend("cu130"), "").text(), "cu130");
  EXPECT_EQ(select_backend(backend("cu130"), "cuda").text(), "cu130");
  EXPECT_EQ(select_backend(backend("cu130"), "cpu").text(), "cpu");
  expect_has(message_of([] { select_backend(backend("cu130"), "rocm"); }),
             {"Invalid backend 'rocm', system supported backends: cpu, cuda"});
  expect_has(message_of([] { select_backend(backend("cann81"), "cuda"); }), {"supported backends: cann, cpu"});
  expect_has(message_of([] { select_backend(backend("cpu"), "cu130"); }), {"supported backends: cpu;"});
  EXPECT_EQ(cpu_name("arm64", "darwin"), "aarch64");
  EXPECT_EQ(cpu_name("AMD64", "windows"), "x86_64");
  EXPECT_EQ(cpu_name("x86_64", "linux"), "x86_64");
}

}  // namespace
}  // namespace hotswap
