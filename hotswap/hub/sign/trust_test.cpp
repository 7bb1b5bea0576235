#include "hotswap/hub/sign/trust.h"

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

TEST(Trust, EveryDecision) {
  const TrustPolicy open{.allow_all_kernels = true, .allow = {}, .deny = {}, .require_signature = {}};
  const TrustPolicy lists{.allow_all_kernels = false,
                          .allow = {"acme/mlp", "good/*"},
                          .deny = {"good/evil", "bad/*"},
                          .require_signature = {}};
  TrustPolicy open_but = open;
  open_but.deny = {"a/b"};
  struct Row {
    const char* what;
    TrustPolicy policy;
    TrustQuestion question;
    bool asks, allowed;
    const char* reason;
  };
  const Row table[] = {
      {"trusted publisher", {}, {.repo = "a/b", .publisher = Standing::kTrusted}, true, true, "trusted publisher"},
      {"untrusted publisher",
       {},
       {.repo = "a/b", .publisher = Standing::kUntrusted},
       true,
       false,
       "'a/b' is not from a trusted publisher"},
      {"the request failed",
       {},
       {.repo = "a/b", .publisher = Standing::kNoAnswer, .no_answer = "404"},
       true,
       false,
       "could not verify publisher trust status of 'a': 404"},
      {"offline", {}, {.repo = "a/b", .publisher = Standing::kOffline}, true, true, "offline"},
      {"trusted entry", {}, {.repo = "a/b", .entry_trust = true}, false, true, "entry"},
      {"all allowed", open, {.repo = "a/b"}, false, true, "allow_all_kernels"},
      {"own folder", {}, {.repo = "", .local = true}, false, true, "folder"},
      {"own folder in a denied name's place", lists, {.repo = "bad/x", .local = true}, false, true, "folder"},
      {"listed", lists, {.repo = "acme/mlp"}, false, true, "allowed"},
      {"listed in another case", lists, {.repo = "Acme/MLP"}, false, true, "allowed"},
      {"not listed",
       lists,
       {.repo = "acme/other", .publisher = Standing::kUntrusted},
       true,
       false,
       "not from a trusted publisher"},
      {"not listed, trusted",
       lists,
       {.repo = "acme/other", .publisher = Standing::kTrusted},
       true,
       true,
       "trusted publisher"},
      {"an organisation listed", lists, {.repo = "good/x"}, false, true, "allowed"},
      {"a longer name of it", lists, {.repo = "goodly/x", .publisher = Standing::kUntrusted}, true, false, "goodly"},
      {"denied in an allowed organisation", lists, {.repo = "good/evil"}, false, false, "denied"},
      {"denied though the entry is trusted", lists, {.repo = "bad/x", .entry_trust = true}, false, false, "denied"},
      {"denied though all are allowed", open_but, {.repo = "a/b"}, false, false, "denied"},
      {"redirected to a trusted one",
       {},
       {.repo = "c/d", .entry_trust = true, .publisher = Standing::kTrusted, .redirected_from = "a/b"},
       true,
       true,
       "trusted publisher"},
      {"redirected to an untrusted one, the source trusted",
       {},
       {.repo = "c/d", .entry_trust = true, .publisher = Standing::kUntrusted, .redirected_from = "a/b"},
       true,
       false,
       "'c/d' is not"},
      {"redirected to a listed one", lists, {.repo = "acme/mlp", .redirected_from = "a/b"}, false, true, "allowed"},
      {"redirected to a denied one",
       lists,
       {.repo = "bad/x", .entry_trust = true, .redirected_from = "a/b"},
       false,
       false,
       "denied"},
  };
  for (const Row& row : table) {
    EXPECT_EQ(needs_publisher(row.policy, row.question), row.asks) << row.what;
    const TrustDecision decision = decide_trust(row.policy, row.question);
    EXPECT_EQ(decision.allowed, row.allowed) << row.what;
    expect_has(decision.reason, {row.reason});
    EXPECT_EQ(message_of([&] { require_trust(row.policy, row.question); }) == "no error", row.allowed) << row.what;
  }
  EXPECT_NE(decide_trust({}, {.repo = "a/b", .publisher = Standing::kOffline}).warning, "");
  EXPECT_NE(message_of([] { decide_trust({}, {.repo = "a/b"}); }), "no error");  // nobody asked the Hub
}

TEST(Trust, ErrorsSayHowToOptIn) {
  expect_has(message_of([] { require_trust({}, {.repo = "a/b", .publisher = Standing::kUntrusted}); }),
             {"not from a trusted publisher", ".trust = true", "[trust] allow", "allow_all_kernels"});
  expect_has(message_of([] {
               require_trust({}, {.repo = "c/d", .publisher = Standing::kUntrusted, .redirected_from = "a/b"});
             }),
             {"'a/b' redirects to it", "name the destination itself"});
}

TEST(Trust, TheTableOfHotswapToml) {
  const Json good = Json::parse(
      R"({"allow-all-kernels": true, "allow": ["a/b", "c/*"], "deny": ["d/e"], "require-signature": ["c/*"],
          "skip-digest": ["a/b"]})",
      "t");
  const TrustPolicy policy = parse_trust(good);
  EXPECT_TRUE(policy.allow_all_kernels);
  EXPECT_EQ(policy.allow, (std::vector<std::string>{"a/b", "c/*"}));
  EXPECT_TRUE(requires_signature(policy, "c/x"));
  EXPECT_FALSE(requires_signature(policy, "a/b"));
  EXPECT_TRUE(skips_digest(policy, "a/b"));
  EXPECT_FALSE(skips_digest(policy, "c/x"));
  for (const char* bad :
       {R"({"allow": ["*"]})", R"({"allow": ["a"]})", R"({"allow": ["a/b*"]})", R"({"deny": ["*/b"]})",
        R"({"allow": "a/b"})", R"({"publishers": []})", R"({"allow-all-kernels": 1})"}) {
    EXPECT_NE(message_of([&] { parse_trust(Json::parse(bad, "t")); }), "no error") << bad;
  }
}

TEST(Status, RedirectsOnly) {
  TempFolder folder;
  const auto parsed = [&](const std::string& toml) {
    return parse_status(Json::read_toml(folder.write("kernel-status.toml", toml)));
  };
  const Redirect plain = parsed("kind = \"redirect\"\ndestination = \"a/b\"\n");
  EXPECT_EQ(plain.destination + "@" + plain.revision, "a/b@main");
  EXPECT_EQ(parsed("kind = \"redirect\"\ndestination = \"a/b\"\nrevision = \"v2\"").revision, "v2");
  for (const char* bad :
       {"", "kind = \"redirect\"", "destination = \"a/b\"", "kind = \"removed\"\ndestination = \"a/b\"",
        "kind = \"redirect\"\ndestination = \"../b\"", "kind = \"redirect\"\ndestination = \"a/b\"\nx = 1",
        "kind = \"redirect\"\ndestination = \"a/b\"\nrevision = \"..\"", "kind = 1"}) {
    EXPECT_NE(message_of([&] { parsed(bad); }), "no error") << bad;
  }
}

}  // namespace
}  // namespace hotswap
