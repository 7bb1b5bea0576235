// serve-hub as any HTTP client sees it: answers word for word, and how it stands under load.
#include "hotswap/hub/serve/server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using nlohmann::json;
using test_support::expect_has;
using test_support::message_of;
using test_support::noise;
using test_support::TempFolder;

class Server : public testing::Test {
 protected:
  void SetUp() override {
    served.write("models/acme/tiny/main/config.json", "{}");
    served.write("models/acme/tiny/main/sub/notes.txt", "notes");
    served.write("models/acme/tiny/main/model.safetensors", noise(64 << 10));
  }
  HubServerOptions options() const { return {.folder = served.path(), .large_from = 16 << 10, .rescan_s = 0}; }
  void start(HubServerOptions options) {
    server = std::make_unique<HubServer>(options);
    server->start();
    client = std::make_unique<httplib::Client>("127.0.0.1", server->port());
  }
  TempFolder served;
  std::unique_ptr<HubServer> server;
  std::unique_ptr<httplib::Client> client;
};

TEST_F(Server, PathsInfoAsFormAndAsJson) {
  start(options());
  const std::string address = "/api/models/acme/tiny/paths-info/main";
  for (const auto& [body, type] :
       {std::pair{"paths=config.json&paths=sub&expand=False", "application/x-www-form-urlencoded"},
        std::pair{R"({"paths":["config.json","sub"]})", "application/json"}}) {
    const auto answer = client->Post(address, body, type);
    ASSERT_TRUE(answer) << type;
    ASSERT_EQ(answer->status, 200) << answer->body;
    const json entries = json::parse(answer->body);
    ASSERT_EQ(entries.size(), 2u) << entries;
    EXPECT_EQ(entries[0]["type"], "file");
    EXPECT_EQ(entries[0]["size"], 2);
    EXPECT_EQ(entries[1]["type"], "directory");
  }
  const auto status = [&](const std::string& at, const std::string& body) {
    const auto answer = client->Post(at, body, "application/json");
    return answer ? answer->status : -1;
  };
  EXPECT_EQ(status(address, R"({"paths":"config.json"})"), 200);
  EXPECT_EQ(status(address, "{"), 400);
  EXPECT_EQ(status(address, R"({"paths":[1]})"), 400);
  EXPECT_EQ(status("/api/models/acme/tiny/paths-info/v9", R"({"paths":[]})"), 404);
  EXPECT_EQ(status("/api/models/acme/tiny/commit/main", "{}"), 405) << "nothing else takes a body";
  EXPECT_EQ(status("/api/models/acme/tiny/paths-info/" + std::string(4000, 'x'), "{}"), 405);
  EXPECT_EQ(status(address, std::string(2 << 20, ' ')), 413);
  EXPECT_EQ(client->Get("/acme/tiny/resolve/main/config.json")->body, "{}") << "and goes on";
}

TEST_F(Server, ASecondOneOnThePortRefuses) {
  start(options());
  HubServerOptions same = options();
  same.port = server->port();
  HubServer second(same);
  expect_has(message_of([&] { second.start(); }), {"to listen on 127.0.0.1:" + std::to_string(same.port), "taken"});
  EXPECT_EQ(client->Get("/acme/tiny/resolve/main/config.json")->status, 200);
}

TEST_F(Server, AnAddressOfVersionSixHasBrackets) {
  HubServerOptions loopback = options();
  loopback.host = "::1";
  HubServer six(loopback);
  try {
    six.start();
  } catch (const Error& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  EXPECT_EQ(six.url(), "http://[::1]:" + std::to_string(six.port()));
}

TEST_F(Server, BehindAProxyTheNextPageIsAtTheProxy) {
  HubServerOptions paged = options();
  paged.page = 1;
  start(paged);
  const auto link = [&](const httplib::Headers& headers) {
    return client->Get("/api/models/acme/tiny/tree/main", headers)->get_header_value("Link");
  };
  const std::string rest =
      "/api/models/acme/tiny/tree/main?recursive=false&expand=false&cursor=config.json>; rel=\"next\"";
  EXPECT_EQ(link({}), "<" + server->url() + rest);
  EXPECT_EQ(link({{"X-Forwarded-Proto", "https"},
                  {"X-Forwarded-Host", "hub.example, inner.example"},
                  {"X-Forwarded-Prefix", "/mirror/"}}),
            "<https://hub.example/mirror" + rest);
  EXPECT_EQ(link({{"X-Forwarded-Host", "a>; rel=\"next\", <b"}}), "<" + server->url() + rest);
  paged.trusted_proxies = {"10.0.0.0/8"};
  start(paged);
  EXPECT_EQ(link({{"X-Forwarded-Host", "hub.example"}}), "<" + server->url() + rest) << "said by nobody who is trusted";
}

TEST_F(Server, WhatTheClientHasIsNotSentAgain) {
  start(options());
  const std::string file = "/acme/tiny/resolve/main/config.json", other(40, 'a');
  const std::string etag = client->Get(file)->get_header_value("ETag");
  const auto status = [&](const httplib::Headers& headers) { return client->Get(file, headers)->status; };
  for (const std::string& list : {etag, "W/" + etag, "\"" + other + "\", " + etag, std::string("*")})
    EXPECT_EQ(status({{"If-None-Match", list}}), 304) << list;
  EXPECT_EQ(status({{"If-None-Match", "\"" + other + "\""}}), 200);
  const auto kept = client->Get(file, {{"If-None-Match", etag}});
  EXPECT_EQ(kept->body, "");
  EXPECT_EQ(kept->get_header_value("X-Repo-Commit").size(), 40u);
  EXPECT_EQ(status({{"Range", "bytes=1-"}}), 206);
  EXPECT_EQ(status({{"Range", "bytes=1-"}, {"If-Range", etag}}), 206);
  const auto changed = client->Get(file, {{"Range", "bytes=1-"}, {"If-Range", "\"" + other + "\""}});
  EXPECT_EQ(changed->status, 200) << "a range of another content is of no use";
  EXPECT_EQ(changed->body, "{}");
}

TEST_F(Server, AnswersAreCompressedInAWayThatEveryClientKnows) {
  start(options());
  client->set_decompress(false);
  const auto coding = [&](const char* accepted) {
    const auto answer = client->Get("/api/models/acme/tiny/revision/main", {{"Accept-Encoding", accepted}});
    EXPECT_EQ(answer->get_header_value("Vary"), "Accept-Encoding");
    return answer->get_header_value("Content-Encoding");
  };
  EXPECT_EQ(coding("br, gzip, zstd"), "gzip");
  EXPECT_EQ(coding("br"), "");
  EXPECT_EQ(coding("identity"), "");
}

// huggingface_hub 1.10 takes them for something else, and the Hub does not send them.
TEST_F(Server, OfAKernelNoFilesAreListedInItsInformation) {
  served.write("kernels/acme/norm/main/README.md", "# norm\n");
  start(options());
  for (const char* type : {"models/acme/tiny", "kernels/acme/norm"}) {
    const auto answer = nlohmann::json::parse(client->Get(cat("/api/", type, "/revision/main"))->body);
    EXPECT_EQ(answer.contains("siblings"), type[0] == 'm') << answer;
  }
}

TEST_F(Server, RepositoriesByAuthorAndName) {
  served.write("models/acme/Tiny-2/main/config.json", "{}");
  served.write("models/else/tiny/main/config.json", "{}");
  HubServerOptions paged = options();
  paged.page = 2;
  start(paged);
  const auto ids = [&](const std::string& query) {
    std::string found;
    for (const json& entry : json::parse(client->Get("/api/models" + query)->body))
      found += entry["id"].get<std::string>() + " ";
    return found;
  };
  EXPECT_EQ(ids("?author=acme"), "acme/Tiny-2 acme/tiny ");
  EXPECT_EQ(ids("?search=tiny-2"), "acme/Tiny-2 ");
  EXPECT_EQ(ids("?search=tiny&author=else"), "else/tiny ");
  EXPECT_EQ(ids("?limit=1"), "acme/Tiny-2 ");
  EXPECT_EQ(ids("?filter=text-generation"), "") << "tags are not known here";
  // httplib's client decodes what headers escape.
  expect_has(client->Get("/api/models")->get_header_value("Link"), {"cursor=acme/tiny>; rel=\"next\""});
  EXPECT_EQ(ids("?cursor=acme%2Ftiny"), "else/tiny ");
}

TEST_F(Server, WhoAsksAndMayHe) {
  start(options());
  const auto status = [&](const std::string& path, const httplib::Headers& headers = {}) {
    return client->Get(path, headers)->status;
  };
  EXPECT_EQ(status("/api/whoami-v2"), 401);
  EXPECT_EQ(status("/api/whoami-v2", {{"Authorization", "Bearer hf_x"}}), 200);
  EXPECT_EQ(status("/api/models/acme/tiny/auth-check"), 200);
  EXPECT_EQ(status("/api/models/acme/none/auth-check"), 404);
  EXPECT_EQ(status("/api/models/acme/tiny/auth-check/write"), 403);
}

// A connection that has asked and reads when the test wants it to.
class Reader {
 public:
  Reader(int port, const std::string& path) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int small = 4096;  // the server's bytes wait on its side
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string line = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    asked_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
             ::send(fd_, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
  }
  ~Reader() { ::close(fd_); }
  Reader(const Reader&) = delete;
  // "HTTP/1.1 200"; waits for it.
  std::string status() const {
    std::string text(12, '\0');
    return asked_ && ::recv(fd_, text.data(), text.size(), MSG_WAITALL) == 12 ? text : "no answer";
  }

 private:
  int fd_ = -1;
  bool asked_ = false;
};

TEST_F(Server, SlowReadersAndManyClientsStopNobody) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  served.write("models/acme/tiny/main/large.bin", "");
  std::filesystem::resize_file(served.path() / "models/acme/tiny/main/large.bin", 64 << 20);
  start(options());
  ASSERT_EQ(client->Get("/acme/tiny/resolve/main/config.json")->status, 200);  // all is hashed
  std::vector<std::unique_ptr<Reader>> slow, clients;
  for (int i = 0; i < 200; ++i)
    slow.push_back(std::make_unique<Reader>(server->port(), "/acme/tiny/resolve/main/large.bin"));
  for (int i = 0; i < 300; ++i)
    clients.push_back(std::make_unique<Reader>(server->port(), "/acme/tiny/resolve/main/config.json"));
  for (const auto& one : clients) EXPECT_EQ(one->status(), "HTTP/1.1 200");
  for (const auto& one : slow) EXPECT_EQ(one->status(), "HTTP/1.1 200");
  EXPECT_LT(server->bytes_sent(), int64_t{200} * (32 << 20)) << "the slow ones still wait for the most of theirs";
}

TEST_F(Server, LargeFilesLeaveThreadsToSmallAnswers) {
  served.write("models/acme/tiny/main/large.bin", "");
  std::filesystem::resize_file(served.path() / "models/acme/tiny/main/large.bin", 64 << 20);
  HubServerOptions few = options();
  few.connections = 4;
  start(few);
  const std::string large = "/acme/tiny/resolve/main/large.bin";
  std::vector<std::unique_ptr<Reader>> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(std::make_unique<Reader>(server->port(), large));
    EXPECT_EQ(slow.back()->status(), "HTTP/1.1 200");
  }
  const auto refused = client->Get(large);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "5");
  EXPECT_EQ(client->Get("/acme/tiny/resolve/main/config.json")->status, 200);
}

}  // namespace
}  // namespace hotswap
