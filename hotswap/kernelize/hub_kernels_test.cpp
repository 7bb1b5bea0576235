// Kernels by their name on the Hub, all the way: served, fetched, verified, bound, run; and refused before they are
// run.
#include "hotswap/kernelize/hub_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include <mutex>

#include "hotswap/base/file.h"
#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/server.h"
#include "hotswap/kernelize/testing.h"
#include "hotswap/layers/slot.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::ScopedEnv;
using test_support::TempFolder;
using test_support::TinyModel;

const Mode I = Mode::INFERENCE, T = Mode::TRAINING;

const KernelRow& row(const KernelReport& report, const std::string& layer) {
  for (const KernelRow& r : report.rows) {
    if (r.layer == layer) return r;
  }
  throw Error({.wanted = "a row " + layer, .got = "none", .next = ""});
}

KernelConfig only(const KernelChoice& norm) {
  return {.kernel_mapping = {{"RMSNorm", norm}}, .inherit_mapping = false};
}

class KernelsOfTheHub : public ::testing::Test {
 protected:
  KernelsOfTheHub()
      : server({.folder = served.path(), .rescan_s = 0, .on_request = [this](const std::string& line) {
                  const std::lock_guard lock(mutex);
                  lines.push_back(line);
                }}) {
    server.start();
    serve(norm, "acme/norm", "v1");
    trust("acme");
    endpoint.emplace("HF_ENDPOINT", server.url());
  }
  void serve(const PackageCopy& package, const std::string& repo, const std::string& revision) const {
    const fs::path place = served.path() / "kernels" / repo / revision;
    fs::remove_all(place);
    fs::create_directories(place);
    fs::copy(package.root() / "build", place / "build", fs::copy_options::recursive);
  }
  void trust(const std::string& publisher) const { write_file(served.path() / "trusted_publishers.txt", publisher); }
  size_t asked(const std::string& part = "") const {
    const std::lock_guard lock(mutex);
    return static_cast<size_t>(
        std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.find(part) != line.npos; }));
  }
  // The snapshot's file of the only variant that was fetched of a repository.
  fs::path fetched(const std::string& repo, const std::string& file) const {
    std::string folder = "kernels--" + repo;
    folder.replace(folder.find('/'), 1, "--");
    for (const auto& entry : fs::recursive_directory_iterator(cache.path() / folder / "snapshots")) {
      if (entry.path().filename() == file) return entry.path();
    }
    throw Error({.wanted = file + " of " + repo, .got = "none in the cache", .next = ""});
  }
  // Slots stay as they are, and the text says why.
  std::string refused(const KernelChoice& kernel, KernelOptions options = {}) const {
    TinyModel model;
    options.config = only(kernel);
    const std::string text = message_of([&] { kernelize(model, I, options); });
    model.each_slot([](const std::string& name, SlotBase& slot) { EXPECT_FALSE(slot.bound()) << name; });
    return text;
  }

  TempFolder served, cache;
  mutable std::mutex mutex;
  std::vector<std::string> lines;
  HubServer server;
  PackageCopy norm{"norm"};
  ScopedEnv cached{"HF_HUB_CACHE", cache.path().string()}, kernels{"KERNELS_CACHE", cache.path().string()};
  ScopedEnv online{"HF_HUB_OFFLINE", "0"}, bars{"HF_HUB_DISABLE_PROGRESS_BARS", "1"};
  std::optional<ScopedEnv> endpoint;
};

TEST_F(KernelsOfTheHub, ByNameAndTheDownloadedOpRuns) {
  TinyModel model;
  const KernelReport report = kernelize(model, T, {.config = {{{"RMSNorm", "acme/norm"}}}});
  const KernelRow& bound = row(report, "RMSNorm");
  EXPECT_EQ(bound.package, "norm");
  const std::string commit = fetched("acme/norm", "metadata.json").parent_path().parent_path().parent_path().filename();
  EXPECT_EQ(bound.reason, cat("from acme/norm@", commit, " (v1), ", norm.variant().filename().string()));
  EXPECT_EQ(row(report, "LayerNorm").reason, "") << "the others are the bundled ones";
  const int64_t before = op_calls(norm.id(), "rms_norm_fwd");
  model.forward(at::randn({2, 3, 16}, at::kFloat));
  EXPECT_EQ(op_calls(norm.id(), "rms_norm_fwd"), before + 2) << "norm, and add_norm through its part";

  const size_t sent = asked();
  kernelize(model, I, {.config = only("acme/norm@v1:LigerRMSNorm")});
  EXPECT_EQ(asked(), sent) << "warm: nothing is asked";
}

TEST_F(KernelsOfTheHub, ModesChangeTheCommitDoesNot) {
  const ScopedEnv always("HOTSWAP_HUB_TTL", "0");
  TinyModel model;
  model.eval();
  model.kernels.kernelize(model, I, {.config = only("acme/norm")});
  const std::string before = row(model.kernels.report(), "RMSNorm").reason;
  PackageCopy newer("norm");
  serve(newer, "acme/norm", "v1");  // the branch moves on
  const size_t sent = asked();
  model.train();
  EXPECT_EQ(row(model.kernels.report(), "RMSNorm").reason, before);
  EXPECT_EQ(row(model.kernels.report(), "RMSNorm").mode, "TRAINING");
  model.kernels.kernelize(model, I);
  EXPECT_EQ(row(model.kernels.report(), "RMSNorm").reason, before);
  EXPECT_EQ(asked(), sent);
  model.kernels.kernelize(model, I, {.config = only("acme/norm")});  // asked for anew
  EXPECT_NE(row(model.kernels.report(), "RMSNorm").reason, before);
}

TEST_F(KernelsOfTheHub, UntrustedIsRefusedBeforeAnyDownload) {
  PackageCopy theirs("norm");
  serve(theirs, "evil/norm", "v1");
  expect_has(refused("evil/norm"), {"'evil/norm' is not from a trusted publisher", "allow_all_kernels"});
  EXPECT_EQ(asked("/kernels/evil/"), 0u) << "only of the publisher was asked";
  EXPECT_FALSE(fs::exists(cache.path() / "kernels--evil--norm/snapshots"));
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[trust]\ndeny = [\"evil/*\"]\n");
  const KernelRef entry("evil/norm", {.version = 1, .trust = true});
  expect_has(refused(entry, {.project = project.path()}), {"denied"});
  write_file(project.path() / "hotswap.toml", "[trust]\nallow = [\"evil/norm\"]\n");
  EXPECT_EQ(refused("evil/norm", {.project = "/no/such"}).find("no error"), std::string::npos);
  EXPECT_EQ(asked("/resolve/"), 0u);
  const ScopedEnv current("HOTSWAP_PROJECT", project.path().string());
  TinyModel model;
  EXPECT_EQ(kernelize(model, I, {.config = only("evil/norm")}).bound(), 2);
  const ScopedEnv nobody("HOTSWAP_PROJECT", "");
  EXPECT_EQ(kernelize(model, I, {.config = only("evil/norm"), .allow_all_kernels = true}).bound(), 2);
  EXPECT_EQ(kernelize(model, I, {.config = only(entry)}).bound(), 2);
  expect_has(refused("evil/norm"), {"not from a trusted publisher"});
}

// Each with a library that would tell if it had been loaded.
TEST_F(KernelsOfTheHub, TamperedIsRefusedBeforeDlopen) {
  const auto marking = [&](const std::string& repo) {
    auto package = std::make_unique<PackageCopy>("norm");
    write_file(package->library(), read_file(HOTSWAP_TEST_MARKING_LIBRARY));
    package->sign();
    serve(*package, repo, "v1");
    return package;
  };
  const auto was_run = [&](const std::string& repo, const PackageCopy& package) {
    return fs::exists(fetched(repo, package.library().filename()).string() + ".was-run");
  };
  const auto good = marking("acme/good");
  expect_has(refused("acme/good"), {"rms_norm is not registered"});
  EXPECT_TRUE(was_run("acme/good", *good)) << "otherwise this test proves nothing";

  const auto fetch = [&](const std::string& repo) {  // into the cache, but not into this process
    Hub hub(HubOptions::from_env());
    return get_kernel(hub, {.ref = repo, .system = this_system("cpu")});
  };
  // A changed byte in the cache: of the library, of metadata.json, of what Python would run.
  for (const char* which : {"library", "metadata.json", "layers.json", "__init__.py"}) {
    const std::string repo = cat("acme/changed-", which == std::string("library") ? "library"
                                                  : which[0] == '_'               ? "init"
                                                                                  : std::string(which, 4));
    const auto package = marking(repo);
    fetch(repo);
    const std::string file = which == std::string("library") ? package->library().filename().string() : which;
    const fs::path blob = fs::canonical(fetched(repo, file));
    std::string bytes = read_file(blob);
    bytes[bytes.size() / 2] = bytes[bytes.size() / 2] == '1' ? '2' : '1';
    write_file(blob, bytes);
    EXPECT_NE(refused(repo), "no error") << which;
    EXPECT_FALSE(was_run(repo, *package)) << which;
  }
  // A signature that is missing or somebody else's.
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[trust]\nrequire-signature = [\"acme/*\"]\n");
  const auto unsigned_one = marking("acme/unsigned");
  expect_has(refused("acme/unsigned", {.project = project.path()}), {"SignatureBundleMissing"});
  EXPECT_FALSE(was_run("acme/unsigned", *unsigned_one));
  const auto forged = marking("acme/forged");
  write_file(served.path() / "kernels/acme/forged/v1/build" / forged->variant().filename() / "metadata.json.sigstore",
             R"({"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"})");
  expect_has(refused("acme/forged", {.project = project.path()}), {"SignatureBundleInvalid"});
  EXPECT_FALSE(was_run("acme/forged", *forged));
  // A lock of other bytes.
  const auto locked = marking("acme/locked");
  Hub hub(HubOptions::from_env());
  Lockfile lock;
  lock.kernels.push_back({.dependency = {.repo = "acme/locked"},
                          .commit = hub.client().commit({RepoType::kKernel, "acme/locked"}, "v1"),
                          .variants = {{locked->variant().filename().string(), "sha256-" + std::string(64, 'a')}},
                          .hash = "",
                          .path = ""});
  TempFolder locking;
  lock.write(locking.path() / "kernels.lock");
  expect_has(refused("acme/locked", {.project = locking.path()}), {"as they were locked"});
  EXPECT_FALSE(was_run("acme/locked", *locked));
}

TEST_F(KernelsOfTheHub, TheProjectSaysWhichVersion) {
  PackageCopy second("norm");
  serve(second, "acme/norm", "v2");
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[dependencies]\n\"acme/norm\" = 2\n");
  TinyModel model;
  const KernelOptions options{.config = only("acme/norm"), .project = project.path()};
  expect_has(row(kernelize(model, I, options), "RMSNorm").reason, {"(v2)"});
  const at::NoGradGuard guard;
  const int64_t before = op_calls(second.id(), "rms_norm");
  model.forward(at::randn({2, 3, 16}, at::kFloat));
  EXPECT_EQ(op_calls(second.id(), "rms_norm"), before + 2);

  Hub hub(HubOptions::from_env());
  const Lockfile lock = lock_dependencies(hub, {{.repo = "acme/norm", .version = 1}}, Lockfile::Form::kVariants);
  lock.write(project.path() / "kernels.lock");
  expect_has(row(kernelize(model, I, options), "RMSNorm").reason, {lock.kernels.at(0).commit, "as locked"});
  const KernelRef must("acme/other", {.locked = true});
  expect_has(message_of([&] { kernelize(model, I, {.config = only(must), .project = project.path()}); }),
             {"acme/other"});
}

TEST_F(KernelsOfTheHub, OfflineWhatWasThere) {
  TinyModel model;
  kernelize(model, I, {.config = only("acme/norm")});
  const size_t sent = asked();
  const ScopedEnv offline("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(kernelize(model, I, {.config = only("acme/norm")}).bound(), 2) << "norm, and the one in add_norm";
  expect_has(refused("acme/norm@v3"), {"available versions: 1"});
  expect_has(refused("acme/other:X"), {"HF_HUB_OFFLINE", "the versions of acme/other", "bundled packages answer to"});
  EXPECT_EQ(asked(), sent);
}

TEST_F(KernelsOfTheHub, StandInsComeFirstUnlessTheseBytesAreMeant) {
  TinyModel model;
  for (const char* name :
       {"kernels-community/liger_kernels:LigerRMSNorm", "kernels-community/liger_kernels@v9:LigerRMSNorm",
        "kernels-community/liger_kernels@>=1,<9:LigerRMSNorm"}) {
    expect_has(row(kernelize(model, I, {.config = only(name)}), "RMSNorm").reason, {"stands in for"});
  }
  EXPECT_EQ(asked(), 0u);
  PackageCopy theirs("norm");
  serve(theirs, "kernels-community/liger_kernels", "main");
  trust("kernels-community");
  expect_has(
      row(kernelize(model, I, {.config = only("kernels-community/liger_kernels@main:LigerRMSNorm")}), "RMSNorm").reason,
      {"from kernels-community/liger_kernels@", "(main)"});
  // LOCAL_KERNELS wins against both, and needs no trust.
  const ScopedEnv local("LOCAL_KERNELS", "evil/norm=" + norm.root().string());
  expect_has(row(kernelize(model, I, {.config = only("evil/norm")}), "RMSNorm").reason, {"LOCAL_KERNELS"});
}

TEST_F(KernelsOfTheHub, WhatCannotRunHere) {
  TinyModel model;
  PackageCopy python("norm");
  fs::remove(python.variant() / "layers.json");
  fs::remove(python.library());
  python.edit_metadata([](nlohmann::ordered_json& json) { json["name"] = "liger-kernels"; });
  python.sign();
  serve(python, "acme/python", "v1");
  expect_has(refused("acme/python"), {"layers.json", "kernels--acme--python", "for Python only"});
  trust("kernels-community");
  serve(python, "kernels-community/liger_kernels", "main");
  expect_has(refused("kernels-community/liger_kernels@main:LigerRMSNorm"),
             {"the bundled package that stands in for it: ", "hotswap/norm (LigerRMSNorm)"});
  trust("acme");
  // No variant that fits is no error: the layer stays stock and says what would help.
  const fs::path build = served.path() / "kernels/acme/newer/v1/build";
  fs::create_directories(build);
  fs::copy(norm.variant(), build / "torch-stable-abi299-cpu-x86_64-linux", fs::copy_options::recursive);
  const KernelReport report = kernelize(model, I, {.config = only("acme/newer")});
  EXPECT_EQ(report.bound(), 0);
  expect_has(row(report, "RMSNorm").reason, {"no variant of acme/newer@", "too new", "nearest: "});
  expect_has(message_of([&] { kernelize(model, I, {.config = only("acme/newer"), .strict = true}); }), {"too new"});
  EXPECT_EQ(asked("/resolve/") > 0, true);
  expect_has(refused("acme/norm:Nope"), {"'Nope'", "the layers AddRMSNorm, LayerNorm"});
  expect_has(refused("acme/norm:LayerNorm"), {"contract rms_norm/1"});
}

// A policy that leaves the digest out takes a package that has none, by its name.
TEST_F(KernelsOfTheHub, WithoutADigestByNameOnly) {
  PackageCopy bare("norm");
  bare.edit_metadata([](nlohmann::ordered_json& json) { json.erase("digest"); });
  serve(bare, "acme/bare", "v1");
  expect_has(refused("acme/bare"), {"nothing vouches for", "skip-digest"});
  TempFolder project;
  write_file(project.path() / "hotswap.toml", "[trust]\nskip-digest = [\"acme/bare\"]\n");
  TinyModel model;
  expect_has(row(kernelize(model, I, {.config = only("acme/bare"), .project = project.path()}), "RMSNorm").reason,
             {"its files not checked"});
}

}  // namespace
}  // namespace hotswap
