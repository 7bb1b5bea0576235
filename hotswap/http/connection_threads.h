// A thread for each connection, as httplib wants it: they come as connections do, up to a limit, and stay for the next
// one. With a fixed few, slow readers would hold them all and a new client would wait for minutes.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "hotswap/base/log.h"

namespace hotswap {

class ConnectionThreads : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t limit) : limit_(limit) {}

  void enqueue(std::function<void()> connection) override {
    const std::lock_guard lock(mutex_);
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
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void add_thread() {
    try {
      threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {  // the system gives no more: those that there are must do
      if (threads_.empty()) throw;
      if (!std::exchange(told_, true))
        log_warning(threads_.size(), " threads for connections, no more: ", error.what());
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [&] { return !waiting_.empty() || ending_; });
      --idle_;
      if (waiting_.empty()) return;
      const std::function<void()> connection = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      connection();
      lock.lock();
    }
  }

  const size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ending_ = false, told_ = false;
};

}  // namespace hotswap
