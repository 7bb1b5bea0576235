// Any faults in any order: the cache never shows a wrong or half file, and the next run completes.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>

#include "hotswap/hub/test_download.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Asked;
using test_support::expect_clean;
using test_support::File;
using test_support::hash_of;
using test_support::kRepo;
using test_support::noise;
using test_support::options_for;
using test_support::Peer;
using test_support::ScriptServer;
using test_support::TempFolder;

// A server that gets each request wrong with some chance, in a way of its own choosing.
class Chaos {
 public:
  Chaos(const File& file, uint64_t seed) : file_(file), random_(seed) {}
  std::atomic<bool> calm = false;

  void serve(const Asked& asked, const Peer& peer) {
    const int dice = calm ? 99 : roll(24);
    switch (dice) {
      case 0:
        return;  // not a byte
      case 1:
        return void(peer.send("HTTP/1.1 200 OK\r\nContent-Le"));
      case 2:
        return peer.answer(500, {});
      case 3:
        return peer.answer(429, {roll(2) == 0 ? "Retry-After: 1" : "ratelimit: \"api\";r=0;t=2"});
      case 4:
        return peer.answer(302, {"Location: " + asked.target});  // a loop
      case 5:
        return void(peer.send("garbage\r\n\r\n"));
      case 6:
        return peer.answer(404, {"X-Error-Code: EntryNotFound"});
      case 7:
        return void(
            peer.send("HTTP/1.1 200 OK\r\nX: " + std::string(static_cast<size_t>(roll(200000)), 'x') + "\r\n\r\n"));
      default:
        break;
    }
    if (asked.method == "HEAD") return head(dice, peer);
    File sent = file_;
    const size_t size = sent.content.size(), at = static_cast<size_t>(roll(static_cast<int>(size)));
    if (dice == 8) sent.content[at] ^= 4;
    std::string header = sent.get_head(asked);
    std::string body(sent.bytes(asked));
    if (dice == 9) body.resize(std::min(body.size(), at));
    if (dice == 10) body += "more";
    if (dice == 11) header = cat("HTTP/1.1 200 OK\r\nContent-Length: ", size, "\r\n\r\n"), body = sent.content;
    if (dice == 12)
      header = cat("HTTP/1.1 206 Partial\r\nContent-Range: bytes ", at, "-", size - 1, "/", size, "\r\n\r\n");
    if (dice == 13) header = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel";
    if (dice == 14) header = "HTTP/1.1 204 No Content\r\n\r\n", body.clear();
    if (dice == 15)
      header = cat("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: ", body.size(), "\r\n\r\n");
    peer.send(header);
    peer.send(body);
  }

 private:
  void head(int dice, const Peer& peer) {
    const size_t size = file_.content.size();
    if (dice == 8) return file_.head(peer, hash_of("other"), size);
    if (dice == 9) return file_.head(peer, file_.etag, size + 1);
    if (dice == 10) return file_.head(peer, "../../evil", size);
    if (dice == 11) return peer.answer(200, {"ETag: \"x\""}, "", true);
    file_.head(peer);
  }
  int roll(int sides) {
    const std::lock_guard lock(mutex_);
    return std::uniform_int_distribution<int>(0, sides - 1)(random_);
  }
  const File file_;
  std::mutex mutex_;
  std::mt19937_64 random_;
};

TEST(Faults, RandomOnesNeverLeaveAWrongFile) {
  const char* given = std::getenv("HOTSWAP_FAULT_RUNS");
  const int runs = given ? std::atoi(given) : 100;
  const File file{noise(2500000)};
  int done = 0, refused = 0;
  for (int run = 0; run < runs; ++run) {
    SCOPED_TRACE(cat("seed ", run));
    Chaos chaos(file, static_cast<uint64_t>(run));
    ScriptServer server([&](const Asked& asked, const Peer& peer) { chaos.serve(asked, peer); });
    const TempFolder cache;
    HubOptions options = options_for(server.url(), cache.path());
    if (run % 2 == 1) options.parallel_from = options.segment = 1 << 20;
    try {
      EXPECT_EQ(read_file(Hub(options).file(kRepo, "main", "x.bin")), file.content);
      ++done;
    } catch (const Error&) {  // says what was wrong; anything else that is thrown fails the test
      ++refused;
    }
    expect_clean(cache.path(), file.content);
    chaos.calm = true;
    fs::remove_all(cache.path() / "models--acme--tiny/.no_exist");  // it did say that there is no such file
    options.ttl_s = 0;
    EXPECT_EQ(read_file(Hub(options).file(kRepo, "main", "x.bin")), file.content) << "the next run completes";
    EXPECT_FALSE(fs::exists(cache.path().parent_path() / "evil"));
  }
  std::printf("%d done, %d refused\n", done, refused);
  EXPECT_GT(done, runs / 10);
  EXPECT_GT(refused, runs / 20);
}

}  // namespace
}  // namespace hotswap
