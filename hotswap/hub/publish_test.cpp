// Packages that are published: which names lead to them, which commits stay, and what is refused.
#include "hotswap/hub/publish.h"

#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/install.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/serve/served_repos.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

const Repo kPublished{RepoType::kKernel, "acme/norm"};

class Publish : public testing::Test {
 protected:
  void SetUp() override { build("first"); }
  void build(const std::string& content) const {
    const std::string variant = "build/torch-stable-abi210-cpu-x86_64-linux/";
    package.write(variant + "metadata.json",
                  R"({"name":"norm","id":"_norm_x","version":3,"license":"mit","python-depends":[],)"
                  R"("backend":{"type":"cpu"}})");
    package.write(variant + "_norm_x.abi3.so", content);
    package.write(variant + "__init__.py", "");
    write_digests(package / variant);
  }
  Published publish(const std::string& tag = "") const {
    return publish_package(package.path(), folder.path(), "acme/norm", tag);
  }
  std::string commit_at(const std::string& revision) const {
    ServedRepos repos(folder.path(), 1, 0);
    const auto found = repos.find(kPublished, revision);
    return found == nullptr ? "none" : found->commit;
  }
  TempFolder package, folder, cache;
};

TEST_F(Publish, BranchesTagAndOldCommits) {
  const Published first = publish("v3.0.0");
  EXPECT_EQ(first.refs, (std::vector<std::string>{"v3.0.0", "v3", "main"}));
  for (const char* name : {"main", "v3", "v3.0.0"}) EXPECT_EQ(commit_at(name), first.commit);
  EXPECT_EQ(commit_at(first.commit), first.commit);
  EXPECT_EQ(install_package(HubCache(cache.path(), true), package.path(), "acme/norm").commit, first.commit)
      << "the same files are the same commit in the cache";

  build("second");
  const Published second = publish();
  EXPECT_NE(second.commit, first.commit);
  for (const char* name : {"main", "v3"}) EXPECT_EQ(commit_at(name), second.commit);
  EXPECT_EQ(commit_at("v3.0.0"), first.commit) << "a tag stays";
  build("third");
  publish();
  EXPECT_EQ(commit_at(second.commit), second.commit) << "no name leads there any more, and a lock still does";
  EXPECT_EQ(ServedRepos(folder.path(), 1, 0).revisions(kPublished).size(), 3u);
}

TEST_F(Publish, WhatTheSourceBecomesIsNotServed) {
  const std::string commit = publish().commit;
  package.write("build/torch-stable-abi210-cpu-x86_64-linux/.x.swp", "an editor's");
  package.write("build/torch-stable-abi210-cpu-x86_64-linux/_norm_x.abi3.so", "edited");
  EXPECT_EQ(commit_at("main"), commit);
  expect_has(message_of([&] { publish(); }), {"_norm_x.abi3.so"});
  EXPECT_EQ(commit_at("main"), commit);
}

TEST_F(Publish, AgainIsNothingNew) {
  const std::string commit = publish("v3.0.0").commit;
  EXPECT_EQ(publish("v3.0.0").commit, commit);
  size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(folder / "kernels/acme/norm/.commits"))
    entries += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(entries, 1u) << "and nothing temporary is left";
}

TEST_F(Publish, WhatAKilledOneLeftGoes) {
  folder.write("kernels/acme/norm/.commits/.abc.01234567.tmp/build/x", "half");
  fs::create_directory_symlink("nowhere", folder / "kernels/acme/norm/.main.01234567.tmp");
  publish();
  EXPECT_FALSE(fs::exists(folder / "kernels/acme/norm/.commits/.abc.01234567.tmp"));
  EXPECT_FALSE(fs::is_symlink(folder / "kernels/acme/norm/.main.01234567.tmp"));
}

TEST_F(Publish, Refusals) {
  const std::string commit = publish("v3.0.0").commit;
  build("second");
  expect_has(message_of([&] { publish("v3.0.0"); }), {"a tag that is new", commit, "next version"});
  EXPECT_EQ(commit_at("main"), commit) << "nothing was changed";
  expect_has(message_of([&] { publish("latest"); }), {"a tag such as v1.2.0", "latest"});
  expect_has(message_of([&] { publish_package(package.path(), folder.path(), "norm", ""); }), {"ORG/NAME"});
  expect_has(message_of([&] { publish_package(cache.path(), folder.path(), "acme/norm", ""); }), {"a built package"});
  fs::create_directories(folder / "kernels/acme/other/main");
  expect_has(message_of([&] { publish_package(package.path(), folder.path(), "acme/other", ""); }),
             {"other/main", "move it away"});
}

}  // namespace
}  // namespace hotswap
