#include "hotswap/hub/lock_kernels.h"

#include "hotswap/base/test_support.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

class LockKernels : public testing::Test {
 protected:
  LockKernels() : server({.folder = served.path(), .rescan_s = 0}) {
    for (const char* version : {"v1", "v2"}) {
      for (const char* variant : {"torch-cpu", "torch-cuda"}) {
        served.write(cat("kernels/acme/norm/", version, "/build/", variant, "/x.py"), version);
      }
    }
    served.write("kernels/acme/norm/main/README.md", "# norm\n");
    served.write("kernels/acme/old/main/kernel-status.toml", "kind = \"redirect\"\ndestination = \"acme/norm\"\n");
    served.write("kernels/acme/branch/v1/kernel-status.toml",
                 "kind = \"redirect\"\ndestination = \"acme/norm\"\nrevision = \"v2\"\n");
    server.start();
  }
  HubOptions options() const {
    HubOptions o{.endpoint = server.url(), .cache = cache.path(), .kernels_cache = cache.path()};
    o.progress = false;
    return o;
  }
  Lockfile lock(const std::vector<Dependency>& dependencies, Lockfile::Form form = Lockfile::Form::kVariants) const {
    Hub hub(options());
    return lock_dependencies(hub, dependencies, form);
  }
  std::string commit(const std::string& revision) const {
    Hub hub(options());
    return hub.client().commit({RepoType::kKernel, "acme/norm"}, revision);
  }
  TempFolder served, cache;
  HubServer server;
};

TEST_F(LockKernels, CommitAndEveryVariant) {
  const Lockfile locked = lock({{.repo = "acme/norm", .version = 1}});
  ASSERT_EQ(locked.kernels.size(), 1u);
  EXPECT_EQ(locked.kernels[0].dependency.str(), "acme/norm");
  EXPECT_EQ(locked.kernels[0].commit, commit("v1"));
  ASSERT_EQ(locked.kernels[0].variants.size(), 2u);
  EXPECT_EQ(locked.kernels[0].variants.at("torch-cpu"), locked.kernels[0].variants.at("torch-cuda"));
  EXPECT_NE(locked.kernels[0].variants, lock({{.repo = "acme/norm", .version = 2}}).kernels[0].variants);
  EXPECT_EQ(Lockfile::parse(locked.text(), "again").text(), locked.text());
}

TEST_F(LockKernels, EveryWayToNameOne) {
  const auto form = Lockfile::Form::kDependencies;
  const Lockfile locked = lock({{.repo = "acme/norm", .version = 1},
                                {.repo = "acme/norm", .revision = "v2"},
                                {.repo = "acme/norm", .revision = ">=1,<3"},
                                {.repo = "acme/norm", .revision = commit("v1")}},
                               form);
  std::vector<std::string> commits;
  for (const LockedKernel& kernel : locked.kernels) commits.push_back(kernel.commit);
  EXPECT_EQ(commits, (std::vector{commit("v1"), commit("v2"), commit("v2"), commit("v1")}));
  EXPECT_TRUE(locked.kernels[0].variants.empty());
  const Lockfile again = Lockfile::parse(locked.text(), "again");
  EXPECT_EQ(again.form, form);
  EXPECT_EQ(again.kernels.size(), 4u);
}

// Python's kernels looks for a kernel's own dependencies in the lock of the project.
TEST_F(LockKernels, WhatAKernelDependsOnIsLockedWithIt) {
  const auto depending = [&](const std::string& repo, const std::string& on) {
    served.write(cat("kernels/acme/", repo, "/v1/build/torch-cpu/metadata.json"),
                 cat(R"({"name":")", repo, R"(","id":"_x_)", repo, R"(","version":1,"license":"mit",)",
                     R"("python-depends":[],"kernel-depends":[)", on, R"(],"backend":{"type":"cpu"}})"));
  };
  depending("first", R"({"repo-id":"acme/second","version":1},{"repo-id":"acme/norm","revision":"v2"})");
  depending("second", R"({"repo-id":"acme/first","version":1})");  // a circle
  const Lockfile locked = lock({{.repo = "acme/first", .version = 1}}, Lockfile::Form::kDependencies);
  std::vector<std::string> names;
  for (const LockedKernel& kernel : locked.kernels) names.push_back(kernel.dependency.str());
  EXPECT_EQ(names, (std::vector<std::string>{"acme/first@v1", "acme/second@v1", "acme/norm@v2"}));
  EXPECT_EQ(locked.kernels[2].commit, commit("v2"));
  EXPECT_EQ(lock({{.repo = "acme/first", .version = 1}}).kernels.size(), 1u) << "the older form has no such thing";
}

// As Python's: the destination's version, by main's word; and where only the version redirects, by the version's.
TEST_F(LockKernels, RedirectsAreLockedByWhereTheyLead) {
  const Lockfile locked = lock({{.repo = "acme/old", .version = 1}});
  EXPECT_EQ(locked.kernels[0].dependency.repo, "acme/norm");
  EXPECT_EQ(locked.kernels[0].commit, commit("v1"));
  const Lockfile by_branch = lock({{.repo = "acme/branch", .version = 1}});
  EXPECT_EQ(by_branch.kernels[0].dependency.repo, "acme/norm");
  EXPECT_EQ(by_branch.kernels[0].commit, commit("v2"));
  expect_has(message_of([&] {
               lock({{.repo = "acme/norm", .version = 1}, {.repo = "acme/old", .version = 1}});
             }),
             {"acme/norm twice", "acme/old@v1"});
  expect_has(message_of([&] { lock({{.repo = "acme/norm", .version = 9}}); }), {"available versions: 1, 2"});
  expect_has(message_of([&] { lock({{.repo = "acme/none", .version = 1}}); }), {"acme/none"});
}

}  // namespace
}  // namespace hotswap
