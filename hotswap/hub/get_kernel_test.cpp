// From a name on a served Hub to a verified folder: what is asked, in which order, and what is refused before what.
#include "hotswap/hub/get_kernel.h"

#include <stdlib.h>

#include <mutex>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/digest.h"
#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/project.h"
#include "hotswap/hub/server.h"
#include "hotswap/hub/sigstore_world.h"
#include "hotswap/hub/text.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

const std::string kCpu = "torch-stable-abi210-cpu-x86_64-linux", kCuda = "torch-stable-abi210-cu130-x86_64-linux";

class GetKernel : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* version : {"v1", "v2", "v10"}) add("acme/norm", version);
    served.write("trusted_publishers.txt", "acme\n");
    server = std::make_unique<HubServer>(HubServerOptions{
        .folder = served.path(), .large_from = 4096, .rescan_s = 0, .on_request = [this](const std::string& line) {
          const std::lock_guard lock(mutex);
          lines.push_back(line);
        }});
    server->start();
  }
  // A package of two variants with good digests; the library of each is large enough for LFS.
  fs::path add(const std::string& repo, const std::string& revision, const std::string& more_metadata = "") {
    const std::string place = cat("kernels/", repo, "/", revision, "/build/");
    for (const std::string& variant : {kCpu, kCuda}) {
      const std::string backend = variant == kCpu ? "cpu" : "cuda";
      served.write(place + variant + "/metadata.json",
                   cat(R"({"name":"norm","id":"_norm_)", backend,
                       R"(","version":1,"license":"mit","python-depends":[],)", R"("backend":{"type":")", backend, "\"",
                       variant == kCuda ? R"(,"archs":["9.0"])" : "", "}", more_metadata, "}"));
      served.write(cat(place, variant, "/_norm_", backend, ".abi3.so"), std::string(5000, 'x') + revision);
      served.write(place + variant + "/__init__.py", "");
      write_digests(served.path() / (place + variant));
    }
    return served.path() / place;
  }
  void redirect(const std::string& from, const std::string& revision, const std::string& to,
                const std::string& to_revision = "") {
    served.write(cat("kernels/", from, "/", revision, "/kernel-status.toml"),
                 cat("kind = \"redirect\"\ndestination = \"", to, "\"\n",
                     to_revision.empty() ? "" : cat("revision = \"", to_revision, "\"\n")));
  }
  HubOptions options(bool offline = false) const {
    HubOptions o{.endpoint = server->url(), .cache = cache.path(), .kernels_cache = cache.path(), .offline = offline};
    o.progress = false;
    return o;
  }
  HubKernel get(const KernelRequest& request, bool offline = false) const {
    Hub hub(options(offline));
    KernelRequest asked = request;
    if (!asked.system.torch) asked.system = cpu();
    return get_kernel(hub, asked);
  }
  std::string refused(const KernelRequest& request, bool offline = false) const {
    return message_of([&] { get(request, offline); });
  }
  static System cpu() { return {.torch = {{2, 11}}, .stable_abi_only = true}; }
  static System gpu(MajorMinor capability) {
    System system = cpu();
    system.backend = *Backend::parse("cu130");
    system.capability = capability;
    return system;
  }
  std::vector<std::string> asked() const {
    const std::lock_guard lock(mutex);
    return lines;
  }
  size_t asked_with(const std::string& part) const {
    const auto all = asked();
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& line) { return line.find(part) != line.npos; }));
  }
  std::string commit(const std::string& repo, const std::string& revision) const {
    Hub hub(options());
    return hub.client().commit({RepoType::kKernel, repo}, revision);
  }

  TempFolder served, cache;
  mutable std::mutex mutex;
  std::vector<std::string> lines;
  std::unique_ptr<HubServer> server;
};

TEST_F(GetKernel, AskedInThisOrderAndOnlyTheVariantThatFits) {
  const HubKernel kernel = get({.ref = "acme/norm@v2"});
  EXPECT_EQ(kernel.variant, kCpu);
  EXPECT_EQ(kernel.folder, cache.path() / "kernels--acme--norm/snapshots" / kernel.place.commit / "build" / kCpu);
  EXPECT_TRUE(fs::exists(kernel.folder / "_norm_cpu.abi3.so"));
  EXPECT_FALSE(fs::exists(kernel.folder.parent_path() / kCuda));
  EXPECT_TRUE(kernel.digest_checked);
  EXPECT_EQ(kernel.place.asked, "v2");
  const auto lines_asked = asked();
  ASSERT_EQ(lines_asked.size(), 5u) << join(lines_asked, "\n");  // an empty file is not asked for
  EXPECT_EQ(kernel.place.str(), "acme/norm@" + commit("acme/norm", "v2"));
  expect_has(lines_asked[0], {"GET /api/organizations/acme/overview"});
  expect_has(lines_asked[1], {"GET /api/kernels/acme/norm/refs"});
  expect_has(lines_asked[2], {"GET /api/kernels/acme/norm/tree/"});
  for (size_t i = 3; i < 5; ++i) expect_has(lines_asked[i], {"GET /kernels/acme/norm/resolve/", kCpu});
}

TEST_F(GetKernel, WarmAsksNothingInEveryProcess) {
  const HubKernel first = get({.ref = "acme/norm@v1"});
  const size_t before = asked().size();
  for (const char* name : {"acme/norm@v1", "acme/norm"}) {  // none given: version 1
    const HubKernel again = get({.ref = name});
    EXPECT_EQ(again.folder, first.folder);
    EXPECT_EQ(again.place.commit, first.place.commit);
  }
  EXPECT_EQ(asked().size(), before);
  // Another variant of the same commit: its files, and nothing about names.
  get({.ref = "acme/norm@v1", .system = gpu({9, 0})});
  EXPECT_EQ(asked_with("/api/"), 3u);
  EXPECT_EQ(asked().size(), before + 2) << "its metadata by HEAD and GET; the bytes of its library are here already";
  EXPECT_EQ(asked_with(kCuda), 2u);
}

TEST_F(GetKernel, EveryWayToSayWhich) {
  served.write("kernels/acme/norm/v1.5.0/build/torch-cpu/x", "");
  const auto commit_for = [&](const char* ref) {
    Hub hub(options());
    return locate_kernel(hub, {.ref = ref, .system = cpu()}).commit;
  };
  const std::string v1 = commit("acme/norm", "v1"), v2 = commit("acme/norm", "v2"), tag = commit("acme/norm", "v1.5.0");
  EXPECT_EQ(commit_for("acme/norm"), v1);
  EXPECT_EQ(commit_for("acme/norm@v2"), v2);
  EXPECT_EQ(commit_for("acme/norm@>=1,<2"), tag);
  EXPECT_EQ(commit_for("acme/norm@>=1,<3"), v2);
  EXPECT_EQ(commit_for("acme/norm@v1.5.0"), tag);
  EXPECT_EQ(commit_for(("acme/norm@" + v2).c_str()), v2);
  for (const char* ref : {"v1", "v2", "v1.5.0"}) {
    EXPECT_EQ(read_file(cache.path() / "kernels--acme--norm/refs" / ref), commit("acme/norm", ref)) << "for offline";
  }
  expect_has(refused({.ref = "acme/norm@v7"}), {"Version 7 not found, available versions: 1, 2, 10"});
  expect_has(refused({.ref = "acme/norm@>=11"}), {"v1, v10, v2", "v1.5.0"});
  expect_has(refused({.ref = "acme/norm@dev"}), {"'dev' of acme/norm", "branches: v1", "tags: v1.5.0"});
  expect_has(refused({.ref = "acme/nothing@v1"}), {"acme/nothing"});
  expect_has(refused({.ref = "/a/folder"}), {"/a/folder"});
  expect_has(refused({.ref = ""}), {"org/repo"});
}

TEST_F(GetKernel, TrustBeforeAnyByte) {
  add("evil/norm", "v1");
  expect_has(refused({.ref = "evil/norm@v1"}), {"'evil/norm' is not from a trusted publisher", ".trust = true"});
  expect_has(refused({.ref = "nobody/norm@v1"}), {"could not verify publisher trust status of 'nobody'"});
  expect_has(refused({.ref = "acme/norm@v1", .trust = {.deny = {"acme/*"}}}), {"denied"});
  EXPECT_EQ(asked_with("/resolve/"), 0u);
  EXPECT_EQ(asked_with("/tree/"), 0u);
  EXPECT_EQ(asked_with("/refs"), 0u);
  EXPECT_EQ(get({.ref = {"evil/norm", {.version = 1, .trust = true}}}).variant, kCpu);
  EXPECT_EQ(get({.ref = "evil/norm", .trust = {.allow_all_kernels = true}}).variant, kCpu);
  EXPECT_EQ(get({.ref = "evil/norm", .trust = {.allow = {"evil/*"}}}).variant, kCpu);
  EXPECT_EQ(asked_with("/organizations/"), 2u) << "who is trusted anyway is not asked about";
  expect_has(refused({.ref = "evil/norm"}), {"not from a trusted publisher"});
  EXPECT_NE(refused({.ref = "evil/norm"}), "no error") << "being in the cache is no trust";
  EXPECT_EQ(get({.ref = "evil/norm"}, /*offline=*/true).variant, kCpu) << "offline it is what was fetched before";
}

TEST_F(GetKernel, RedirectsAreFollowedAndJudged) {
  add("evil/norm", "main");
  redirect("acme/old", "v1", "acme/norm", "v2");
  redirect("acme/older", "v1", "acme/old", "v1");
  redirect("acme/trap", "v1", "evil/norm");
  redirect("evil/gate", "v1", "acme/norm", "v1");
  redirect("acme/a", "v1", "acme/b");
  redirect("acme/b", "main", "acme/a", "v1");
  redirect("acme/lost", "v1", "acme/norm", "dev");
  served.write("kernels/acme/odd/v1/kernel-status.toml", "kind = \"retired\"\n");
  const HubKernel kernel = get({.ref = "acme/older"});
  EXPECT_EQ(kernel.place.str(), "acme/norm@" + commit("acme/norm", "v2"));
  EXPECT_EQ(kernel.place.led_from, "acme/older");
  const size_t before = asked().size();
  get({.ref = "acme/older"});
  EXPECT_EQ(asked().size(), before);
  EXPECT_EQ(get({.ref = "acme/older"}, true).folder, kernel.folder) << "offline too";

  const size_t got = asked_with("/resolve/");
  expect_has(refused({.ref = {"acme/trap", {.version = 1, .trust = true}}}), {"'evil/norm'", "'acme/trap' redirects"});
  expect_has(refused({.ref = "evil/gate"}), {"'evil/gate' is not from a trusted publisher"});
  EXPECT_EQ(asked_with("/kernels/evil/"), 0u) << "neither listed nor fetched";
  EXPECT_EQ(asked_with("/resolve/"), got + 2) << "acme/trap's own kernel-status.toml, HEAD and GET";
  expect_has(refused({.ref = "acme/a"}), {"a circle: acme/a@", " -> acme/b@"});
  expect_has(refused({.ref = "acme/lost"}), {"'dev' of acme/norm", "branches: v1"});
  expect_has(refused({.ref = "acme/odd"}), {"retired"});
}

TEST_F(GetKernel, NothingThatFits) {
  System old = cpu();
  old.torch = {2, 4};
  const std::string text = refused({.ref = "acme/norm@v1", .system = old});
  expect_has(text, {"Cannot find a build variant for this system in acme/norm (revision: v1)", "too new", "nearest: "});
  served.write("kernels/acme/empty/v1/README.md", "# nothing\n");
  expect_has(refused({.ref = "acme/empty"}), {"acme/empty", "no variant at all"});
  EXPECT_EQ(asked_with("/resolve/"), 0u);
  // The code of a GPU variant is known from its metadata alone.
  EXPECT_EQ(get({.ref = "acme/norm@v1", .system = gpu({9, 0})}).variant, kCuda);
  expect_has(refused({.ref = "acme/norm@v1", .system = gpu({12, 0})}), {"compute capability 12.0"});
}

// Bytecode is never downloaded, and a folder whose name means nothing is none of our business.
TEST_F(GetKernel, WhatLiesBesideAVariantStaysThere) {
  const std::string build = "kernels/acme/norm/v1/build/";
  served.write(build + kCpu + "/left.pyc", "bytecode");
  served.write(build + "no-variant/x.so", "x");
  served.write(build + kCpu + "-debug/x.so", "x");
  const HubKernel kernel = get({.ref = "acme/norm@v1"});
  EXPECT_FALSE(fs::exists(kernel.folder / "left.pyc"));
  EXPECT_EQ(std::distance(fs::directory_iterator(kernel.folder.parent_path()), fs::directory_iterator()), 1);
  EXPECT_EQ(kernel.place.choice.trace.size(), 4u);
}

TEST_F(GetKernel, OfflineWhatWasThereAndWhatIsMissing) {
  const HubKernel online = get({.ref = "acme/norm@>=1,<3"});
  const size_t before = asked().size();
  for (const char* name : {"acme/norm@v2", "acme/norm@>=1,<3", "acme/norm@>=2"}) {
    EXPECT_EQ(get({.ref = std::string(name) == "acme/norm@>=2" ? "acme/norm@==2" : name}, true).folder, online.folder);
  }
  expect_has(refused({.ref = "acme/norm@v1"}, true), {"HF_HUB_OFFLINE", "the cache lacks"});
  expect_has(refused({.ref = "acme/norm@v2", .system = gpu({9, 0})}, true), {"HF_HUB_OFFLINE", "metadata.json"});
  expect_has(refused({.ref = "acme/other"}, true), {"the versions of acme/other", "HF_HUB_OFFLINE"});
  EXPECT_EQ(asked().size(), before);
}

// What `kernel install` makes: refs/v1 and plain files, with neither blobs nor lists.
TEST_F(GetKernel, OfflineAPackageThatWasPutThereByHand) {
  const std::string sha(40, 'a');
  const fs::path repo = cache.path() / "kernels--my--norm";
  fs::create_directories(repo / "refs");
  fs::create_directories(repo / "snapshots" / sha);
  write_file(repo / "refs/v1", sha);
  fs::copy(served.path() / "kernels/acme/norm/v1/build", repo / "snapshots" / sha / "build",
           fs::copy_options::recursive);
  const HubKernel kernel = get({.ref = "my/norm"}, true);
  EXPECT_EQ(kernel.folder, repo / "snapshots" / sha / "build" / kCpu);
  expect_has(refused({.ref = "my/norm@v2"}, true), {"available versions: 1"});
  EXPECT_TRUE(asked().empty());
}

TEST_F(GetKernel, ChangedBytesAreRefused) {
  const HubKernel kernel = get({.ref = "acme/norm@v1"});
  const auto tampered = [&](const char* file, const std::string& bytes) {
    const fs::path blob = fs::canonical(kernel.folder / file);
    const std::string good = read_file(blob);
    write_file(blob, bytes.empty() ? good.substr(0, good.size() - 1) + "!" : bytes);
    const std::string text = refused({.ref = "acme/norm@v1"});
    write_file(blob, good);
    return text;
  };
  expect_has(tampered("_norm_cpu.abi3.so", ""), {"File hash mismatch for _norm_cpu.abi3.so", "nothing of it was run"});
  expect_has(tampered("metadata.json", ""), {"metadata.json"});
  expect_has(
      tampered("metadata.json", R"({"name":"norm","id":"_norm_cpu","version":1,"license":"mit","python-depends":[],)"
                                R"("backend":{"type":"cpu"}})"),
      {"a digest of the files", "skip-digest"});
  write_file(kernel.folder / "more.so", "x");
  expect_has(refused({.ref = "acme/norm@v1"}), {"Unknown file: more.so"});
  const HubKernel unchecked = get({.ref = "acme/norm@v1", .trust = {.skip_digest = {"acme/norm"}}});
  EXPECT_FALSE(unchecked.digest_checked);
  fs::remove(kernel.folder / "more.so");
  EXPECT_EQ(refused({.ref = "acme/norm@v1"}), "no error");
}

TEST_F(GetKernel, ASignatureWhereThePolicyWantsOne) {
  static const test_support::SigstoreWorld world;
  const fs::path root = cache.write("trusted_root.json", world.root().dump());
  setenv("HOTSWAP_TRUST_ROOT", root.c_str(), 1);
  const KernelRequest wanted{.ref = "acme/norm@v1",
                             .trust = {.require_signature = {"acme/*"}},
                             .signers = {{.name = "ours",
                                          .issuer = "https://issuer.test",
                                          .repository = "",
                                          .builders = {"https://git.test/org/kernels/build.yaml@refs/heads/main"},
                                          .identities = {}}}};
  const fs::path source = served.path() / "kernels/acme/norm/v2/build" / kCpu;
  write_file(source / "metadata.json.sigstore", world.bundle({.artifact = read_file(source / "metadata.json")}).dump());
  expect_has(refused(wanted), {"SignatureBundleMissing", "require-signature"});
  KernelRequest second = wanted;
  second.ref = "acme/norm@v2";
  const HubKernel kernel = get(second);
  EXPECT_EQ(kernel.signer, "ours");
  second.signers = {};
  expect_has(refused(second), {"SignatureVerificationFailure"});  // kernels-community's would do
  second.signers = wanted.signers;
  for (const char* file : {"metadata.json", "metadata.json.sigstore"}) {
    const fs::path blob = fs::canonical(kernel.folder / file);
    const std::string good = read_file(blob);
    std::string bad = good;
    const size_t at = std::string(file) == "metadata.json" ? bad.find("mit") : bad.find("\"signature\"") + 16;
    bad[at] = bad[at] == 'A' ? 'B' : 'A';
    write_file(blob, bad);
    expect_has(refused(second), {"Signature"});
    write_file(blob, good);
  }
  EXPECT_EQ(refused(second), "no error");
  unsetenv("HOTSWAP_TRUST_ROOT");
}

TEST_F(GetKernel, LocksPinCommitAndHash) {
  Hub hub(options());
  Lockfile lock = lock_dependencies(hub, {{.repo = "acme/norm", .version = 1}}, Lockfile::Form::kVariants);
  const LockedKernel first = lock.kernels.at(0);
  add("acme/norm", "v1", R"(,"upstream":"https://git.test/a")");  // the branch moves on
  fs::remove_all(cache.path());
  EXPECT_NE(get({.ref = "acme/norm@v1"}).place.commit, first.commit);
  // A commit that the server no longer has: the lock's word is what is asked for.
  expect_has(refused({.ref = "acme/norm@v1", .lock = &lock}), {first.commit});
  const fs::path v1 = served.path() / "kernels/acme/norm/v1";
  lock.kernels[0].commit = commit("acme/norm", "v1");
  expect_has(refused({.ref = "acme/norm@v1", .lock = &lock}), {"as they were locked", "nothing of it was run"});
  lock.kernels[0].variants = {};
  for (const auto& [variant, hash] : first.variants) lock.kernels[0].variants["other"] = hash;
  expect_has(refused({.ref = "acme/norm@v1", .lock = &lock}), {"lock anew"});
  expect_has(refused({.ref = "acme/norm@" + std::string(40, 'b'), .lock = &lock}), {"locked is commit"});
  expect_has(refused({.ref = {"acme/norm", {.version = 1, .locked = true}}}), {"Kernel `acme/norm` is not locked"});
  expect_has(refused({.ref = {"acme/more", {.version = 1, .trust = true, .locked = true}}, .lock = &lock}),
             {"acme/more"});

  Lockfile dependencies{.form = Lockfile::Form::kDependencies, .kernels = {}};
  dependencies.kernels.push_back({.dependency = {.repo = "acme/norm", .version = 2},
                                  .commit = lock.kernels[0].commit,
                                  .variants = {},
                                  .hash = "",
                                  .path = ""});
  EXPECT_EQ(get({.ref = "acme/norm@v2", .lock = &dependencies}).place.commit, lock.kernels[0].commit);
  EXPECT_EQ(get({.ref = "acme/norm", .lock = &dependencies}).place.commit, lock.kernels[0].commit);
  expect_has(refused({.ref = "acme/norm@v1", .lock = &dependencies}), {"locked is acme/norm@v2"});
}

TEST_F(GetKernel, AGoodLockIsKeptWhereverTheBranchGoes) {
  redirect("acme/old", "v1", "acme/norm", "v2");
  Hub hub(options());
  Lockfile lock = lock_dependencies(hub, {{.repo = "acme/norm", .version = 1}}, Lockfile::Form::kVariants);
  const LockedKernel first = lock.kernels.at(0);
  EXPECT_EQ(get({.ref = {"acme/norm", {.locked = true}}, .lock = &lock}).place.commit, first.commit);
  EXPECT_EQ(get({.ref = "acme/old", .lock = &lock}).place.commit, first.commit) << "the destination's lock";
  HubOptions plain = options();
  plain.symlinks = false;
  TempFolder other;
  plain.kernels_cache = other.path();
  Hub without_links(plain);
  EXPECT_EQ(get_kernel(without_links, {.ref = "acme/norm", .system = cpu(), .lock = &lock}).place.commit, first.commit);
}

TEST(Project, ThreeFiles) {
  TempFolder folder;
  expect_has(message_of([&] { Project::read(folder.path()); }), {"hotswap.toml, pyproject.toml or kernels.lock"});
  folder.write("pyproject.toml", "[tool.kernels.dependencies]\n\"acme/norm\" = 3\n");
  EXPECT_EQ(Project::read(folder.path()).named("acme/norm:RMSNorm").str(), "acme/norm@v3:RMSNorm");
  folder.write("hotswap.toml",
               "[dependencies]\n\"acme/norm\" = \">=1,<3\"\n[trust]\nallow = [\"acme/*\"]\n"
               "[[signer]]\nname = \"us\"\nissuer = \"i\"\nidentities = [\"x\"]\n");
  const Project project = Project::read(folder.path());
  EXPECT_EQ(project.named("acme/norm").str(), "acme/norm@>=1,<3");
  EXPECT_EQ(project.named("acme/norm@v2").str(), "acme/norm@v2");
  EXPECT_EQ(project.named("acme/other").str(), "acme/other");
  EXPECT_TRUE(project.named({"acme/norm", {.trust = true}}).trust());
  EXPECT_EQ(project.trust.allow, std::vector<std::string>{"acme/*"});
  EXPECT_EQ(project.signers.at(0).name, "us");
  EXPECT_EQ(project.lock_or_null(), nullptr);
  folder.write("kernels.lock", "[]");
  EXPECT_NE(Project::read(folder.path()).lock_or_null(), nullptr);
  folder.write("hotswap.toml", "[trusted]\n");
  expect_has(message_of([&] { Project::read(folder.path()); }), {"trusted"});
  unsetenv("HOTSWAP_PROJECT");
  EXPECT_TRUE(Project::current().folder.empty());
  setenv("HOTSWAP_PROJECT", "/no/such", 1);
  expect_has(message_of([] { Project::current(); }), {"/no/such", "no such folder"});
  unsetenv("HOTSWAP_PROJECT");
}

}  // namespace
}  // namespace hotswap
