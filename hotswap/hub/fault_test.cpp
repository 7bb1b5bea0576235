// Everything that can go wrong on the way: the cache never shows a wrong or half file, and the next run completes.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <cstdlib>
#include <random>

#include "hotswap/base/sha256.h"
#include "hotswap/base/test_support.h"
#include "hotswap/hub/cache/piece_file.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/net/test_server.h"
#include "hotswap/hub/serve/server.h"

extern char** environ;

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Asked;
using test_support::expect_has;
using test_support::message_of;
using test_support::noise;
using test_support::Peer;
using test_support::ScriptServer;
using test_support::TempFolder;

const Repo kRepo{RepoType::kModel, "acme/tiny"};
const std::string kSha(40, 'a');

std::string hash_of(std::string_view bytes) {
  return to_hex(sha256({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
}

HubOptions options_for(const std::string& endpoint, const fs::path& cache) {
  HubOptions options{.endpoint = endpoint, .cache = cache, .kernels_cache = cache, .progress = false};
  options.http.sleep = [](double) {};
  options.http.stall_s = 3;
  return options;
}

// One file, told and sent rightly.
struct File {
  std::string content, etag = hash_of(content);

  void head(const Peer& peer) const { head(peer, etag, content.size()); }
  void head(const Peer& peer, const std::string& said, size_t size) const {
    peer.send(cat("HTTP/1.1 200 OK\r\nConnection: close\r\nX-Repo-Commit: ", kSha, "\r\nETag: \"", said,
                  "\"\r\nContent-Length: ", size, "\r\n\r\n"));
  }
  // The first byte asked for.
  static size_t first(const Asked& asked) {
    const std::string range = asked.header("range");
    return range.empty() ? 0 : std::strtoull(range.c_str() + 6, nullptr, 10);
  }
  size_t last(const Asked& asked) const {
    const std::string range = asked.header("range");
    const size_t dash = range.find('-');
    return dash == std::string::npos || dash + 1 == range.size() ? content.size() - 1
                                                                 : std::strtoull(range.c_str() + dash + 1, nullptr, 10);
  }
  std::string get_head(const Asked& asked) const {
    const size_t a = first(asked), b = last(asked);
    return asked.header("range").empty()
               ? cat("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ", content.size(), "\r\n\r\n")
               : cat("HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: ", b - a + 1,
                     "\r\nContent-Range: bytes ", a, "-", b, "/", content.size(), "\r\n\r\n");
  }
  std::string_view bytes(const Asked& asked) const {
    return std::string_view(content).substr(first(asked), last(asked) - first(asked) + 1);
  }
  void get(const Asked& asked, const Peer& peer) const {
    peer.send(get_head(asked));
    peer.send(bytes(asked));
  }
  void serve(const Asked& asked, const Peer& peer) const { asked.method == "HEAD" ? head(peer) : get(asked, peer); }
};

// What any reader of the cache could see: every blob is what its name says, every file of a snapshot is the content.
void expect_clean(const fs::path& cache, const std::string& content) {
  const fs::path repo = cache / "models--acme--tiny";
  if (!fs::exists(repo / "blobs")) return;  // a process may be killed before it makes either folder, or between them
  for (const auto& entry : fs::directory_iterator(repo / "blobs")) {
    const std::string name = entry.path().filename().string();
    if (name.size() != 64) continue;  // .incomplete
    EXPECT_EQ(hash_of(read_file(entry.path())), name);
  }
  if (!fs::exists(repo / "snapshots")) return;
  for (const auto& entry : fs::recursive_directory_iterator(repo / "snapshots")) {
    if (entry.is_directory()) continue;
    EXPECT_EQ(entry.path().filename(), "x.bin");
    EXPECT_EQ(read_file(entry.path()), content);
  }
}

size_t incomplete_files(const fs::path& cache) {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(cache / "models--acme--tiny/blobs"))
    count += entry.path().extension() == ".incomplete" ? 1 : 0;
  return count;
}

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

TEST(Faults, ALivingWritersFileIsLeftAlone) {
  const TempFolder folder;
  const fs::path blob = folder.path() / "etag";
  const std::string bytes = noise(1 << 20);
  PieceFile first(blob, 3 << 20, true);
  first.write(0, bytes);
  first.mark(0);
  {
    PieceFile second(blob, 3 << 20, true);  // as where a file system grants every lock
    EXPECT_FALSE(second.done(0));
    second.remove();
  }
  const pid_t other = ::getppid();  // alive, and not us
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    std::string text = read_file(entry.path());
    const size_t owner = (3 << 20) + 3;
    ASSERT_EQ(std::atoi(text.c_str() + owner), ::getpid());
    const std::string place = text.substr(text.find(' ', owner));
    text.replace(owner, text.size() - owner, 192, '\0');
    write_file(folder.path() / cat("etag.0000000", 1, ".pieces.incomplete"),
               std::string(text).replace(owner, 0, cat(other, place.c_str())).substr(0, text.size()));
    write_file(folder.path() / "etag.00000002.pieces.incomplete",
               std::string(text).replace(owner, 0, "1 another boot").substr(0, text.size()));
    break;
  }
  {
    PieceFile third(blob, 3 << 20, true);
    EXPECT_FALSE(third.done(0)) << "a parent that lives, and somebody elsewhere who wrote a moment ago";
    third.remove();
  }
  fs::last_write_time(folder.path() / "etag.00000002.pieces.incomplete",
                      fs::file_time_type::clock::now() - std::chrono::hours(1));
  PieceFile fourth(blob, 3 << 20, true);
  EXPECT_TRUE(fourth.done(0)) << "silent for an hour";
  EXPECT_FALSE(fs::exists(folder.path() / "etag.00000002.pieces.incomplete"));
}

// Killed right after its file was made, and between the last two steps: nobody's name is in these.
TEST(Faults, WhatTheFirstAndTheLastMomentLeave) {
  const TempFolder folder;
  const fs::path blob = folder.path() / "etag", left = folder.path() / "etag.00000001.pieces.incomplete";
  const std::string bytes = noise((2 << 20) + 5);
  const auto size = static_cast<int64_t>(bytes.size());
  write_file(left, "");
  {
    PieceFile next(blob, size, true);
    EXPECT_FALSE(fs::exists(left)) << "nothing in it to go on with";
    EXPECT_EQ(next.bytes_done(), 0);
    next.remove();
  }
  write_file(left, bytes);
  const int writer = ::open(left.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  {
    PieceFile next(blob, size, true);
    EXPECT_TRUE(fs::exists(left)) << "its writer lives: it holds the lock";
    EXPECT_EQ(next.bytes_done(), 0);
    next.remove();
  }
  ::close(writer);
  PieceFile next(blob, size, true);
  EXPECT_EQ(next.bytes_done(), size);
  EXPECT_FALSE(fs::exists(left));
  next.commit();
  EXPECT_EQ(read_file(blob), bytes);
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

// ---- other processes: this program again, with one test that downloads what the environment says ----------------

TEST(HubChild, DISABLED_Download) {
  HubOptions options = HubOptions::from_env();
  options.parallel_from = options.segment = 2 << 20;
  Hub hub(options);
  const MappedFile file(hub.file(kRepo, "main", "x.bin"));
  ASSERT_EQ(to_hex(sha256(file.bytes())), std::getenv("HOTSWAP_TEST_SHA256"));
}

// sha256: what the file must be; else the child fails.
pid_t start_child(const std::string& endpoint, const fs::path& cache, const std::string& sha256) {
  std::vector<std::string> env = {"HF_ENDPOINT=" + endpoint,   "HF_HUB_CACHE=" + cache.string(),
                                  "HF_HOME=" + cache.string(), "HF_HUB_DISABLE_PROGRESS_BARS=1",
                                  "HOME=" + cache.string(),    "HOTSWAP_TEST_SHA256=" + sha256};
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view line = *at;
    if (line.rfind("LD_", 0) == 0 || line.rfind("ASAN_", 0) == 0 || line.rfind("UBSAN_", 0) == 0)
      env.emplace_back(line);
  }
  std::vector<char*> envp;
  for (std::string& line : env) envp.push_back(line.data());
  envp.push_back(nullptr);
  std::string words[] = {"hub_test", "--gtest_filter=HubChild.*", "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", &files, nullptr, argv, envp.data()), 0);
  posix_spawn_file_actions_destroy(&files);
  return pid;
}

int status_of(pid_t pid) {
  int status = -1;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

// HOTSWAP_DOWNLOAD_MB=200 makes the file larger.
TEST(Processes, ManyOfThemDownloadOnce) {
  const char* given = std::getenv("HOTSWAP_DOWNLOAD_MB");
  const int64_t size = (given ? std::atoi(given) : 24) * int64_t{1000000} + 1;
  const TempFolder served, cache;
  const std::string content = noise(static_cast<size_t>(size));
  served.write("models/acme/tiny/main/x.bin", content);
  HubServer server({.folder = served.path(), .large_from = 1});
  server.start();
  const std::string want = hash_of(content);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) children.push_back(start_child(server.url(), cache.path(), want));
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0) << "each has the right file";
  EXPECT_EQ(server.bytes_sent(), size) << "one download's bytes";
  EXPECT_EQ(incomplete_files(cache.path()), 0u);
}

TEST(Processes, KilledAtAnyMomentTheNextOneCompletes) {
  const char* given = std::getenv("HOTSWAP_KILL_RUNS");
  const int runs = given ? std::atoi(given) : 10;
  const File file{noise(12 << 20)};
  std::mt19937 random(7);
  int killed = 0;
  for (int run = 0; run < runs; ++run) {
    const TempFolder cache;
    std::atomic<int64_t> sent = 0;
    std::atomic<bool> slow = true;
    ScriptServer server([&](const Asked& asked, const Peer& peer) {
      if (asked.method == "HEAD") return file.head(peer);
      peer.send(file.get_head(asked));
      for (std::string_view left = file.bytes(asked); !left.empty();) {
        const std::string_view some = left.substr(0, 64 << 10);
        if (!peer.send(some)) return;
        sent += static_cast<int64_t>(some.size());
        left.remove_prefix(some.size());
        if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    const pid_t child = start_child(server.url(), cache.path(), file.etag);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 150));
    ::kill(child, SIGKILL);
    killed += WIFSIGNALED(status_of(child)) ? 1 : 0;
    expect_clean(cache.path(), file.content);
    slow = false;
    EXPECT_EQ(status_of(start_child(server.url(), cache.path(), file.etag)), 0);
    expect_clean(cache.path(), file.content);
    EXPECT_EQ(incomplete_files(cache.path()), 0u) << "what the killed one left was gone on with";
  }
  EXPECT_GT(killed, 0);
}

}  // namespace
}  // namespace hotswap
