// What the Hub's answers mean, and its refusals; names that must not become paths.
#include "hotswap/hub/net/client.h"

#include "hotswap/base/test_support.h"
#include "hotswap/hub/net/test_server.h"

namespace hotswap {
namespace {

using test_support::Asked;
using test_support::expect_has;
using test_support::message_of;
using test_support::Peer;
using test_support::ScriptServer;

const std::string kSomeCommit(40, 'a');
const Repo kClientNorm{RepoType::kKernel, "org/name"}, kClientTiny{RepoType::kModel, "org/name"};

HubOptions options_for(const ScriptServer& server) {
  HubOptions options{.endpoint = server.url(), .token = "secret"};
  options.http.sleep = [](double) {};
  return options;
}

TEST(RepoNames, CheckedBeforeAnything) {
  for (const char* good : {"gpt2", "org/name", "a.b/c_d-e", "A1/9"})
    EXPECT_EQ(message_of([&] { check_repo({.id = good}); }), "no error");
  for (const char* bad :
       {"", "/", "a/", "/b", "a/b/c", "../x", "a/..", "a--b", "-a", "a.", "a b", "a/b.git", "a\\b", "a:b", "a%2Fb"}) {
    expect_has(message_of([&] { check_repo({.id = bad}); }), {"org/name"});
  }
  EXPECT_NE(message_of([] { check_repo({.id = std::string(97, 'a')}); }), "no error");
  EXPECT_EQ(repo_folder_name(kClientNorm), "kernels--org--name");
  EXPECT_EQ(repo_folder_name({.id = "gpt2"}), "models--gpt2");
}

TEST(Paths, StayInside) {
  for (const char* good : {"a", "a/b.c", "build/x-y/__init__.py", "..a/b..", "a b", ".gitattributes", "\xC3\xA4"}) {
    EXPECT_EQ(message_of([&] { check_relative_path(good, "file"); }), "no error") << good;
  }
  for (const char* bad : {"", "/etc/passwd", "../x", "a/../b", "a/..", "..", ".", "a/./b", "a//b", "a/", "C:/x", "C:x",
                          "a/C:x", "a\\b", "\\\\host\\share", "a\nb", "a\x7F"}) {
    EXPECT_NE(message_of([&] { check_relative_path(bad, "file"); }), "no error") << bad;
  }
  EXPECT_NE(message_of([] { check_relative_path(std::string("a\0b", 3), "file"); }), "no error");
  EXPECT_NE(message_of([] { check_relative_path(std::string(256, 'a'), "file"); }), "no error");
}

TEST(Patterns, AsFnmatch) {
  struct Row {
    const char *path, *pattern;
    bool matches;
  };
  for (const Row& row : {Row{"a/b.json", "*.json", true},
                         {"a/b.json", "a/*", true},
                         {"a/b.json", "a/", true},
                         {"ab", "a", false},
                         {"A.json", "a.json", false},
                         {"x1", "x[0-9]", true},
                         {"x1", "x[!0-9]", false},
                         {"x]", "x[]]", true},
                         {"x[", "x[", true},
                         {"abc", "a?c", true},
                         {"ac", "a?c", false},
                         {"aXbXc", "a*b*c", true},
                         {"", "*", true},
                         {"model.safetensors.index.json", "*.safetensors", false}}) {
    EXPECT_EQ(matches_pattern(row.path, row.pattern), row.matches) << row.path << " " << row.pattern;
  }
  EXPECT_FALSE(matches_pattern(std::string(2000, 'a'), "*a*a*a*a*a*a*b")) << "and it ends soon";
  EXPECT_TRUE(is_selected("a.json", {}, {}));
  EXPECT_FALSE(is_selected("a.json", {"*.txt"}, {}));
  EXPECT_FALSE(is_selected("a.json", {"*.json"}, {"a*"}));
}

TEST(Client, AsksAsTheHubExpects) {
  ScriptServer hub([](const Asked& asked, const Peer& peer) {
    if (asked.method == "HEAD") {
      return peer.answer(302,
                         {"X-Repo-Commit: " + kSomeCommit, "ETag: \"other\"", "X-Linked-Etag: W/\"abc\"",
                          "X-Linked-Size: 12", "Location: https://cdn.invalid/x"},
                         "", true);
    }
    if (asked.target.ends_with("/refs")) {
      return peer.answer(200, {},
                         R"({"branches":[{"name":"v1","ref":"refs/heads/v1","targetCommit":")" + kSomeCommit +
                             R"("}],"tags":[],"converts":[]})");
    }
    if (asked.target.find("/overview") != std::string::npos)
      return peer.answer(200, {}, R"({"name":"org","trustedKernelPublisher":true})");
    peer.answer(200, {}, R"({"id":"org/name","sha":")" + kSomeCommit + R"("})");
  });
  HubClient client(options_for(hub));
  EXPECT_EQ(client.refs(kClientNorm).branches.at(0).commit, kSomeCommit);
  EXPECT_EQ(client.commit(kClientTiny, "refs/pr/1"), kSomeCommit);
  EXPECT_TRUE(client.publisher("org").trusted);
  const FileMeta meta = client.file_meta(kClientNorm, "v1", "build/a b.so");
  EXPECT_EQ(meta.commit, kSomeCommit);
  EXPECT_EQ(meta.etag, "abc");
  EXPECT_EQ(meta.size, 12);
  const auto asked = hub.asked();
  EXPECT_EQ(asked[0].target, "/api/kernels/org/name/refs");
  EXPECT_EQ(asked[1].target, "/api/models/org/name/revision/refs%2Fpr%2F1");
  EXPECT_EQ(asked[2].target, "/api/organizations/org/overview");
  EXPECT_EQ(asked[3].target, "/kernels/org/name/resolve/v1/build/a%20b.so");
  EXPECT_EQ(asked[3].header("accept-encoding"), "identity");
  for (const Asked& one : asked) EXPECT_EQ(one.header("authorization"), "Bearer secret");
  EXPECT_EQ(client.file_url(kClientTiny, "main", "x/y"), hub.url() + "/org/name/resolve/main/x/y");
}

TEST(Client, TreePageAfterPage) {
  std::string base;
  ScriptServer hub([&](const Asked& asked, const Peer& peer) {
    const bool second = asked.target.find("cursor=2") != std::string::npos;
    const std::string entry =
        second ? R"([{"type":"file","path":"b","oid":"22","size":2,"lfs":{"oid":"aa","size":9,"pointerSize":1}}])"
               : R"([{"type":"directory","path":"d","oid":"11"},{"type":"file","path":"d/a","oid":"33","size":1}])";
    std::vector<std::string> headers;
    if (!second) headers.push_back("Link: <" + base + asked.target + "&cursor=2>; rel=\"next\"");
    peer.answer(200, headers, entry);
  });
  base = hub.url();
  HubClient client(options_for(hub));
  const auto entries = client.tree(kClientNorm, kSomeCommit, "build/x", false);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(entries[0].folder);
  EXPECT_EQ(entries[1].etag(), "33");
  EXPECT_EQ(entries[2].etag(), "aa");
  EXPECT_EQ(entries[2].lfs_size, 9);
  EXPECT_EQ(hub.asked()[0].target,
            "/api/kernels/org/name/tree/" + kSomeCommit + "/build%2Fx?recursive=false&expand=false");
}

TEST(Client, TreeThatLeadsAwayOrNeverEnds) {
  ScriptServer hub([](const Asked& asked, const Peer& peer) {
    peer.answer(200,
                {asked.target.find("models") != std::string::npos ? "Link: <http://evil.invalid/>; rel=\"next\""
                                                                  : "Link: <" + asked.target + ">; rel=\"next\""},
                "[]");
  });
  HubClient client(options_for(hub));
  expect_has(message_of([&] { client.tree(kClientTiny, kSomeCommit); }), {"one server"});
  expect_has(message_of([&] { client.tree(kClientNorm, kSomeCommit); }), {"without end"});
}

struct ErrorRow {
  int status;
  std::vector<std::string> headers;
  HubReason kind;
};

TEST(Client, RefusalsByKindWithTheHubsWords) {
  const std::vector<ErrorRow> rows = {
      {404, {"X-Error-Code: RevisionNotFound"}, HubReason::kRevisionNotFound},
      {404, {"X-Error-Code: EntryNotFound"}, HubReason::kEntryNotFound},
      {403, {"X-Error-Code: GatedRepo"}, HubReason::kGatedRepo},
      {403, {"X-Error-Message: Access to this resource is disabled."}, HubReason::kDisabledRepo},
      {404, {"X-Error-Code: RepoNotFound"}, HubReason::kRepoNotFound},
      {401, {}, HubReason::kRepoNotFound},
      {401, {"X-Error-Message: Invalid credentials in Authorization header"}, HubReason::kUnauthorized},
      {403, {}, HubReason::kUnauthorized},
      {429, {"Retry-After: 9999"}, HubReason::kRateLimited},
      {400, {"X-Error-Message: odd"}, HubReason::kHttp},
      {500, {}, HubReason::kHttp},
  };
  for (const ErrorRow& row : rows) {
    ScriptServer hub([&](const Asked&, const Peer& peer) {
      auto headers = row.headers;
      headers.push_back("X-Request-Id: Root=1-77");
      peer.answer(row.status, headers, R"({"error":"said the body"})");
    });
    HubClient client(options_for(hub));
    try {
      client.commit(kClientNorm, "main");
      ADD_FAILURE() << row.status;
    } catch (const HubError& error) {
      EXPECT_EQ(error.reason(), row.kind) << error.what();
      EXPECT_EQ(error.status(), row.status);
      EXPECT_EQ(error.request_id(), "Root=1-77");
      expect_has(error.what(), {"main", "org/name", "Root=1-77", cat(row.status)});
      if (row.headers.empty()) {
        EXPECT_EQ(error.server_message(), "said the body");
      }
    }
  }
}

TEST(Client, AnswersThatBreakTheProtocol) {
  const std::string commit = "X-Repo-Commit: " + kSomeCommit;
  const std::vector<std::vector<std::string>> heads = {
      {"ETag: \"abc\""},                         // no commit
      {"X-Repo-Commit: main", "ETag: \"abc\""},  // no hash
      {commit},                                  // no ETag
      {commit, "ETag: \"../../../evil\""},       // a path
      {commit, "ETag: \".hidden\""},
      {commit, "ETag: \"a/b\""},
      {commit, "ETag: \"" + std::string(200, 'a') + "\""},
      {commit, "ETag: \"abc\"", "X-Linked-Size: -5"},
      {commit, "ETag: \"abc\"", "X-Linked-Size: 99999999999999999999"},
  };
  for (const auto& headers : heads) {
    ScriptServer hub([&](const Asked&, const Peer& peer) { peer.answer(200, headers, "", true); });
    HubClient client(options_for(hub));
    EXPECT_NE(message_of([&] { client.file_meta(kClientNorm, "main", "x"); }), "no error") << join(headers);
  }
  for (const char* body : {"", "{", "[]", R"({"sha":5})", R"({"sha":"main"})", "<html>"}) {
    ScriptServer hub([&](const Asked&, const Peer& peer) { peer.answer(200, {}, body); });
    HubClient client(options_for(hub));
    EXPECT_NE(message_of([&] { client.commit(kClientNorm, "main"); }), "no error") << body;
  }
  for (const char* tree :
       {R"([{"type":"file","path":"../x","oid":"1","size":1}])", R"([{"type":"file","path":"/x","oid":"1","size":1}])",
        R"([{"type":"file","path":"x","oid":"../1","size":1}])", R"([{"type":"file","path":"x","size":1}])",
        R"([{"type":"file","path":"x","oid":"1","size":-1}])", R"([{"path":"x"}])", R"({"a":1})", "[5]",
        R"([{"type":"file","path":"x","oid":"1","size":1,"lfs":{"oid":"a/b","size":1}}])"}) {
    EXPECT_NE(message_of([&] { parse_tree(tree, "tree"); }), "no error") << tree;
  }
  EXPECT_NE(message_of([] {
              parse_refs(R"({"branches":[{"name":"../x","ref":"r","targetCommit":")" + kSomeCommit + R"("}]})", "refs");
            }),
            "no error");
}

TEST(Client, OfflineAsksNobody) {
  ScriptServer hub([](const Asked&, const Peer& peer) { peer.answer(200, {}, "{}"); });
  HubOptions options = options_for(hub);
  options.offline = true;
  HubClient client(options);
  expect_has(message_of([&] { client.refs(kClientNorm); }), {"HF_HUB_OFFLINE"});
  EXPECT_EQ(hub.asked().size(), 0u);
}

TEST(Client, AnEndpointMustBeAUrl) {
  expect_has(message_of([] { HubClient client({.endpoint = "huggingface"}); }), {"huggingface"});
}

}  // namespace
}  // namespace hotswap
