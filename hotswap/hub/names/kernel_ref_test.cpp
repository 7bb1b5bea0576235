#include "hotswap/hub/names/kernel_ref.h"

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

TEST(KernelRef, ReadsEveryDocumentedForm) {
  const KernelRef plain("org/repo");
  EXPECT_EQ(plain.repo(), "org/repo");
  EXPECT_EQ(plain.layer(), "");
  EXPECT_FALSE(plain.version());
  const KernelRef layered("org/repo:Layer");
  EXPECT_EQ(layered.repo() + " " + layered.layer(), "org/repo Layer");
  const KernelRef versioned("org/repo@v3:Layer");
  EXPECT_EQ(versioned.version(), 3);
  EXPECT_EQ(versioned.revision(), "");
  EXPECT_EQ(KernelRef("org/repo@v1.2.3:f").revision(), "v1.2.3");
  EXPECT_EQ(KernelRef("org/repo@v01").revision(), "v01");  // no branch is called so
  EXPECT_EQ(KernelRef("org/repo@refs/pr/1:L").revision(), "refs/pr/1");
  EXPECT_EQ(KernelRef("kernels-community/flash-attn2@>=2.0,<3.0").revision(), ">=2.0,<3.0");
  const KernelRef options("acme/mlp:SwiGLUMLP", {.version = 1, .trust = true});
  EXPECT_EQ(options.version(), 1);
  EXPECT_TRUE(options.trust());
  EXPECT_EQ(options.str(), "acme/mlp@v1:SwiGLUMLP");
  const KernelRef path("/opt/my kernels:old/norm:RMSNorm");
  EXPECT_EQ(path.path() + " " + path.layer(), "/opt/my kernels:old/norm RMSNorm");
  EXPECT_EQ(KernelRef("/opt/norm").path(), "/opt/norm");
  EXPECT_TRUE(KernelRef("").stock());
  for (const char* text : {"org/repo", "org/repo@v3:Layer", "a.b/c_d@main:L", "/opt/norm:L", ""}) {
    EXPECT_EQ(KernelRef(text).str(), text);
  }
}

TEST(KernelRef, RefusesTheRest) {
  for (const char* bad : {"repo", "org//repo", "org/model:a:b", "org:model", "org/repo@", "org/repo@:L",
                          "org/repo:", "org/repo:not-a-name", "-org/repo", "org/re..po", "org/repo--x", "org/repo.git",
                          "or g/repo", "org/repo/x", "./norm:L", "org/../x", "org/"}) {
    expect_has(message_of([&] { KernelRef ref(bad); }), {"org/repo[@revision][:Layer]", bad});
  }
  expect_has(message_of([] { KernelRef("norm:RMSNorm"); }), {"a bundled package is hotswap/norm"});
  expect_has(message_of([] { KernelRef("a/b", {.version = 1, .revision = "main"}); }), {"only one of"});
  expect_has(message_of([] { KernelRef("a/b@main", {.version = 1}); }), {"only one of"});
  expect_has(message_of([] { KernelRef("a/b", {.version = -1}); }), {"negative"});
}

TEST(KernelRef, WhatFollowsTheAt) {
  EXPECT_TRUE(KernelRef("a/b@>=2.0,<3.0:L").is_specifier());
  EXPECT_TRUE(KernelRef("a/b@~=1.4").is_specifier());
  EXPECT_FALSE(KernelRef("a/b@v1").is_specifier());
  EXPECT_FALSE(KernelRef("a/b@feature/x").is_specifier());
  EXPECT_EQ(KernelRef("a/b@531ae67953f9a7b9b1c1b7c0a5b9e3a6c2a8d1e0").revision().size(), 40u);
  expect_has(message_of([] { KernelRef("a/b@>=two"); }), {"versions as '>=2.0,<3.0'", "'two' is no version"});
  expect_has(message_of([] { KernelRef("a/b", {.version = {}, .revision = "~x"}); }), {"versions as"});
  for (const char* bad : {"a..b", "a b", "a~1", ".hidden", "x/.y", "x//y", "/x", "x/", "x.lock", "x.", "@", "a@{1}",
                          "a^", "a?", "a*", "a[", "a\\b"}) {
    expect_has(message_of([&] { KernelRef ref(cat("a/b@", bad)); }), {"a version (v2)", "can name no branch"});
  }
}

TEST(KernelRef, RepositoriesByTheHubsRules) {
  EXPECT_TRUE(is_repo_id("kernels-community/flash-attn2"));
  EXPECT_TRUE(is_repo_id(cat("a/", std::string(94, 'b'))));
  EXPECT_FALSE(is_repo_id(cat("a/", std::string(95, 'b'))));
  EXPECT_TRUE(same_repo("a/liger_kernels", "a/liger-kernels"));
  EXPECT_FALSE(same_repo("a/b", "a/c"));
}

}  // namespace
}  // namespace hotswap
