// URLs, waits, redirects, limits: what the transport promises, against a server that breaks each promise of its own.
#include "hotswap/hub/net/http.h"

#include <mutex>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/net/hub_error.h"
#include "hotswap/hub/net/test_server.h"
#include "hotswap/hub/net/url.h"

namespace hotswap {
namespace {

using test_support::Asked;
using test_support::expect_has;
using test_support::message_of;
using test_support::Peer;
using test_support::ScriptServer;

// Waits are written down instead of waited.
struct Waits {
  std::vector<double> seconds;
  HttpOptions options() {
    return {.connect_s = 5, .stall_s = 5, .answer_s = 10, .sleep = [this](double s) { seconds.push_back(s); }};
  }
};

HubReason kind_of_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const HubError& error) {
    return error.reason();
  }
  ADD_FAILURE() << "no HubError";
  return HubReason::kHttp;
}

TEST(Url, PercentEncoding) {
  EXPECT_EQ(percent_encode("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(percent_encode("a b/c%?#\xC3\xA4", true), "a%20b/c%25%3F%23%C3%A4");
  EXPECT_EQ(percent_encode("AZaz09-._~", false), "AZaz09-._~");
}

TEST(Url, Origin) {
  EXPECT_EQ(url_origin("https://Hub.co/x"), "https://hub.co:443");
  EXPECT_EQ(url_origin("http://hub.co:8080"), "http://hub.co:8080");
  EXPECT_NE(url_origin("http://hub.co"), url_origin("https://hub.co"));
  EXPECT_EQ(url_origin("https://user:pass@hub.co/"), "https://hub.co:443");
  for (const char* wrong : {"file:///etc/passwd", "ftp://x/y", "", "http://"}) {
    expect_has(message_of([&] { url_origin(wrong); }), {"http or https"});
  }
}

TEST(Url, ResolveAndHosts) {
  EXPECT_EQ(url_resolve("http://a/b/c?d", "/e?f"), "http://a/e?f");
  EXPECT_EQ(url_resolve("http://a/b/c", "e"), "http://a/b/e");
  EXPECT_EQ(url_resolve("https://a/b", "https://x:1/y"), "https://x:1/y");
  EXPECT_EQ(url_resolve("https://a/b", "//x/y"), "https://x/y");
  expect_has(message_of([] { url_resolve("https://a/b", "file:///etc/passwd"); }), {"http or https"});
  EXPECT_TRUE(url_names_host("https://x/y"));
  EXPECT_TRUE(url_names_host("//x/y"));
  EXPECT_FALSE(url_names_host("/x:y/z"));
  EXPECT_FALSE(url_names_host("x?a=b:c"));
}

TEST(Url, ShownHidesSecrets) {
  EXPECT_EQ(url_shown("https://me:secret@a/b?Signature=s3cret"), "https://a/b");
  EXPECT_EQ(url_shown("https://a/b@c"), "https://a/b@c");
}

TEST(Url, LinkNext) {
  EXPECT_EQ(link_next("<http://a?x=1>; rel=\"prev\", <http://a?x=3>; rel=\"next\""), "http://a?x=3");
  EXPECT_EQ(link_next("<http://a>; rel=next"), "http://a");
  for (const char* none : {"", "<http://a", "<http://a>; rel=\"prev\"", "next"}) EXPECT_EQ(link_next(none), "");
}

TEST(Waits, EveryFormOfHeader) {
  const auto asked = [](std::map<std::string, std::string> headers) {
    return asked_wait({.status = 429, .url = "", .headers = std::move(headers), .body = ""}, 784111770);
  };
  EXPECT_EQ(asked({}), -1);
  EXPECT_EQ(asked({{"retry-after", "7"}}), 7);
  EXPECT_EQ(asked({{"retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"}}), 7);
  EXPECT_EQ(asked({{"retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"}}), 0) << "a date that has passed";
  EXPECT_EQ(asked({{"retry-after", "soon"}}), -1);
  EXPECT_EQ(asked({{"ratelimit", "\"api\";r=0;t=55"}}), 55);
  EXPECT_EQ(asked({{"ratelimit", "\"api\"; r=0; t=55"}, {"retry-after", "7"}}), 55);
  EXPECT_EQ(asked({{"ratelimit", "\"api\";r=3;t=55"}, {"retry-after", "7"}}), 7) << "there is something left";
  EXPECT_EQ(asked({{"ratelimit", "\"api\";r=3;t=55, \"resolvers\";r=0;t=9"}}), 9);
  EXPECT_EQ(asked({{"ratelimit", ";;;r=;t=x;r"}}), -1);
}

// No name server knows a label of 64 characters, and none is asked: DNS allows 63.
TEST(Http, ANameThatDoesNotResolveIsTriedAgainAndNamed) {
  const std::string host = std::string(64, 'x') + ".example";
  Waits waits;
  Http http(waits.options());
  for (int round = 0; round < 2; ++round) {
    const std::string said = message_of([&] { http.send({.url = "http://" + host + "/file", .retries = 2}); });
    expect_has(said, {"http://" + host + "/file", "resolve", "HF_ENDPOINT"});
  }
  EXPECT_EQ(waits.seconds.size(), 4u);
  EXPECT_EQ(kind_of_error([&] { http.send({.url = "http://" + host, .retries = 0}); }), HubReason::kConnection);
  ScriptServer there([](const Asked&, const Peer& peer) { peer.answer(200, {}, "bytes"); });
  EXPECT_EQ(http.send({.url = there.url()}).body, "bytes") << "the same Http goes on with another host";
}

TEST(Http, AProxyThatDoesNotResolveIsNamed) {
  const std::string host = std::string(64, 'x') + ".example";
  const test_support::ScopedEnv proxy("http_proxy", "http://" + host + ":3128");
  Waits waits;
  Http http(waits.options());
  const std::string said = message_of([&] { http.send({.url = "http://hub.example/file", .retries = 2}); });
  expect_has(said, {"http://hub.example/file", "proxy", host});
  EXPECT_EQ(waits.seconds.size(), 2u);
}

TEST(Http, RelativeRedirectKeepsTheTokenAndAnotherHostLosesIt) {
  ScriptServer cdn([](const Asked&, const Peer& peer) { peer.answer(200, {}, "bytes"); });
  ScriptServer hub([&](const Asked& asked, const Peer& peer) {
    if (asked.target == "/old") return peer.answer(307, {"Location: /new"});
    peer.answer(302, {"Location: " + cdn.url() + "/signed"});
  });
  Http http({});
  const HttpResponse answer = http.send({.url = hub.url() + "/old", .token = "secret"});
  EXPECT_EQ(answer.body, "bytes");
  EXPECT_EQ(answer.url, cdn.url() + "/signed");
  ASSERT_EQ(hub.asked().size(), 2u);
  EXPECT_EQ(hub.asked()[1].target, "/new");
  EXPECT_EQ(hub.asked()[1].header("authorization"), "Bearer secret");
  EXPECT_EQ(cdn.asked().at(0).header("authorization"), "");
}

TEST(Http, TheTokenDoesNotComeBack) {
  std::string hub_url;
  ScriptServer cdn([&](const Asked&, const Peer& peer) { peer.answer(302, {"Location: " + hub_url + "/back"}); });
  ScriptServer hub([&](const Asked& asked, const Peer& peer) {
    if (asked.target == "/back") return peer.answer(200, {}, "x");
    peer.answer(302, {"Location: " + cdn.url()});
  });
  hub_url = hub.url();
  Http http({});
  http.send({.url = hub.url(), .token = "secret"});
  EXPECT_EQ(hub.asked().at(1).header("authorization"), "");
}

TEST(Http, ARedirectThatNamesAHostIsTheAnswerWhenAskedFor) {
  ScriptServer hub([](const Asked& asked, const Peer& peer) {
    if (asked.target == "/renamed")
      return peer.answer(302, {"X-Linked-Size: 5", "Location: http://127.0.0.1:1/cdn"}, "", true);
    peer.answer(307, {"Location: /renamed"}, "", true);
  });
  Http http({});
  const HttpResponse answer = http.send({.url = hub.url(), .method = "HEAD", .follow_other_hosts = false});
  EXPECT_EQ(answer.status, 302);
  EXPECT_EQ(answer.header("x-linked-size"), "5");
}

TEST(Http, RefusedDestinationIsNeverAsked) {
  ScriptServer evil([](const Asked&, const Peer& peer) { peer.answer(200, {}, "x"); });
  ScriptServer hub([&](const Asked&, const Peer& peer) { peer.answer(302, {"Location: " + evil.url() + "/x"}); });
  Http http({.allow_redirect = [&](const std::string& url) { return url.rfind(evil.url(), 0) != 0; }});
  EXPECT_EQ(kind_of_error([&] { http.send({.url = hub.url()}); }), HubReason::kNotAllowed);
  EXPECT_EQ(evil.asked().size(), 0u);
}

TEST(Http, LoopsAndOtherProtocolsEnd) {
  ScriptServer loop([](const Asked&, const Peer& peer) { peer.answer(302, {"Location: /"}); });
  Http http({});
  EXPECT_EQ(kind_of_error([&] { http.send({.url = loop.url()}); }), HubReason::kBadAnswer);
  EXPECT_EQ(loop.asked().size(), 11u);
  ScriptServer file([](const Asked&, const Peer& peer) { peer.answer(302, {"Location: file:///etc/passwd"}); });
  EXPECT_EQ(kind_of_error([&] { http.send({.url = file.url()}); }), HubReason::kBadAnswer);
}

TEST(Http, TransientStatusIsTriedAgainAfterTheWaitAskedFor) {
  std::atomic<int> n = 0;
  ScriptServer hub([&](const Asked&, const Peer& peer) {
    switch (n++) {
      case 0:
        return peer.answer(500, {});
      case 1:
        return peer.answer(429, {"ratelimit: \"api\";r=0;t=55"});
      case 2:
        return peer.answer(503, {"Retry-After: 7"});
      case 3:
        return peer.answer(429, {});
      default:
        return peer.answer(200, {}, "done");
    }
  });
  Waits waits;
  Http http(waits.options());
  EXPECT_EQ(http.send({.url = hub.url()}).body, "done");
  ASSERT_EQ(waits.seconds.size(), 4u);
  const double low[] = {0.5, 55, 7, 4}, high[] = {1, 56, 8, 8};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_GE(waits.seconds[i], low[i]);
    EXPECT_LE(waits.seconds[i], high[i]);
  }
}

TEST(Http, PatienceEnds) {
  ScriptServer hub([](const Asked& asked, const Peer& peer) {
    asked.target == "/long" ? peer.answer(429, {"Retry-After: 3600"}) : peer.answer(500, {});
  });
  Waits waits;
  Http http(waits.options());
  EXPECT_EQ(http.send({.url = hub.url() + "/long"}).status, 429) << "an hour is the caller's to wait";
  EXPECT_EQ(waits.seconds.size(), 0u);
  EXPECT_EQ(http.send({.url = hub.url()}).status, 500);
  EXPECT_EQ(hub.asked().size(), 1u + 6u);
}

TEST(Http, NoServerAndCutAnswers) {
  std::atomic<int> n = 0;
  ScriptServer hub([&](const Asked&, const Peer& peer) {
    const int turn = n++;
    if (turn == 0) return;                                                   // nothing at all
    if (turn == 1) return void(peer.send("HTTP/1.1 200 OK\r\nContent-Le"));  // half a head
    if (turn == 2) return void(peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"));
    peer.answer(200, {}, "whole");
  });
  Waits waits;
  Http http(waits.options());
  EXPECT_EQ(http.send({.url = hub.url()}).body, "whole");
  EXPECT_EQ(waits.seconds.size(), 3u);
  const std::string nobody = "http://127.0.0.1:1/";
  EXPECT_EQ(kind_of_error([&] { http.send({.url = nobody}); }), HubReason::kConnection);
  expect_has(message_of([&] { http.send({.url = nobody, .retries = 0}); }), {nobody, "HF_ENDPOINT", "HF_HUB_OFFLINE"});
}

TEST(Http, ASinkThatHasHadBytesIsNotRepeated) {
  ScriptServer hub(
      [](const Asked&, const Peer& peer) { peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"); });
  Waits waits;
  Http http(waits.options());
  std::string got;
  EXPECT_EQ(
      kind_of_error([&] { http.send({.url = hub.url(), .sink = [&](std::string_view bytes) { got += bytes; }}); }),
      HubReason::kConnection);
  EXPECT_EQ(got, "half");
  EXPECT_EQ(hub.asked().size(), 1u);
}

TEST(Http, BombsAreRefused) {
  // gzip of 256 KiB of zeros
  std::string gzip(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x31\x01\x00\x00\x00\xc2\xa0\xf5\x4f\xed\x6d\x07\xa0", 25);
  gzip += std::string(254, '\0') + std::string("\xde\x00\x22\xea\x0e\xe2\x00\x00\x04\x00", 10);
  ScriptServer hub([&](const Asked& asked, const Peer& peer) {
    if (asked.target == "/gzip") return peer.answer(200, {"Content-Encoding: gzip"}, gzip);
    if (asked.target == "/broken") return peer.answer(200, {"Content-Encoding: gzip"}, "no gzip");
    peer.send("HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 100000 && peer.send(cat("X-", i, ": ", std::string(100, 'x'), "\r\n")); ++i) continue;
  });
  Http http({});
  EXPECT_EQ(http.send({.url = hub.url() + "/gzip"}).body, std::string(256 << 10, '\0'));
  EXPECT_EQ(kind_of_error([&] { http.send({.url = hub.url() + "/gzip", .body_limit = 64 << 10}); }),
            HubReason::kBadAnswer);
  EXPECT_EQ(kind_of_error([&] { http.send({.url = hub.url() + "/broken"}); }), HubReason::kBadAnswer);
  EXPECT_EQ(kind_of_error([&] { http.send({.url = hub.url() + "/headers"}); }), HubReason::kBadAnswer);
}

TEST(Http, SlowDripEnds) {
  ScriptServer hub([](const Asked&, const Peer& peer) {
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    for (int i = 0; i < 100 && peer.send("x"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  Http http({.stall_s = 60, .answer_s = 0.5, .retries = 0});
  EXPECT_EQ(kind_of_error([&] { http.send({.url = hub.url()}); }), HubReason::kConnection)
      << "the whole answer's limit";
  Http slow({.stall_s = 1, .stall_bytes = 1000, .retries = 0});
  EXPECT_EQ(kind_of_error([&] { slow.send({.url = hub.url(), .sink = [](std::string_view) {}}); }),
            HubReason::kConnection)
      << "a stream's least rate";
}

TEST(Http, WhatASinkThrowsComesOut) {
  ScriptServer hub([](const Asked&, const Peer& peer) { peer.answer(200, {}, "bytes"); });
  Http http({});
  EXPECT_THROW(http.send({.url = hub.url(), .sink = [](std::string_view) { throw std::out_of_range("mine"); }}),
               std::out_of_range);
  EXPECT_THROW(http.send({.url = hub.url(),
                          .on_head = [](const HttpResponse&) { throw std::out_of_range("mine"); },
                          .sink = [](std::string_view) {}}),
               std::out_of_range);
}

}  // namespace
}  // namespace hotswap
