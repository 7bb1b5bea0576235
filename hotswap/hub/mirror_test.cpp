// A Hub mirrored into a folder that is served: the same commits, lists and locks, and nothing that is not right.
#include "hotswap/hub/mirror.h"

#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::noise;
using test_support::TempFolder;

const Repo kNorm{RepoType::kKernel, "acme/norm"}, kMirrored{RepoType::kModel, "acme/tiny"};
constexpr const char* kVariant = "torch-stable-abi210-cpu-x86_64-linux";

class MirrorTest : public testing::Test {
 protected:
  // The source calls files large from 1000 bytes on, the mirror from 10 MiB: its commits must be the source's all the
  // same.
  MirrorTest()
      : there({.folder = source.path(), .large_from = 1000, .rescan_s = 0}),
        here({.folder = folder.path(), .rescan_s = 0}) {
    build("v1", "first");
    build("v2", "second");
    fs::create_directory_symlink("v2", source / "kernels/acme/norm/main");
    source.write("kernels/acme/norm/v1.0.0/README.md", "# a tag\n");
    source.write("models/acme/tiny/main/model.safetensors", noise(5000));
    source.write("models/acme/tiny/main/config.json", "{}");
    source.write("trusted_publishers.txt", "acme\n");
    there.start();
    here.start();
  }
  void build(const std::string& version, const std::string& content) const {
    const std::string variant = cat("kernels/acme/norm/", version, "/build/", kVariant, "/");
    source.write(variant + "metadata.json",
                 R"({"name":"norm","id":"_norm_x","version":1,"license":"mit","python-depends":[],)"
                 R"("backend":{"type":"cpu"}})");
    source.write(variant + "_norm_x.abi3.so", content + noise(2000));
    source.write(variant + "__init__.py", "");
    write_digests(source / variant);
  }
  static HubOptions client(const HubServer& server, const TempFolder& cache) {
    return {
        .endpoint = server.url(), .cache = cache.path(), .kernels_cache = cache.path(), .progress = false, .ttl_s = 0};
  }
  std::vector<MirroredCommit> mirror(const MirrorWish& wish, const Project& project = {}) const {
    return mirror_repo(client(there, cache), wish, folder.path(), project);
  }
  TempFolder source, folder, cache, other_cache;
  HubServer there, here;
};

TEST_F(MirrorTest, TheSameCommitsNamesListsAndLocks) {
  const auto done = mirror({.repo = kNorm});
  EXPECT_EQ(done.size(), 3u) << "v1, v2 which is main, and the tag";
  EXPECT_EQ(mirror({.repo = kMirrored}).at(0).names, (std::vector<std::string>{"main"}));
  Hub old(client(there, cache)), fresh(client(here, other_cache));
  for (const Repo& repo : {kNorm, kMirrored}) {
    const RepoRefs want = old.refs(repo), got = fresh.refs(repo);
    for (const auto& [a, b] : {std::pair(&want.branches, &got.branches), std::pair(&want.tags, &got.tags)}) {
      ASSERT_EQ(a->size(), b->size());
      for (size_t i = 0; i < a->size(); ++i) {
        EXPECT_EQ(a->at(i).name, b->at(i).name);
        EXPECT_EQ(a->at(i).commit, b->at(i).commit);
        EXPECT_EQ(old.tree(repo, a->at(i).commit), fresh.tree(repo, b->at(i).commit)) << "as large files, too";
      }
    }
    EXPECT_TRUE(fs::exists(fresh.snapshot(repo, "main")));
  }
  const std::vector<Dependency> one = {{.repo = "acme/norm", .version = 1}};
  for (const auto form : {Lockfile::Form::kVariants, Lockfile::Form::kDependencies}) {
    EXPECT_EQ(lock_dependencies(old, one, form).text(), lock_dependencies(fresh, one, form).text());
  }
  EXPECT_TRUE(fresh.publisher(kNorm).trusted) << "as the source has it";

  const int64_t sent = there.bytes_sent();
  for (const MirroredCommit& commit : mirror({.repo = kNorm})) EXPECT_TRUE(commit.was_here);
  EXPECT_EQ(there.bytes_sent(), sent) << "nothing is fetched twice";
  EXPECT_FALSE(fs::exists(folder / ".mirror/kernels--acme--norm"));
}

TEST_F(MirrorTest, ABranchThatMovesAndTheCommitThatStays) {
  const std::string first = mirror({.repo = kNorm, .revision = "v1"}).at(0).commit;
  build("v1", "changed");
  const std::string second = mirror({.repo = kNorm, .revision = "v1"}).at(0).commit;
  Hub fresh(client(here, other_cache));
  EXPECT_NE(first, second);
  EXPECT_EQ(fresh.commit(kNorm, "v1"), second);
  EXPECT_EQ(fresh.client().commit(kNorm, first), first) << "who has locked it still finds it";
  // Files that are changed here are no longer that commit.
  const fs::path file = folder / ("kernels/acme/norm/.commits/" + first) / "build" / kVariant / "__init__.py";
  fs::remove(file);
  write_file(file, "changed = True\n");
  EXPECT_NE(message_of([&] { fresh.client().commit(kNorm, first); }), "no error");
  EXPECT_EQ(fresh.commit(kNorm, "v1"), second);
}

TEST_F(MirrorTest, WhatAProjectHasLocked) {
  Hub old(client(there, cache));
  Project project;
  project.lock = lock_dependencies(old, {{.repo = "acme/norm", .version = 1}}, Lockfile::Form::kVariants);
  build("v1", "moved on");
  expect_has(message_of([&] { mirror(locked_wishes(project).at(0), project); }), {project.lock->kernels[0].commit});
  build("v1", "first");
  const auto done = mirror(locked_wishes(project).at(0), project);
  EXPECT_EQ(done.at(0).commit, project.lock->kernels[0].commit);
  EXPECT_TRUE(done.at(0).names.empty()) << "this form says no version";

  TempFolder elsewhere;
  project.lock->kernels[0].variants[kVariant] = "sha256-" + std::string(64, 'a');
  const auto again = [&] {
    mirror_repo(client(there, cache), locked_wishes(project).at(0), elsewhere.path(), project);
  };
  expect_has(message_of(again), {"as they were locked"});
  EXPECT_FALSE(fs::exists(elsewhere / ("kernels/acme/norm/.commits/" + done.at(0).commit)));
}

TEST_F(MirrorTest, APublisherThatTheHubDoesNotTrustStaysOne) {
  source.write("trusted_publishers.txt", "others\n");
  mirror({.repo = kNorm, .revision = "v1"});
  Hub fresh(client(here, other_cache));
  EXPECT_FALSE(fresh.publisher(kNorm).trusted);
  EXPECT_EQ(fresh.commit(kNorm, "v1").size(), 40u);
}

TEST_F(MirrorTest, WhatIsNotRightDoesNotCome) {
  Project project;
  project.trust.require_signature = {"acme/*"};
  expect_has(message_of([&] { mirror({.repo = kNorm, .revision = "v1"}, project); }), {"SignatureBundleMissing"});
  project = {};
  project.trust.deny = {"acme/norm"};
  expect_has(message_of([&] { mirror({.repo = kNorm}, project); }), {"[trust] deny names"});
  source.write(cat("kernels/acme/norm/v1/build/", kVariant, "/__init__.py"), "other");
  expect_has(message_of([&] { mirror({.repo = kNorm, .revision = "v1"}); }), {"DigestVerificationFailure"});
  expect_has(message_of([&] { mirror({.repo = {RepoType::kModel, "tiny"}}); }), {"ORG/NAME"});
  EXPECT_NE(message_of([&] { mirror({.repo = {RepoType::kModel, "acme/none"}}); }), "no error");
  EXPECT_FALSE(fs::exists(folder / "kernels/acme/norm/v1"));
}

}  // namespace
}  // namespace hotswap
