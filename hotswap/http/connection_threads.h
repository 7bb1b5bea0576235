// A thread for each connection, as httplib expects it: they come as connections do, up to a limit, and stay a minute
// for the next one. With a fixed few, slow readers would hold them all and a new client would wait for minutes.
#pragma once

#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "hotswap/base/log.h"

namespace hotswap {

class ConnectionThreads : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t limit, std::chrono::milliseconds idle = std::chrono::minutes(1))
      : limit_(limit), keep_(idle) {}

  void enqueue(std::function<void()> connection) override {
    const std::lock_guard lock(mutex_);
    join_ended();
    waiting_.push_back(std::move(connection));
    if (waiting_.size() > idle_ && threads_.size() < limit_) add_thread();
    changed_.notify_one();
  }

  // Returns when the connections that are open have ended.
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    // None moves to the other list any more: those that wait see `ending_` first.
    for (std::thread& thread : threads_) thread.join();
    join_ended();
  }

  size_t count() {  // of threads that there are now
    const std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  void add_thread() {
    const auto self = threads_.emplace(threads_.end());
    try {
      *self = std::thread([this, self] { serve(self); });  // waits for the mutex, which is held here
    } catch (const std::system_error& error) {             // the system gives no more: those that there are must do
      threads_.erase(self);
      if (threads_.empty()) throw;
      if (!std::exchange(told_, true))
        log_warning(threads_.size(), " threads for connections, no more: ", error.what());
    }
  }

  void join_ended() {
    for (std::thread& thread : ended_) thread.join();
    ended_.clear();
  }

  void serve(std::list<std::thread>::iterator self) {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool called = changed_.wait_for(lock, keep_, [&] { return !waiting_.empty() || ending_; });
      --idle_;
      if (!called) return ended_.splice(ended_.end(), threads_, self);
      if (waiting_.empty()) return;
      const std::function<void()> connection = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      connection();
      lock.lock();
    }
  }

  const size_t limit_;
  const std::chrono::milliseconds keep_;  // how long a thread waits for a connection before it ends
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::list<std::thread> threads_, ended_;
  size_t idle_ = 0;
  bool ending_ = false, told_ = false;
};

}  // namespace hotswap
