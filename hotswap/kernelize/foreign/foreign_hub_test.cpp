// Packages of the Hub that were not built for hotswap, by their names: served, fetched, trusted, adapted, run,
// reported.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <torch/version.h>

#include "hotswap/kernelize/test_hub.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::ForeignCopy;
using test_support::message_of;
using test_support::row_of;
using test_support::ScopedEnv;
using test_support::TempFolder;
using test_support::TinyModel;

const Mode I = Mode::INFERENCE;
const std::string kThisTorch = cat("torch", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, "-cxx11-cpu-x86_64-linux");

KernelConfig only(const std::string& layer, const KernelChoice& kernel) {
  return {.kernel_mapping = {{layer, kernel}}, .inherit_mapping = false};
}

class ForeignOfTheHub : public test_support::ServedKernels {};

TEST_F(ForeignOfTheHub, ActivationByItsName) {
  const ForeignCopy activation("activation", HOTSWAP_TEST_FOREIGN_STABLE);
  serve(activation.root(), "kernels-community/activation", "main");
  serve(activation.root(), "kernels-community/activation", "v1");
  const std::string name = "kernels-community/activation@main:Gelu";
  TinyModel model;
  expect_has(message_of([&] { kernelize(model, I, {.config = only("GeLU", name)}); }),
             {"'kernels-community/activation' is not from a trusted publisher"});
  EXPECT_EQ(asked("/resolve/"), 0u);
  trust("kernels-community");
  // A version is what a bundled package stands in for; a branch means those very bytes.
  expect_has(
      row_of(kernelize(model, I, {.config = only("GeLU", "kernels-community/activation@v1:Gelu")}), "GeLU").reason,
      {"stands in for kernels-community/activation:Gelu"});
  EXPECT_EQ(asked("/resolve/"), 0u);
  const KernelReport report = kernelize(model, I, {.config = only("GeLU", name)});
  const KernelRow& row = row_of(report, "GeLU");
  EXPECT_EQ(row.package, "activation");
  EXPECT_EQ(row.package_layer, "Gelu");
  expect_has(row.reason, {"from kernels-community/activation@", "(main), ", ForeignCopy::kStableVariant});
  EXPECT_EQ(row.digest, read_metadata(activation.variant()).digest);

  const at::NoGradGuard guard;
  const Tensor x = at::randn({2, 3, 16}, at::kFloat);
  const Tensor got = model.activation.forward(x);
  EXPECT_EQ(op_calls(activation.id(), "gelu"), 1);
  unkernelize(model);
  EXPECT_LT(test_support::difference(got, model.activation.forward(x)), 3e-6);
  EXPECT_EQ(op_calls(activation.id(), "gelu"), 1) << "stock again";

  // As with every package: in training it stays stock, for it has no backward; its digest holds.
  expect_has(row_of(kernelize(model, Mode::TRAINING, {.config = only("GeLU", name)}), "GeLU").reason,
             {"activation:Gelu has no backward"});
  const size_t sent = asked();
  const ScopedEnv offline("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(kernelize(model, I, {.config = only("GeLU", name)}).bound(), 1);
  change_byte("kernels-community/activation", activation.library().filename(), 4000);
  expect_has(message_of([&] { kernelize(model, I, {.config = only("GeLU", name)}); }), {"File hash mismatch"});
  EXPECT_EQ(asked(), sent);
}

// A lock means those very bytes, too.
TEST_F(ForeignOfTheHub, LockedIsNotStoodInFor) {
  const ForeignCopy activation("activation", HOTSWAP_TEST_FOREIGN_STABLE);
  serve(activation.root(), "kernels-community/activation", "v1");
  trust("kernels-community");
  TempFolder project;
  lock_of("kernels-community/activation").write(project / "kernels.lock");
  TinyModel model;
  const KernelRef locked("kernels-community/activation:Gelu", {.locked = true});
  const KernelReport report =
      kernelize(model, I, {.config = only("GeLU", locked), .strict = false, .project = project.path()});
  expect_has(row_of(report, "GeLU").reason, {"from kernels-community/activation@", "as locked"});
}

// The C++ API: a library for one torch, chosen where that is ours.
TEST_F(ForeignOfTheHub, TheVariantOfThisTorch) {
  trust("kernels-community");
  const ForeignCopy native("rmsnorm", HOTSWAP_TEST_FOREIGN_NATIVE, kThisTorch);
  const ForeignCopy older("rmsnorm", HOTSWAP_TEST_FOREIGN_NATIVE, "torch29-cxx11-cpu-x86_64-linux");
  const ForeignCopy other_abi("rmsnorm", HOTSWAP_TEST_FOREIGN_NATIVE,
                              cat("torch", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, "-cxx98-cpu-x86_64-linux"));
  const std::filesystem::path build = served.path() / "kernels/kernels-community/rmsnorm/main/build";
  std::filesystem::create_directories(build);
  for (const ForeignCopy* copy : {&native, &older, &other_abi}) {
    std::filesystem::copy(copy->variant(), build / copy->variant().filename(),
                          std::filesystem::copy_options::recursive);
  }
  TinyModel model;
  const KernelReport report = kernelize(model, I, {.config = only("RMSNorm", "kernels-community/rmsnorm@main")});
  const KernelRow& row = row_of(report, "RMSNorm");
  EXPECT_EQ(row.package, "rmsnorm");
  expect_has(row.reason, {"from kernels-community/rmsnorm@", kThisTorch});
  const at::NoGradGuard guard;
  model.forward(at::randn({2, 3, 16}, at::kFloat));
  EXPECT_EQ(op_calls(native.id(), "rms_norm"), 2);

  // The stable ABI is better where there is one.
  const ForeignCopy stable("activation", HOTSWAP_TEST_FOREIGN_STABLE);
  const ForeignCopy unstable("activation", HOTSWAP_TEST_FOREIGN_NATIVE, kThisTorch);
  serve(stable.root(), "kernels-community/activation", "main");
  std::filesystem::copy(unstable.variant(),
                        served.path() / "kernels/kernels-community/activation/main/build" / kThisTorch,
                        std::filesystem::copy_options::recursive);
  expect_has(
      row_of(kernelize(model, I, {.config = only("GeLU", "kernels-community/activation@main:Gelu")}), "GeLU").reason,
      {ForeignCopy::kStableVariant});

  // For other torches alone: stock, and why.
  serve(older.root(), "kernels-community/rmsnorm", "old");
  expect_has(
      row_of(kernelize(model, I, {.config = only("RMSNorm", "kernels-community/rmsnorm@old")}), "RMSNorm").reason,
      {"no variant of kernels-community/rmsnorm@", "Torch version (2.9) does not match",
       "nearest: torch29-cxx11-cpu-x86_64-linux needs torch 2.9"});
}

// Python only, as its variants' names say: stock, with what stands in.
TEST_F(ForeignOfTheHub, PythonOnlyNamesWhatStandsIn) {
  trust("kernels-community");
  for (const char* repo : {"kernels-community/liger_kernels", "kernels-community/some_triton"}) {
    served.write(cat("kernels/", repo, "/main/build/torch-universal/__init__.py"), "import triton\n");
  }
  TinyModel model;
  const auto reason = [&](const char* name) {
    return row_of(kernelize(model, I, {.config = only("RMSNorm", name)}), "RMSNorm").reason;
  };
  expect_has(reason("kernels-community/liger_kernels@main:LigerRMSNorm"),
             {"torch-universal: is for Python", "stand in for it: ", "hotswap/norm (LigerRMSNorm"});
  EXPECT_EQ(reason("kernels-community/some_triton@main:RMSNorm").find("stand in"), std::string::npos);
  EXPECT_EQ(asked("/resolve/"), 0u) << "nothing of them was fetched";
}

}  // namespace
}  // namespace hotswap
