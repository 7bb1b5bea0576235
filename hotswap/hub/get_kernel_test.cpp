// From a name on a served Hub to a verified folder: what is asked, in which order, and what is refused before what.
#include "hotswap/hub/get_kernel.h"

#include <stdlib.h>

#include "hotswap/hub/project.h"
#include "hotswap/hub/test_served_norm.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::kCpu;
using test_support::kCuda;
using test_support::message_of;
using test_support::TempFolder;

class GetKernel : public test_support::ServedNorm {};

TEST_F(GetKernel, AskedInThisOrderAndOnlyTheVariantThatFits) {
  const HubKernel kernel = get({.ref = "acme/norm@v2"});
  EXPECT_EQ(kernel.variant, kCpu);
  EXPECT_EQ(kernel.folder, cache.path() / "kernels--acme--norm/snapshots" / kernel.location.commit / "build" / kCpu);
  EXPECT_TRUE(fs::exists(kernel.folder / "_norm_cpu.abi3.so"));
  EXPECT_FALSE(fs::exists(kernel.folder.parent_path() / kCuda));
  EXPECT_TRUE(kernel.digest_checked);
  EXPECT_EQ(kernel.location.asked, "v2");
  const auto lines_asked = asked();
  ASSERT_EQ(lines_asked.size(), 5u) << join(lines_asked, "\n");  // an empty file is not asked for
  EXPECT_EQ(kernel.location.str(), "acme/norm@" + commit("acme/norm", "v2"));
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
    EXPECT_EQ(again.location.commit, first.location.commit);
  }
  EXPECT_EQ(asked().size(), before);
  // Another variant of the same commit: its files, and nothing about names.
  get({.ref = "acme/norm@v1", .system = gpu({9, 0})});
  EXPECT_EQ(asked_with("/api/"), 3u);
  EXPECT_EQ(asked().size(), before + 2) << "its metadata by HEAD and GET; the bytes of its library are here already";
  EXPECT_EQ(asked_with(kCuda), 2u);
}

TEST_F(GetKernel, AVersionThatCameOutSince) {
  get({.ref = "acme/norm@v1"});
  expect_has(refused({.ref = "acme/norm@v11"}), {"Version 11 not found"});
  add("acme/norm", "v11");
  EXPECT_EQ(get({.ref = "acme/norm@v11"}).location.commit, commit("acme/norm", "v11"));
  expect_has(refused({.ref = "acme/norm@>=12"}), {"fits '>=12'", "v11"});
  add("acme/norm", "v12");
  EXPECT_EQ(get({.ref = "acme/norm@>=12"}).location.commit, commit("acme/norm", "v12"));
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
    const HubCache store(cache.path(), true);
    EXPECT_EQ(store.read_ref({RepoType::kKernel, "acme/norm"}, ref), commit("acme/norm", ref)) << "for offline";
    EXPECT_FALSE(fs::exists(cache.path() / "kernels--acme--norm/refs" / ref)) << "nothing of it is here yet";
  }
  get({.ref = "acme/norm@v2"});
  EXPECT_EQ(read_file(cache.path() / "kernels--acme--norm/refs/v2"), v2);
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

  served.write("trusted_publishers.txt", "acme\nevil\n");
  const size_t before = asked_with("/organizations/");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get({.ref = "evil/norm"}).variant, kCpu);
  EXPECT_EQ(asked_with("/organizations/"), before + 1) << "a no is asked again, a yes is not";
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
  EXPECT_EQ(kernel.location.str(), "acme/norm@" + commit("acme/norm", "v2"));
  EXPECT_EQ(kernel.location.led_from, "acme/older");
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
  EXPECT_EQ(kernel.location.choice.trace.size(), 4u);
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

// As kernels before 0.14 cached them, when kernels were models.
TEST_F(GetKernel, OfflineTheLayoutOfOlderPythons) {
  const auto put = [&](const char* folder, const char* ref, char digit) {
    const std::string sha(40, digit);
    const fs::path repo = cache.path() / folder;
    fs::create_directories(repo / "refs");
    write_file(repo / "refs" / ref, sha);
    fs::create_directories(repo / "snapshots" / sha);
    fs::copy(served.path() / "kernels/acme/norm/v1/build", repo / "snapshots" / sha / "build",
             fs::copy_options::recursive);
    return repo / "snapshots" / sha / "build" / kCpu;
  };
  const fs::path one = put("models--my--norm", "v1", 'a'), main = put("models--my--norm", "main", 'b');
  const fs::path two = put("kernels--my--norm", "v2", 'c');
  EXPECT_EQ(get({.ref = "my/norm"}, true).folder, one);
  EXPECT_EQ(get({.ref = "my/norm@main"}, true).folder, main);
  EXPECT_EQ(get({.ref = "my/norm@" + std::string(40, 'b')}, true).folder, main);
  EXPECT_EQ(get({.ref = "my/norm@v2"}, true).folder, two);
  EXPECT_EQ(get({.ref = "my/norm@>=1"}, true).folder, two) << "what kernels-- can answer, it does";
  fs::remove_all(cache.path() / "kernels--my--norm");
  EXPECT_EQ(get({.ref = "my/norm@>=1"}, true).folder, one);
  expect_has(refused({.ref = "my/norm@v2"}, true), {"my/norm", "HF_HUB_OFFLINE"});
  Lockfile lock{.form = Lockfile::Form::kDependencies, .kernels = {}};
  lock.kernels.push_back({.dependency = {.repo = "my/norm", .version = 1},
                          .commit = std::string(40, 'a'),
                          .variants = {},
                          .hash = "",
                          .path = ""});
  EXPECT_EQ(get({.ref = "my/norm", .lock = &lock}, true).folder, one);
  EXPECT_TRUE(asked().empty());
  expect_has(refused({.ref = {"my/norm", {.version = 1, .trust = true}}}), {"my/norm"});
  EXPECT_EQ(asked_with("/models/"), 0u) << "online it is a kernel, or nothing";
}

// What goes on, but should be known, is said on stderr.
TEST_F(GetKernel, WhatIsWarnedOf) {
  const auto said = [&](const KernelRequest& request, bool offline = false) {
    testing::internal::CaptureStderr();
    const std::string text = refused(request, offline);
    return testing::internal::GetCapturedStderr() + (text == "no error" ? "" : text);
  };
  EXPECT_EQ(said({.ref = "acme/norm@v10"}), "");
  expect_has(said({.ref = "acme/norm@v1"}), {"You are using version 1 of 'acme/norm', but version 10 is available."});
  expect_has(said({.ref = "acme/norm@v10"}, true), {"offline: the publisher of 'acme/norm' is not checked"});
  redirect("acme/old", "v1", "acme/norm", "v10");
  expect_has(said({.ref = "acme/old"}), {"'acme/old' redirected to 'acme/norm'"});
  served.write("kernels/acme/odd/v1/build/torch211-cpu-riscv/x.so", "x");
  expect_has(said({.ref = "acme/odd"}), {"acme/odd contains an invalid build variant: torch211-cpu-riscv"});
  const std::string commit(40, 'a');
  add("acme/dirty", "v1",
      cat(R"(,"provenance":{"kernel-builder":{"version":"1","commit":")", commit,
          R"(","dirty":true},"kernel":{"commit":")", commit, R"(","dirty":true}})"));
  expect_has(said({.ref = "acme/dirty"}),
             {"acme/dirty: the kernel source had changes", "the kernel-builder had changes"});
  expect_has(said({.ref = "acme/norm@v10", .trust = {.skip_digest = {"acme/*"}}}), {"its files are not checked"});
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
