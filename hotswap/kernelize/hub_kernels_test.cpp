// Kernels by their name on the Hub, all the way: served, fetched, verified, bound, run; and refused before they are
// run.
#include "hotswap/kernelize/hub_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include "hotswap/hub/sign/sigstore_world.h"
#include "hotswap/kernelize/test_hub.h"
#include "hotswap/kernelize/test_modes.h"
#include "hotswap/layers/slot.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::row_of;
using test_support::ScopedEnv;
using test_support::TempFolder;
using test_support::TinyModel;

using test_support::I;
using test_support::T;

KernelConfig only_norm(const KernelChoice& norm) {
  return {.kernel_mapping = {{"RMSNorm", norm}}, .inherit_mapping = false};
}

class KernelsOfTheHub : public test_support::ServedKernels {
 protected:
  KernelsOfTheHub() { serve(norm.root(), "acme/norm", "v1"); }
  // Slots stay as they are, and the text says why.
  std::string refused(const KernelChoice& kernel, KernelOptions options = {}, HubKernels* held = nullptr) const {
    TinyModel model;
    options.config = only_norm(kernel);
    std::string text =
        message_of([&] { held == nullptr ? kernelize(model, I, options) : kernelize(model, I, options, *held); });
    model.each_slot([](const std::string& name, SlotBase& slot) { EXPECT_FALSE(slot.bound()) << name; });
    return text;
  }
  // A package of version 1 whose library would tell if it had been loaded.
  std::unique_ptr<PackageCopy> marking(const std::string& repo) const {
    auto package = std::make_unique<PackageCopy>("norm");
    write_file(package->library(), read_file(test_support::test_library(HOTSWAP_TEST_MARKING_LIBRARY)));
    package->sign();
    serve(package->root(), repo, "v1");
    return package;
  }
  bool was_run(const PackageCopy& package) const { return marks.has(package); }

  const test_support::Marks marks;

  PackageCopy norm{"norm"};
};

TEST_F(KernelsOfTheHub, ByNameAndTheDownloadedOpRuns) {
  TinyModel model;
  const KernelReport report = kernelize(model, T, {.config = {{{"RMSNorm", "acme/norm"}}}});
  const KernelRow& bound = row_of(report, "RMSNorm");
  EXPECT_EQ(bound.package, "norm");
  const std::string commit = fetched("acme/norm", "metadata.json").parent_path().parent_path().parent_path().filename();
  EXPECT_EQ(bound.reason, cat("from acme/norm@", commit, " (v1), ", norm.variant().filename().string()));
  EXPECT_EQ(row_of(report, "LayerNorm").reason, "") << "the others are the bundled ones";
  const int64_t before = op_calls(norm.id(), "rms_norm_fwd");
  model.forward(at::randn({2, 3, 16}, at::kFloat));
  EXPECT_EQ(op_calls(norm.id(), "rms_norm_fwd"), before + 2) << "norm, and add_norm through its part";

  const size_t sent = asked();
  kernelize(model, I, {.config = only_norm("acme/norm@v1:LigerRMSNorm")});
  EXPECT_EQ(asked(), sent) << "warm: nothing is asked";
}

TEST_F(KernelsOfTheHub, ModesChangeTheCommitDoesNot) {
  const ScopedEnv always("HOTSWAP_HUB_TTL", "0");
  TinyModel model;
  model.eval();
  model.kernels.kernelize(model, I, {.config = only_norm("acme/norm")});
  const std::string before = row_of(model.kernels.report(), "RMSNorm").reason;
  PackageCopy newer("norm");
  serve(newer.root(), "acme/norm", "v1");  // the branch moves on
  const size_t sent = asked();
  model.train();
  EXPECT_EQ(row_of(model.kernels.report(), "RMSNorm").reason, before);
  EXPECT_EQ(row_of(model.kernels.report(), "RMSNorm").mode, "TRAINING");
  model.kernels.kernelize(model, I);
  EXPECT_EQ(row_of(model.kernels.report(), "RMSNorm").reason, before);
  EXPECT_EQ(asked(), sent);
  model.kernels.kernelize(model, I, {.config = only_norm("acme/norm")});  // asked for again
  EXPECT_NE(row_of(model.kernels.report(), "RMSNorm").reason, before);
}

TEST_F(KernelsOfTheHub, UntrustedIsRefusedBeforeAnyDownload) {
  PackageCopy theirs("norm");
  serve(theirs.root(), "evil/norm", "v1");
  expect_has(refused("evil/norm"), {"'evil/norm' is not from a trusted publisher", "allow_all_kernels"});
  EXPECT_EQ(asked("/kernels/evil/"), 0u) << "only of the publisher was asked";
  EXPECT_TRUE(fs::is_empty(cache.path() / "kernels--evil--norm/snapshots"));
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[trust]\ndeny = [\"evil/*\"]\n");
  const KernelRef entry("evil/norm", {.version = 1, .trust = true});
  expect_has(refused(entry, {.project = project.path()}), {"denied"});
  write_file(project.path() / "hotswap.toml", "[trust]\nallow = [\"evil/norm\"]\n");
  EXPECT_EQ(refused("evil/norm", {.project = "/no/such"}).find("no error"), std::string::npos);
  EXPECT_EQ(asked("/resolve/"), 0u);
  const ScopedEnv current("HOTSWAP_PROJECT", project.path().string());
  TinyModel model;
  EXPECT_EQ(kernelize(model, I, {.config = only_norm("evil/norm")}).bound(), 2);
  const ScopedEnv nobody("HOTSWAP_PROJECT", "");
  EXPECT_EQ(kernelize(model, I, {.config = only_norm("evil/norm"), .allow_all_kernels = true}).bound(), 2);
  EXPECT_EQ(kernelize(model, I, {.config = only_norm(entry)}).bound(), 2);
  expect_has(refused("evil/norm"), {"not from a trusted publisher"});
}

TEST_F(KernelsOfTheHub, TamperedIsRefusedBeforeDlopen) {
  const auto good = marking("acme/good");
  expect_has(refused("acme/good"), {"rms_norm is not registered"});
  EXPECT_TRUE(was_run(*good)) << "otherwise this test proves nothing";
  // A signature that is missing or somebody else's.
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[trust]\nrequire-signature = [\"acme/*\"]\n");
  const auto unsigned_one = marking("acme/unsigned");
  expect_has(refused("acme/unsigned", {.project = project.path()}), {"SignatureBundleMissing"});
  EXPECT_FALSE(was_run(*unsigned_one));
  const auto forged = marking("acme/forged");
  write_file(served.path() / "kernels/acme/forged/v1/build" / forged->variant().filename() / "metadata.json.sigstore",
             R"({"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"})");
  expect_has(refused("acme/forged", {.project = project.path()}), {"SignatureBundleInvalid"});
  EXPECT_FALSE(was_run(*forged));
  // A lock of other bytes.
  const auto locked = marking("acme/locked");
  Lockfile lock = lock_of("acme/locked");
  for (auto& [variant, hash] : lock.kernels[0].variants) hash = "sha256-" + std::string(64, 'a');
  TempFolder locking;
  lock.write(locking.path() / "kernels.lock");
  expect_has(refused("acme/locked", {.project = locking.path()}), {"as they were locked"});
  EXPECT_FALSE(was_run(*locked));
}

// Fetched and found good; changed in the cache; opened later by the same process, or offline by another.
TEST_F(KernelsOfTheHub, ChangedAfterTheDownloadIsRefusedBeforeDlopen) {
  const test_support::SigstoreWorld world;
  TempFolder project;
  const ScopedEnv root("HOTSWAP_TRUST_ROOT", project.write("trusted_root.json", world.root().dump()).string());
  project.write("hotswap.toml", R"(
[trust]
require-signature = ["signed/*"]
[[signer]]
name = "ours"
issuer = "https://issuer.test"
builders = ["https://git.test/org/kernels/build.yaml@refs/heads/main"]
)");
  const std::string bundle = "metadata.json.sigstore";
  trust("acme\nsigned");
  for (const char* name : {"signed/library", "signed/metadata", "signed/layers", "signed/python", "signed/bundle",
                           "acme/library", "acme/metadata"}) {
    SCOPED_TRACE(name);
    const std::string repo = name, part = repo.substr(repo.find('/') + 1);
    const auto package = marking(repo);
    const fs::path source = served.path() / "kernels" / repo / "v1/build" / package->variant().filename();
    const bool is_signed = repo.starts_with("signed/");
    if (is_signed) {
      write_file(source / bundle, world.bundle({.artifact = read_file(source / "metadata.json")}).dump());
    }
    const std::string file = part == "library"    ? package->library().filename().string()
                             : part == "metadata" ? "metadata.json"
                             : part == "layers"   ? "layers.json"
                             : part == "python"   ? "__init__.py"
                                                  : bundle;
    HubKernels held(false, project.path());
    EXPECT_EQ(held.get(repo, "cpu")->signer, is_signed ? "ours" : "");
    const std::string bytes = read_file(fetched(repo, file));
    const size_t at = part == "bundle"     ? bytes.find("\"signature\"") + 16
                      : part == "metadata" ? bytes.find("\"license\"") + 12
                                           : bytes.size() / 2;
    const std::string good = change_byte(repo, file, at);
    const size_t sent = asked();
    const KernelOptions options{.project = project.path()};
    for (HubKernels* hub : {&held, static_cast<HubKernels*>(nullptr)}) {
      const ScopedEnv offline("HF_HUB_OFFLINE", hub == nullptr ? "1" : "0");
      const std::string text = refused(repo, options, hub);
      EXPECT_NE(text, "no error");
      EXPECT_EQ(text.find("is not registered"), text.npos) << text;
      if (part == "bundle") expect_has(text, {"SignatureVerificationFailure"});
      EXPECT_FALSE(was_run(*package));
    }
    restore(repo, file, good);
    expect_has(refused(repo, options, &held), {"rms_norm is not registered"});
    EXPECT_TRUE(was_run(*package)) << "as it was fetched it runs: the change alone was refused";
    EXPECT_EQ(asked(), sent) << "warm, nothing is asked";
  }
}

// The lock alone vouches for these files: no digest is looked at.
TEST_F(KernelsOfTheHub, TheLockHoldsWhenTheLibraryIsOpened) {
  const auto package = marking("acme/locked");
  TempFolder project;
  project.write("hotswap.toml", "[trust]\nskip-digest = [\"acme/locked\"]\n");
  Lockfile lock = lock_of("acme/locked");
  lock.write(project / "kernels.lock");
  const KernelOptions options{.project = project.path()};
  HubKernels held(false, project.path());
  EXPECT_TRUE(bool(held.get("acme/locked", "cpu")));
  const std::string library = package->library().filename();
  const std::string good = change_byte("acme/locked", library, 1000);
  const size_t sent = asked();
  expect_has(refused("acme/locked", options, &held), {"as they were locked", "nothing of it was run"});
  const ScopedEnv offline("HF_HUB_OFFLINE", "1");
  expect_has(refused("acme/locked", options), {"as they were locked"});
  restore("acme/locked", library, good);
  // A changed byte of the lock itself: of a hash, then of the commit.
  std::string& hash = lock.kernels[0].variants.at(package->variant().filename());
  const std::string right = hash;
  hash.back() = hash.back() == '1' ? '2' : '1';
  lock.write(project / "kernels.lock");
  expect_has(refused("acme/locked", options), {"as they were locked"});
  hash = right;
  std::string& commit = lock.kernels[0].commit;
  commit.back() = commit.back() == '1' ? '2' : '1';
  lock.write(project / "kernels.lock");
  expect_has(refused("acme/locked", options), {commit});
  EXPECT_FALSE(was_run(*package));
  expect_has(refused("acme/locked", options, &held), {"rms_norm is not registered"});
  EXPECT_TRUE(was_run(*package));
  EXPECT_EQ(asked(), sent);
}

TEST_F(KernelsOfTheHub, TheProjectSaysWhichVersion) {
  PackageCopy second("norm");
  serve(second.root(), "acme/norm", "v2");
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[dependencies]\n\"acme/norm\" = 2\n");
  TinyModel model;
  const KernelOptions options{.config = only_norm("acme/norm"), .project = project.path()};
  expect_has(row_of(kernelize(model, I, options), "RMSNorm").reason, {"(v2)"});
  const at::NoGradGuard guard;
  const int64_t before = op_calls(second.id(), "rms_norm");
  model.forward(at::randn({2, 3, 16}, at::kFloat));
  EXPECT_EQ(op_calls(second.id(), "rms_norm"), before + 2);

  const Lockfile lock = lock_of("acme/norm");
  lock.write(project.path() / "kernels.lock");
  expect_has(row_of(kernelize(model, I, options), "RMSNorm").reason, {lock.kernels[0].commit, "as locked"});
  const KernelRef must("acme/other", {.locked = true});
  expect_has(message_of([&] { kernelize(model, I, {.config = only_norm(must), .project = project.path()}); }),
             {"acme/other"});
}

TEST_F(KernelsOfTheHub, OfflineWhatWasThere) {
  TinyModel model;
  kernelize(model, I, {.config = only_norm("acme/norm")});
  const size_t sent = asked();
  const ScopedEnv offline("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(kernelize(model, I, {.config = only_norm("acme/norm")}).bound(), 2) << "norm, and the one in add_norm";
  expect_has(refused("acme/norm@v3"), {"available versions: 1"});
  expect_has(refused("acme/other:X"),
             {"HF_HUB_OFFLINE", "the versions of acme/other", "unset HF_HUB_OFFLINE for one run",
              "`hotswap kernel list` names what is bundled"});
  expect_has(refused("hotswp/norms:X"), {"did you mean the bundled hotswap/norm?"});
  EXPECT_EQ(asked(), sent);
}

TEST_F(KernelsOfTheHub, StandInsComeFirstUnlessTheseBytesAreMeant) {
  TinyModel model;
  for (const char* name :
       {"kernels-community/liger_kernels:LigerRMSNorm", "kernels-community/liger_kernels@v3:LigerRMSNorm",
        "kernels-community/liger_kernels@>=1,<9:LigerRMSNorm", "kernels-community/liger_kernels"}) {
    expect_has(row_of(kernelize(model, I, {.config = only_norm(name)}), "RMSNorm").reason,
               {"stands in for kernels-community/liger_kernels:LigerRMSNorm"});
  }
  EXPECT_EQ(asked(), 0u);
  // Later ones than those that the stand-in was written for are the repository's own.
  PackageCopy theirs("norm");
  serve(theirs.root(), "kernels-community/liger_kernels", "main");
  expect_has(refused("kernels-community/liger_kernels@>=99"), {"trusted", "stands in for its versions up to v3"});
  trust("kernels-community");
  for (const char* name : {"kernels-community/liger_kernels@v4:LigerRMSNorm", "kernels-community/liger_kernels@>=99",
                           "kernels-community/liger_kernels@~=4.1:LigerRMSNorm"}) {
    expect_has(refused(name), {"of kernels-community/liger_kernels", "branches: main",
                               "the bundled package hotswap/norm stands in for its versions up to v3"});
  }
  expect_has(
      row_of(kernelize(model, I, {.config = only_norm("kernels-community/liger_kernels@main:LigerRMSNorm")}), "RMSNorm")
          .reason,
      {"from kernels-community/liger_kernels@", "(main)"});
  // LOCAL_KERNELS wins against both, and needs no trust.
  const ScopedEnv local("LOCAL_KERNELS", "evil/norm=" + norm.root().string());
  expect_has(row_of(kernelize(model, I, {.config = only_norm("evil/norm")}), "RMSNorm").reason, {"LOCAL_KERNELS"});
}

TEST_F(KernelsOfTheHub, WhatCannotRunHere) {
  TinyModel model;
  PackageCopy python("norm");
  fs::remove(python.variant() / "layers.json");
  fs::remove(python.library());
  python.edit_metadata([](nlohmann::ordered_json& json) { json["name"] = "liger-kernels"; });
  python.sign();
  serve(python.root(), "acme/python", "v1");
  expect_has(refused("acme/python"), {"layers.json", "kernels--acme--python", "for Python only"});
  trust("kernels-community");
  serve(python.root(), "kernels-community/liger_kernels", "main");
  expect_has(refused("kernels-community/liger_kernels@main:LigerRMSNorm"),
             {"the bundled package that stands in for it: ", "hotswap/norm (LigerRMSNorm)"});
  trust("acme");
  // No variant that fits is no error: the layer stays stock and says what would help.
  const fs::path build = served.path() / "kernels/acme/newer/v1/build";
  fs::create_directories(build);
  fs::copy(norm.variant(), build / "torch-stable-abi299-cpu-x86_64-linux", fs::copy_options::recursive);
  const KernelReport report = kernelize(model, I, {.config = only_norm("acme/newer")});
  EXPECT_EQ(report.bound(), 0);
  expect_has(row_of(report, "RMSNorm").reason, {"no variant of acme/newer@", "too new", "nearest: "});
  expect_has(message_of([&] { kernelize(model, I, {.config = only_norm("acme/newer"), .strict = true}); }),
             {"too new"});
  EXPECT_EQ(asked("/resolve/") > 0, true);
  expect_has(refused("acme/norm:Nope"), {"'Nope'", "the layers AddRMSNorm, LayerNorm"});
  expect_has(refused("acme/norm:LayerNorm"), {"contract rms_norm/1"});
}

// A policy that leaves the digest out takes a package that has none, by its name.
TEST_F(KernelsOfTheHub, WithoutADigestByNameOnly) {
  PackageCopy bare("norm");
  bare.edit_metadata([](nlohmann::ordered_json& json) { json.erase("digest"); });
  serve(bare.root(), "acme/bare", "v1");
  expect_has(refused("acme/bare"), {"cannot be verified", "skip-digest"});
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[trust]\nskip-digest = [\"acme/bare\"]\n");
  TinyModel model;
  expect_has(
      row_of(kernelize(model, I, {.config = only_norm("acme/bare"), .project = project.path()}), "RMSNorm").reason,
      {"its files not checked"});
}

}  // namespace
}  // namespace hotswap
