// Downloads by several processes at once, and by one that is killed.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <condition_variable>
#include <limits>
#include <mutex>
#include <random>

#include "hotswap/hub/serve/server.h"
#include "hotswap/hub/test_download.h"

extern char** environ;

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Asked;
using test_support::expect_clean;
using test_support::File;
using test_support::hash_of;
using test_support::incomplete_files;
using test_support::kRepo;
using test_support::noise;
using test_support::Peer;
using test_support::ScriptServer;
using test_support::TempFolder;

// ---- this program again, with one test that downloads what the environment says --------------------------------

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

// Sends a file up to a place that the test chose, and no byte more until the child that asks has been killed.
class CutServer {
 public:
  CutServer(const File& file, int64_t cut) : file_(file), cut_(cut) {}

  void serve(const Asked& asked, const Peer& peer) {
    if (asked.method == "HEAD") return file_.head(peer);
    peer.send(file_.get_head(asked));
    for (std::string_view left = file_.bytes(asked); !left.empty();) {
      const auto some = left.substr(0, take(std::min<int64_t>(64 << 10, static_cast<int64_t>(left.size()))));
      if (!peer.send(some)) return;
      left.remove_prefix(some.size());
    }
  }
  void wait_for_cut() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return held_; }));
  }
  void release() {
    const std::lock_guard lock(mutex_);
    cut_ = std::numeric_limits<int64_t>::max();
    changed_.notify_all();
  }

 private:
  // How many of `wanted` bytes may be sent; waits while none may.
  size_t take(int64_t wanted) {
    std::unique_lock lock(mutex_);
    if (sent_ >= cut_) {
      held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return sent_ < cut_; });
    }
    const int64_t some = std::min(wanted, cut_ - sent_);
    sent_ += some;
    return static_cast<size_t>(some);
  }
  const File& file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t sent_ = 0, cut_;
  bool held_ = false;  // somebody asks for more
};

// HOTSWAP_KILL_RUNS=100 adds places.
TEST(Processes, KilledInTheMiddleTheNextOneCompletes) {
  const char* given = std::getenv("HOTSWAP_KILL_RUNS");
  const File file{noise(12 << 20)};
  const auto size = static_cast<int64_t>(file.content.size());
  std::vector<int64_t> cuts = {0, 1, (2 << 20) - 1, 2 << 20, 5000000, size - 1};
  std::mt19937 random(7);
  for (int run = 0; given != nullptr && run < std::atoi(given); ++run) cuts.push_back(random() % size);
  for (const int64_t cut : cuts) {
    SCOPED_TRACE(cat("killed after ", cut, " bytes"));
    const TempFolder cache;
    CutServer cutter(file, cut);
    ScriptServer server([&](const Asked& asked, const Peer& peer) { cutter.serve(asked, peer); });
    const pid_t child = start_child(server.url(), cache.path(), file.etag);
    cutter.wait_for_cut();
    ::kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(status_of(child))) << "it cannot have ended: it never got the last byte";
    expect_clean(cache.path(), file.content);
    cutter.release();
    EXPECT_EQ(status_of(start_child(server.url(), cache.path(), file.etag)), 0);
    expect_clean(cache.path(), file.content);
    EXPECT_EQ(incomplete_files(cache.path()), 0u) << "what the killed one left was gone on with";
  }
}

}  // namespace
}  // namespace hotswap
