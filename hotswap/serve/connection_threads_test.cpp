// Threads of connections: as many as there are at once, and none that waits for ever.
#include "hotswap/http/connection_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace hotswap {
namespace {

using std::chrono::milliseconds;

// Until the condition holds; false after ten seconds.
template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

TEST(ConnectionThreads, ComeWithConnectionsAndEndWithoutThem) {
  ConnectionThreads threads(/*limit=*/64, milliseconds(50));
  for (int round = 0; round < 3; ++round) {
    std::latch open(1);
    std::atomic<int> running = 0, done = 0;
    for (int i = 0; i < 20; ++i) {
      threads.enqueue([&] {
        ++running;
        open.wait();
        ++done;
      });
    }
    EXPECT_TRUE(comes_true([&] { return running == 20; }));
    EXPECT_EQ(threads.count(), 20u);
    open.count_down();
    EXPECT_TRUE(comes_true([&] { return threads.count() == 0; }));
    EXPECT_EQ(done, 20);
  }
  threads.shutdown();
}

TEST(ConnectionThreads, WaitBeyondTheLimitAndForShutdown) {
  ConnectionThreads threads(/*limit=*/2);
  std::latch open(1);
  std::atomic<int> done = 0;
  for (int i = 0; i < 5; ++i) {
    threads.enqueue([&] {
      open.wait();
      ++done;
    });
  }
  EXPECT_EQ(threads.count(), 2u);
  open.count_down();
  EXPECT_TRUE(comes_true([&] { return done == 5; }));
  threads.shutdown();
}

}  // namespace
}  // namespace hotswap
