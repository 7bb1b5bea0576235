// Many clients at once, slow ones, those that leave and those that send rubbish: no request ends another's, and
// nothing is kept afterwards.
#include <arpa/inet.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using std::chrono::milliseconds;
using test_support::OutJson;

class Load : public test_support::Served {
 protected:
  // A connection that has sent `bytes` and reads when the test does.
  int connected(const std::string& bytes) const {
    const std::string url = server->url();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    return fd;
  }
  static std::string request(const OutJson& body, const std::string& path = "/v1/completions") {
    const std::string text = body.dump();
    return cat("POST ", path,
               " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: ", text.size(),
               "\r\n\r\n", text);
  }
  static std::string read_some(int fd, size_t size = 4096) {
    std::string bytes(size, '\0');
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), 0);
    bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return bytes;
  }
  static OutJson endless(bool stream) {
    return {{"prompt", "ab"}, {"temperature", 0}, {"max_tokens", 250}, {"ignore_eos", true}, {"stream", stream}};
  }
};

// All bytes that come back on a connection that sends `bytes` and goes on listening until the server closes.
class Framing : public Load {
 protected:
  std::string answers(const std::string& bytes) const {
    const int fd = connected(bytes);
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::string all;
    for (std::string some; !(some = read_some(fd)).empty();) all += some;
    ::close(fd);
    return all;
  }
  static std::string head(const std::string& first, const std::string& headers) {
    return cat(first, " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n", headers, "\r\n");
  }
  static int64_t count(const std::string& text, const std::string& part) {
    int64_t found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
    return found;
  }
};

// What one side takes for a body must not be a request to the other.
TEST_F(Framing, ABodyIsNeverTakenForTheNextRequest) {
  const std::string hidden = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  const std::string chunk = "2\r\n{}\r\n0\r\n\r\n";
  for (const std::string& outer :
       {head("GET /health", cat("Content-Length: ", hidden.size(), "\r\n")),
        head("HEAD /health", cat("Content-Length: ", hidden.size(), "\r\n")),
        head("GET /health", "Transfer-Encoding: chunked\r\n"),
        head("DELETE /health", cat("Content-Length: ", hidden.size(), "\r\n")),
        cat(head("POST /tokenize", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), chunk)}) {
    const std::string got = answers(outer + hidden);
    EXPECT_EQ(count(got, "HTTP/1.1 "), 1) << outer << "\n" << got;
    EXPECT_EQ(count(got, "Connection: close"), count(got, "Connection: ")) << got;
  }
  const std::string whole = head("GET /health", "Content-Length: 0\r\n");
  EXPECT_EQ(count(answers(whole + hidden), "HTTP/1.1 200"), 2) << "a request without a body keeps its connection";
}

TEST_F(Framing, ALengthIsOneNumber) {
  const auto refused = [&](const std::string& headers, const std::string& status) {
    const std::string got = answers(head("POST /tokenize", headers) + "{}");
    test_support::expect_has(got, {"HTTP/1.1 " + status});
  };
  refused("", "411 ");
  refused("Content-Length: -5\r\n", "400 ");
  refused("Content-Length: abc\r\n", "400 ");
  refused("Content-Length: 2, 2\r\n", "400 ");
  refused("Content-Length: 2\r\nContent-Length: 3\r\n", "400 ");
  refused("Content-Length: 99999999999999999999\r\n", "413 ");
}

// A text in company is the text of a request by itself: other lengths, other settings, joining and leaving at any time.
TEST_F(Load, ATextDoesNotDependOnItsCompany) {
  const auto body = [](int i) {
    return OutJson{{"prompt", std::string(1 + i * 13 % 40, static_cast<char>('a' + i % 26))},
                   {"max_tokens", 5 + i * 7 % 50},
                   {"ignore_eos", true},
                   {"logprobs", 1},
                   {"temperature", i % 2 == 0 ? 0.0 : 1.2},
                   {"seed", i}};
  };
  constexpr int kRequests = 24;
  std::vector<OutJson> single, company(kRequests);
  for (int i = 0; i < kRequests; ++i) single.push_back(post("/v1/completions", body(i))["choices"]);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRequests; ++i) {
    threads.emplace_back([&, i] { company[i] = post("/v1/completions", body(i))["choices"]; });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(company[i], single[i]) << "text and logprobs of request " << i;
  expect_nothing_left();
}

TEST_F(Load, ThreeHundredAtOnce) {
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 300; ++i) {
    threads.emplace_back([&] {
      auto http = client();
      const auto result = http.Post("/v1/completions", R"({"prompt": "ab", "max_tokens": 3})", "application/json");
      if (result && result->status == 200) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 300);
  expect_nothing_left();
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
// Bytes of the program's blocks that are in use.
int64_t heap_bytes() { return static_cast<int64_t>(mallinfo2().uordblks); }

// What a request leaves, each round has. What is made once, such as the free blocks that a thread keeps, only some
// have.
TEST_F(Load, RequestsLeaveNothingOnTheHeap) {
  constexpr int kRounds = 6, kRequests = 240;
  constexpr int64_t kLimit = kRequests * 32 / 2;  // half of the smallest block that there is, 32 bytes, a request
  int64_t min_growth = INT64_MAX;
  for (int64_t round = 0, before = heap_bytes(); round < kRounds; ++round) {
    for (int i = 0; i < kRequests / 4; ++i) {
      complete("ab", {{"max_tokens", 3}, {"logprobs", 2}});
      events("/v1/chat/completions",
             {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 3}, {"stream", true}});
      complete("ab", {{"max_tokens", 0}}, 400);
      post("/tokenize", {{"prompt", "ab"}});
    }
    expect_nothing_left();
    const int64_t after = heap_bytes();
    min_growth = std::min(min_growth, after - before);
    before = after;
  }
  EXPECT_LT(min_growth, kLimit) << "bytes that " << kRequests << " requests leave";

  std::vector<std::unique_ptr<char>> blocks(kRequests);  // what the limit must notice: the smallest block a request
  const int64_t before = heap_bytes();
  for (auto& block : blocks) block = std::make_unique<char>();
  EXPECT_GT(heap_bytes() - before, kLimit);
}
#endif

TEST_F(Load, TheQueueHasAnEnd) {
  start({.engine = {.rows = 1, .max_queue = 2}});
  std::atomic<int> right = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&] {
      auto http = client();
      const auto result = http.Post("/v1/completions", endless(false).dump(), "application/json");
      if (result && result->status == 200) ++right;
      if (result && result->status == 429 && result->has_header("Retry-After")) ++refused;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right + refused, 12);
  EXPECT_GE(right, 2);
  EXPECT_GE(refused, 1);
  expect_nothing_left();
}

TEST_F(Load, FreeRowsTakeWhatTheQueueWouldNot) {
  start({.engine = {.rows = 2, .max_queue = 0}});
  EXPECT_EQ(complete("a", {{"max_tokens", 2}, {"n", 2}})["choices"].size(), 2u);
  expect_nothing_left();
  complete("a", {{"max_tokens", 2}, {"n", 3}}, 429);
}

TEST_F(Load, SlowReadersDelayNoOthers) {
  std::vector<int> slow;
  OutJson body = endless(true);
  body["max_tokens"] = 12;
  for (int i = 0; i < 200; ++i) slow.push_back(connected(request(body)));
  EXPECT_EQ(complete("ab", {{"max_tokens", 3}})["usage"]["completion_tokens"], 3);
  for (const int fd : slow) {
    std::string text;
    while (text.find("[DONE]") == std::string::npos) {
      const std::string more = read_some(fd);
      if (more.empty()) break;
      text += more;
    }
    EXPECT_NE(text.find("[DONE]"), std::string::npos);
    ::close(fd);
  }
  expect_nothing_left();
}

// Chunks would be text to a client of HTTP/1.0: its answer ends with the connection. The header
// Keep-Alive of a newer one has how long a connection really lasts.
TEST_F(Load, OldClientsHaveStreamsWithoutChunks) {
  const OutJson body = {{"prompt", "ab"}, {"max_tokens", 3}, {"stream", true}};
  for (const char* kept : {"", "Connection: Keep-Alive\r\n"}) {
    std::string old = request(body);
    old.replace(old.find("HTTP/1.1\r\n"), 10, cat("HTTP/1.0\r\n", kept));
    const int fd = connected(old);
    std::string text, more;
    while (!(more = read_some(fd)).empty()) text += more;
    ::close(fd);
    EXPECT_EQ(text.find("Transfer-Encoding"), std::string::npos) << text;
    EXPECT_NE(text.find("\r\n\r\ndata: {"), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("}\n\ndata: [DONE]\n\n")) << text;
  }
  auto newer = client();
  newer.set_keep_alive(true);
  EXPECT_TRUE(newer.Get("/health")->get_header_value("Keep-Alive").starts_with("timeout=75, "));
}

// Streaming or not: what is generated for a client that has left is freed within two steps of its leaving.
TEST_F(Load, ALeavingClientIsFreed) {
  for (const bool stream : {true, false}) {
    std::vector<int> all;
    for (int i = 0; i < 16; ++i) all.push_back(connected(request(endless(stream))));
    for (int i = 0; i < 1000 && pages() < 16; ++i) std::this_thread::sleep_for(milliseconds(1));
    const int64_t before = server->engine().steps();
    for (const int fd : all) ::close(fd);
    expect_nothing_left();
    // Two steps each; the system may let threads wait longer than that.
    EXPECT_LT(server->engine().steps() - before, 100) << "of 250";
    const OutJson body = endless(false);
    EXPECT_EQ(post("/v1/completions", body)["usage"]["completion_tokens"], 250) << "the next one runs on";
  }
}

TEST_F(Load, RubbishIsRefusedAndEndsNothing) {
  auto http = client();
  const auto status = [&](const std::string& body, const char* type = "application/json") {
    const auto result = http.Post("/v1/completions", body, type);
    if (!result) return -1;
    if (result->status != 200) {
      EXPECT_TRUE(OutJson::parse(result->body, nullptr, false)["error"]["message"].is_string()) << result->body;
    }
    return result->status;
  };
  const std::string deep(100, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{\"prompt\": \"\xff\"}"),
        std::string(R"({"prompt": "a", "prompt": "b"})"),
        std::string(R"({"prompt": "a", "seed": 99999999999999999999})"),
        std::string(R"({"prompt": "a", "temperature": 1e999})"), std::string(R"({"prompt": "a", "temperature": NaN})"),
        "{\"prompt\": " + deep + std::string(100, ']') + "}"}) {
    EXPECT_EQ(status(body), 400) << body.substr(0, 80);
  }
  EXPECT_EQ(status(R"({"prompt": "a"})", "text/plain"), 415);
  EXPECT_EQ(status(std::string(9 << 20, ' ')), 413);
  EXPECT_EQ(http.Get("/v1/completions")->status, 405);
  EXPECT_EQ(http.Get("/no/such/path")->status, 404);
  EXPECT_EQ(http.Delete("/v1/models")->status, 405);
  for (const char* bytes : {"\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02", "POST /v1/completions HTTP/1.1\r\n"}) {
    const int fd = connected(bytes);
    ::shutdown(fd, SHUT_WR);
    while (!read_some(fd).empty()) {
    }
    ::close(fd);
  }
  EXPECT_EQ(status(R"({"prompt": "a", "max_tokens": 1})"), 200);
}

TEST_F(Load, ForeignPagesAndKeys) {
  auto http = client();
  const auto status = [&](const httplib::Headers& headers, const char* path = "/v1/models") {
    return http.Get(path, headers)->status;
  };
  EXPECT_EQ(status({{"Host", "evil.example"}}), 403);
  for (const char* host : {"127.0.0.1.evil.example", "127.evil.example", "[::1].evil.example", "localhost:80@evil"}) {
    EXPECT_EQ(status({{"Host", host}, {"Origin", cat("http://", host)}}), 403) << host << ": its owner's DNS names us";
  }
  EXPECT_EQ(status({{"Origin", "https://evil.example"}}), 403);
  EXPECT_EQ(status({{"Origin", "null"}}), 403);
  EXPECT_EQ(status({{"Host", "localhost:80"}}), 200);
  EXPECT_EQ(status({{"Host", "localhost:80"}, {"Origin", "http://localhost:80"}}), 200);
  start({.api_keys = {"first", "second"}, .allowed_hosts = {"chat.example"}});
  auto keyed = client();
  EXPECT_EQ(keyed.Get("/v1/models")->status, 401);
  EXPECT_EQ(keyed.Get("/v1/models", {{"Authorization", "Bearer wrong"}})->status, 401);
  EXPECT_EQ(keyed.Get("/v1/models", {{"Authorization", "Bearer second"}})->status, 200);
  EXPECT_EQ(keyed.Get("/health")->status, 200) << "open to this machine";
  EXPECT_EQ(keyed.Get("/health", {{"Host", "chat.example"}, {"Origin", "https://chat.example"}})->status, 200);
}

TEST_F(Load, EndsWithWhatRuns) {
  const int fd = connected(request(endless(true)));
  for (int i = 0; i < 1000 && pages() == 0; ++i) std::this_thread::sleep_for(milliseconds(1));
  std::thread draining([&] { EXPECT_TRUE(server->drain(milliseconds(60000))); });
  auto http = client();
  for (int i = 0; i < 1000 && http.Get("/ready")->status == 200; ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(http.Post("/v1/completions", R"({"prompt": "a"})", "application/json")->status, 503);
  std::string text;
  while (text.find("[DONE]") == std::string::npos) {
    const std::string more = read_some(fd);
    if (more.empty()) break;
    text += more;
  }
  EXPECT_NE(text.find("[DONE]"), std::string::npos) << "what ran was finished";
  draining.join();
  ::close(fd);
}

TEST_F(Load, HalfARequestDoesNotHoldTheEnd) {
  const int fd = connected("POST /v1/completions HTTP/1.1\r\nHost: ");
  std::this_thread::sleep_for(milliseconds(100));
  const auto begin = serve::Clock::now();
  server.reset();
  EXPECT_LT(serve::Clock::now() - begin, std::chrono::seconds(20)) << "a request may take 40 s to come";
  ::close(fd);
}

TEST_F(Load, WhatMustEndSaysSo) {
  const int fd = connected(request(endless(true)));
  EXPECT_FALSE(read_some(fd).empty());
  server->stop();
  std::string text, more;
  while (!(more = read_some(fd)).empty()) text += more;
  ::close(fd);
  EXPECT_NE(text.find("\"error\""), std::string::npos) << text;
  EXPECT_EQ(text.find("[DONE]"), std::string::npos);
}

}  // namespace
}  // namespace hotswap
