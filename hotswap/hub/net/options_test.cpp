// The environment as huggingface_hub reads it; proxies and certificates, which libcurl and OpenSSL read.
#include "hotswap/hub/net/options.h"

#include <cstdlib>
#include <map>
#include <optional>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/net/client.h"
#include "hotswap/hub/net/test_certificate.h"
#include "hotswap/hub/net/test_server.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Asked;
using test_support::expect_has;
using test_support::message_of;
using test_support::Peer;
using test_support::ScopedEnv;
using test_support::ScriptServer;
using test_support::TempFolder;
using test_support::write_certificate;

// A user's proxy is no business of tests that talk to this machine.
class NoProxy : public testing::Environment {
  void SetUp() override { ::setenv("no_proxy", "127.0.0.1,localhost", 1); }
};
const auto* const kNoProxy = testing::AddGlobalTestEnvironment(new NoProxy);

using Values = std::map<std::string, std::string>;

// Sets variables for one test and puts the old values back.
class Variables {
 public:
  explicit Variables(const Values& values) {
    for (const char* name : {"HF_HOME",
                             "HF_HUB_CACHE",
                             "HUGGINGFACE_HUB_CACHE",
                             "KERNELS_CACHE",
                             "HF_TOKEN",
                             "HUGGING_FACE_HUB_TOKEN",
                             "HF_TOKEN_PATH",
                             "HF_ENDPOINT",
                             "HF_HUB_OFFLINE",
                             "TRANSFORMERS_OFFLINE",
                             "XDG_CACHE_HOME",
                             "HF_HUB_DISABLE_IMPLICIT_TOKEN",
                             "HF_HUB_DISABLE_SYMLINKS",
                             "HOTSWAP_HUB_TTL",
                             "HF_HUB_ETAG_TIMEOUT",
                             "HF_HUB_USER_AGENT_ORIGIN",
                             "SSL_CERT_FILE",
                             "http_proxy",
                             "HTTP_PROXY",
                             "REQUEST_METHOD"}) {
      set(name, std::nullopt);
    }
    for (const auto& [name, value] : values) set(name, value);
  }
  ~Variables() {
    while (!set_.empty()) set_.pop_back();  // last set, first undone: a name may be there twice
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  void set(const std::string& name, const std::optional<std::string>& value) {
    set_.push_back(std::make_unique<ScopedEnv>(name, value));
  }
  std::vector<std::unique_ptr<ScopedEnv>> set_;
};

TEST(Options, Folders) {
  {
    const Variables set(Values{{"HOME", "/h"}});
    EXPECT_EQ(HubOptions::from_env().cache, "/h/.cache/huggingface/hub");
    EXPECT_EQ(HubOptions::from_env().kernels_cache, "/h/.cache/huggingface/hub");
    EXPECT_EQ(HubOptions::from_env().endpoint, "https://huggingface.co");
  }
  {
    const Variables set(Values{{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}});
    EXPECT_EQ(HubOptions::from_env().cache, "/x/huggingface/hub");
  }
  {
    const Variables set(Values{{"HOME", "/h"}, {"HF_HOME", "~/hf"}, {"KERNELS_CACHE", "/k"}});
    EXPECT_EQ(HubOptions::from_env().cache, "/h/hf/hub");
    EXPECT_EQ(HubOptions::from_env().kernels_cache, "/k");
  }
  {
    const Variables set(
        {{"HF_HUB_CACHE", "/a"}, {"HUGGINGFACE_HUB_CACHE", "/b"}, {"HF_ENDPOINT", "http://mirror:1///"}});
    EXPECT_EQ(HubOptions::from_env().cache, "/a");
    EXPECT_EQ(HubOptions::from_env().endpoint, "http://mirror:1");
  }
}

// What Python's os.path.expandvars(os.path.expanduser(text)) answers for each.
TEST(Options, FoldersAreExpandedAsPythonDoes) {
  const auto cache = [](const std::string& home, const Values& more) {
    Values values = more;
    values["HF_HOME"] = home;
    const Variables set(values);
    return HubOptions::from_env().cache.string();
  };
  const Values set = {{"HOME", "/h"}, {"HOTSWAP_TEST_DISK", "/disk"}, {"HOTSWAP_TEST_LOOP", "$HOTSWAP_TEST_DISK"}};
  EXPECT_EQ(cache("$HOTSWAP_TEST_DISK/hf", set), "/disk/hf/hub");
  EXPECT_EQ(cache("${HOTSWAP_TEST_DISK}x/$HOTSWAP_TEST_DISK", set), "/diskx//disk/hub");
  EXPECT_EQ(cache("~/a$HOTSWAP_TEST_DISK", set), "/h/a/disk/hub");
  EXPECT_EQ(cache("$HOTSWAP_TEST_LOOP", set), "$HOTSWAP_TEST_DISK/hub") << "what a variable holds is taken as it is";
  EXPECT_EQ(cache("/x/$HOTSWAP_TEST_NONE/${HOTSWAP_TEST_NONE}/$/${/~", set),
            "/x/$HOTSWAP_TEST_NONE/${HOTSWAP_TEST_NONE}/$/${/~/hub");
  EXPECT_EQ(cache("~nobody-of-that-name/x", set), "~nobody-of-that-name/x/hub");
  EXPECT_EQ(cache("~root/x", set), "/root/x/hub");
  const Variables others(Values{{"HOTSWAP_TEST_DISK", "/disk"},
                                {"HF_HUB_CACHE", "$HOTSWAP_TEST_DISK/a"},
                                {"KERNELS_CACHE", "${HOTSWAP_TEST_DISK}/b"}});
  EXPECT_EQ(HubOptions::from_env().cache, "/disk/a");
  EXPECT_EQ(HubOptions::from_env().kernels_cache, "/disk/b");
}

TEST(Options, Tokens) {
  const TempFolder folder;
  const std::string home = folder.path().string();
  folder.write("token", "from-file\n");
  folder.write("other", "from-other");
  const auto token = [](const Values& values) {
    const Variables set(values);
    return HubOptions::from_env().token;
  };
  EXPECT_EQ(token({{"HF_HOME", home}}), "from-file");
  EXPECT_EQ(token({{"HF_HOME", home}, {"HF_TOKEN_PATH", home + "/other"}}), "from-other");
  EXPECT_EQ(token({{"HF_HOME", home}, {"HF_TOKEN", " from-env\r\n"}}), "from-env");
  EXPECT_EQ(token({{"HF_HOME", home}, {"HF_TOKEN", " \n"}, {"HUGGING_FACE_HUB_TOKEN", "older"}}), "older");
  EXPECT_EQ(token({{"HF_HOME", home}, {"HF_TOKEN", "x"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}), "");
  EXPECT_EQ(token({{"HF_HOME", home + "/none"}}), "");
  expect_has(message_of([&] { token({{"HF_TOKEN", "two words"}}); }), {"HF_TOKEN"});
}

TEST(Options, Switches) {
  const auto with = [](const Values& values) {
    const Variables set(values);
    return HubOptions::from_env();
  };
  EXPECT_FALSE(with({}).offline);
  EXPECT_TRUE(with({{"HF_HUB_OFFLINE", "YES"}}).offline);
  EXPECT_TRUE(with({{"TRANSFORMERS_OFFLINE", "1"}}).offline);
  EXPECT_FALSE(with({{"HF_HUB_DISABLE_SYMLINKS", "on"}}).symlinks);
  EXPECT_EQ(with({{"HOTSWAP_HUB_TTL", "0"}}).ttl_s, 0);
  EXPECT_EQ(with({{"HF_HUB_ETAG_TIMEOUT", "2.5"}}).head_s, 2.5);
  EXPECT_NE(with({{"HF_HUB_USER_AGENT_ORIGIN", "ci"}}).http.user_agent.find("origin/ci"), std::string::npos);
  for (const char* wrong : {"soon", "-1", "1e99", "5s"})
    EXPECT_NE(message_of([&] { with({{"HOTSWAP_HUB_TTL", wrong}}); }), "no error");
}

TEST(Network, AProxyIsUsed) {
  ScriptServer proxy(
      [](const Asked&, const Peer& peer) { peer.answer(200, {}, R"({"sha":")" + std::string(40, 'a') + R"("})"); });
  const Variables set(Values{{"http_proxy", proxy.url()}});
  HubClient client({.endpoint = "http://hub.invalid"});
  EXPECT_EQ(client.commit({RepoType::kModel, "a/b"}, "main"), std::string(40, 'a'));
  EXPECT_EQ(proxy.asked().at(0).target, "http://hub.invalid/api/models/a/b/revision/main");
}

TEST(Network, AProxyInUpperCaseIsUsedAsPythonUsesIt) {
  ScriptServer proxy([](const Asked&, const Peer& peer) { peer.answer(200, {}, "by proxy"); });
  const auto target = [&](const Values& values, const std::string& url) {
    const Variables set(values);
    HttpOptions options = HubOptions::from_env().http;
    options.retries = 0;
    try {
      return Http(options).send({.url = url}).body;
    } catch (const Error&) {
      return std::string("direct");
    }
  };
  const std::string hub = "http://" + std::string(64, 'x') + ".example/";  // a name that is asked of no server
  EXPECT_EQ(target({{"HTTP_PROXY", proxy.url()}}, hub), "by proxy");
  EXPECT_EQ(target({{"HTTP_PROXY", proxy.url()}, {"http_proxy", ""}}, hub), "direct");
  EXPECT_EQ(target({{"HTTP_PROXY", proxy.url()}, {"REQUEST_METHOD", "GET"}}, hub), "direct");
  EXPECT_EQ(target({{"HTTP_PROXY", "http://127.0.0.1:1"}, {"http_proxy", proxy.url()}}, hub), "by proxy");
  ScriptServer there([](const Asked&, const Peer& peer) { peer.answer(200, {}, "direct"); });
  EXPECT_EQ(target({{"HTTP_PROXY", proxy.url()}}, there.url()), "direct") << "no_proxy has 127.0.0.1";
}

TEST(Network, HttpsOnlyWithACertificateThatIsTrusted) {
  const TempFolder folder;
  const fs::path certificate = folder.path() / "c.pem", key = folder.path() / "k.pem";
  write_certificate(certificate, key);
  folder.write("hub/models/acme/tiny/main/x", "1");
  HubServer server({.folder = folder.path() / "hub", .certificate = certificate, .key = key});
  server.start();
  EXPECT_EQ(server.url().substr(0, 8), "https://");
  const Repo repo{RepoType::kModel, "acme/tiny"};
  HubOptions trusting{.endpoint = server.url()};
  trusting.http.ca_file = certificate.string();
  EXPECT_EQ(HubClient(trusting).tree(repo, "main").size(), 1u);
  HubOptions strict{.endpoint = server.url()};
  strict.http.sleep = [](double) { ADD_FAILURE() << "a wrong certificate does not get right by waiting"; };
  expect_has(message_of([&] { HubClient(strict).commit(repo, "main"); }), {server.url(), "certificate"});
  HubServerOptions wrong{.folder = folder.path() / "hub", .certificate = key, .key = certificate};
  expect_has(message_of([&] { HubServer broken(wrong); }), {"PEM"});
}

}  // namespace
}  // namespace hotswap
