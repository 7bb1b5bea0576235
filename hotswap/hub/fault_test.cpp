// What can go wrong on the way: the cache never shows a wrong or half file, and the next run completes.
#include <atomic>

#include "hotswap/hub/cache/partial_file.h"
#include "hotswap/hub/test_download.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Asked;
using test_support::expect_clean;
using test_support::expect_has;
using test_support::File;
using test_support::incomplete_files;
using test_support::kRepo;
using test_support::kSha;
using test_support::message_of;
using test_support::noise;
using test_support::options_for;
using test_support::Peer;
using test_support::ScriptServer;
using test_support::TempFolder;

TEST(Faults, GoesOnWhereAnotherRunWasCut) {
  const File file{noise(5 << 20)};
  const TempFolder cache;
  const size_t cut = 2500000;
  ScriptServer broken([&](const Asked& asked, const Peer& peer) {
    if (asked.method == "HEAD") return file.head(peer);
    if (!asked.header("range").empty()) return peer.answer(503, {});
    peer.send(file.get_head(asked));
    peer.send(std::string_view(file.content).substr(0, cut));
  });
  EXPECT_NE(message_of([&] { Hub(options_for(broken.url(), cache.path())).file(kRepo, "main", "x.bin"); }), "no error");
  EXPECT_EQ(incomplete_files(cache.path()), 1u);
  expect_clean(cache.path(), file.content);
  ScriptServer good([&](const Asked& asked, const Peer& peer) { file.serve(asked, peer); });
  const fs::path place = Hub(options_for(good.url(), cache.path())).file(kRepo, "main", "x.bin");
  EXPECT_EQ(read_file(place), file.content);
  EXPECT_EQ(good.asked().back().header("range"), cat("bytes=", 2 << 20, "-", file.content.size() - 1))
      << "from the last whole piece";
  EXPECT_EQ(incomplete_files(cache.path()), 0u);
}

TEST(Faults, ACutConnectionGoesOnAtTheByte) {
  const File file{noise(400 << 10)};
  const TempFolder cache;
  ScriptServer server([&](const Asked& asked, const Peer& peer) {
    if (asked.method == "HEAD") return file.head(peer);
    peer.send(file.get_head(asked));
    peer.send(file.bytes(asked).substr(0, 100001));
  });
  EXPECT_EQ(read_file(Hub(options_for(server.url(), cache.path())).file(kRepo, "main", "x.bin")), file.content);
  const auto asked = server.asked();
  ASSERT_EQ(asked.size(), 1u + 5u);
  EXPECT_EQ(asked[2].header("range"), cat("bytes=100001-", file.content.size() - 1));
}

TEST(Faults, NeverMoreThanACutConnection) {
  const File file{noise(400 << 10)};
  const TempFolder cache;
  ScriptServer server([&](const Asked& asked, const Peer& peer) {
    if (asked.method == "HEAD") return file.head(peer);
    peer.send(file.get_head(asked));
    peer.send(file.bytes(asked).substr(0, 1));
  });
  expect_has(message_of([&] { Hub(options_for(server.url(), cache.path())).file(kRepo, "main", "x.bin"); }),
             {"broken connections in a row"});
  EXPECT_LT(server.asked().size(), 40u) << "a byte at a time is no progress";
}

TEST(Faults, AServerWithoutRanges) {
  const File file{noise(3 << 20)};
  for (const int connections : {1, 4}) {
    const TempFolder cache;
    std::atomic<int> gets = 0;
    ScriptServer server([&](const Asked& asked, const Peer& peer) {
      if (asked.method == "HEAD") return file.head(peer);
      peer.send(cat("HTTP/1.1 200 OK\r\nContent-Length: ", file.content.size(), "\r\n\r\n"));
      peer.send(
          std::string_view(file.content).substr(0, connections == 1 && gets++ == 0 ? 1000000 : std::string::npos));
    });
    HubOptions options = options_for(server.url(), cache.path());
    options.parallel = connections;
    options.parallel_from = options.segment = 1 << 20;
    EXPECT_EQ(read_file(Hub(options).file(kRepo, "main", "x.bin")), file.content) << connections;
  }
}

TEST(Faults, AChangedByteIsDownloadedOnceMoreThenRefused) {
  const File file{noise(200 << 10)};
  for (const int bad : {1, 2}) {
    const TempFolder cache;
    std::atomic<int> gets = 0;
    ScriptServer server([&](const Asked& asked, const Peer& peer) {
      if (asked.method == "HEAD") return file.head(peer);
      File sent = file;
      if (gets++ < bad) sent.content[777] ^= 1;
      sent.get(asked, peer);
    });
    Hub hub(options_for(server.url(), cache.path()));
    if (bad == 1) {
      EXPECT_EQ(read_file(hub.file(kRepo, "main", "x.bin")), file.content);
    } else {
      expect_has(message_of([&] { hub.file(kRepo, "main", "x.bin"); }), {"hash", file.etag, "x.bin"});
      EXPECT_EQ(incomplete_files(cache.path()), 0u) << "wrong bytes are not kept";
    }
    expect_clean(cache.path(), file.content);
  }
}

TEST(Faults, AGitHashIsCheckedToo) {
  const std::string content = "notes\n";
  ContentHash git(std::string(40, '0'), static_cast<int64_t>(content.size()));
  git.update(content);
  const std::string etag = git.finish();
  EXPECT_EQ(etag, "bfa655111293037a5564088d1a9bbca4cbcf446b") << "as git hash-object says";
  for (const bool changed : {false, true}) {
    const TempFolder cache;
    ScriptServer server([&](const Asked& asked, const Peer& peer) {
      const File file{changed ? "nOtes\n" : content};
      asked.method == "HEAD" ? file.head(peer, etag, content.size()) : file.get(asked, peer);
    });
    const std::string said =
        message_of([&] { Hub(options_for(server.url(), cache.path())).file(kRepo, "main", "x.bin"); });
    EXPECT_EQ(said == "no error", !changed) << said;
  }
}

TEST(Faults, SizesThatDisagree) {
  const File file{noise(100 << 10)};
  for (const int more : {-1, 1}) {
    const TempFolder cache;
    ScriptServer server([&](const Asked& asked, const Peer& peer) {
      if (asked.method == "HEAD") return file.head(peer, file.etag, file.content.size() + static_cast<size_t>(more));
      file.get(asked, peer);
    });
    expect_has(message_of([&] { Hub(options_for(server.url(), cache.path())).file(kRepo, "main", "x.bin"); }),
               {"bytes", "x.bin"});
    expect_clean(cache.path(), "");
  }
}

TEST(Faults, NamesThatLeadAwayWriteNothing) {
  const TempFolder cache;
  ScriptServer server([&](const Asked& asked, const Peer& peer) {
    if (asked.target.find("/revision/") != std::string::npos)
      return peer.answer(200, {}, R"({"sha":")" + kSha + R"("})");
    peer.answer(200, {}, R"([{"type":"file","path":"../../../../evil","oid":"1111","size":1}])");
  });
  Hub hub(options_for(server.url(), cache.path() / "hub"));
  expect_has(message_of([&] { hub.snapshot(kRepo, "main"); }), {"../../../../evil"});
  expect_has(message_of([&] { hub.file(kRepo, "main", "../../x"); }), {"../../x"});
  expect_has(message_of([&] { hub.file(kRepo, "../main", "x"); }), {"../main"});
  EXPECT_EQ(std::distance(fs::directory_iterator(cache.path()), fs::directory_iterator()), 1)
      << "only the cache itself";
}

TEST(Faults, TenThousandFilesInATree) {
  std::string base;
  ScriptServer server([&](const Asked& asked, const Peer& peer) {
    const size_t at = asked.target.find("cursor=");
    const int page = at == std::string::npos ? 0 : std::atoi(asked.target.c_str() + at + 7);
    std::string body = "[";
    for (int i = 0; i < 1000; ++i)
      body += cat(i == 0 ? "" : ",", R"({"type":"file","path":"d/f)", page * 1000 + i, R"(","oid":"11","size":1})");
    std::vector<std::string> headers;
    if (page < 9) headers.push_back(cat("Link: <", base, "/api?cursor=", page + 1, ">; rel=\"next\""));
    peer.answer(200, headers, body + "]");
  });
  base = server.url();
  const TempFolder cache;
  Hub hub(options_for(server.url(), cache.path()));
  EXPECT_EQ(hub.tree(kRepo, kSha).size(), 10000u);
  EXPECT_EQ(hub.tree(kRepo, kSha).back().path, "d/f9999");
  EXPECT_EQ(server.asked().size(), 10u) << "the second time from the cache";
}

}  // namespace
}  // namespace hotswap
