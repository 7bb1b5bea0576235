// By which a rank knows that another one has ended: each writes a line into the store every few seconds. For sources of
// this room.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace hotswap {

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  struct Options {
    int rank, size;
    Seconds timeout;
    std::string store_name;                                // for messages
    std::function<void(const std::string&)> on_lost = {};  // called once by the thread when a rank is lost
  };

  Heartbeat(c10::intrusive_ptr<c10d::Store> store, Options options);
  ~Heartbeat() { stop(); }

  void beat();                      // the first one, before the ranks have met
  std::vector<int> wait_for_all();  // until all have a first one; the ranks that have none when the time is up
  void start();
  void stop();
  void at_step(int64_t step) { step_ = step; }
  void in_collective() { ++collectives_; }  // another one begins
  void failed(const std::string& message);  // of this rank

  // "rank 3 on host b ...", once one has failed, is silent or has not come as far; none where after a few beats all are
  // well.
  std::optional<std::string> find_lost();

 private:
  struct Peer {
    std::string line, host;
    int64_t step = 0, collectives = 0;
    Clock::time_point heard;
  };
  void run();
  void look();
  template <typename Less>
  const Peer& first_by(const Less& less) const;
  std::optional<std::string> lost_for_good();
  std::optional<std::string> failed_peer();
  std::optional<std::string> silent_peer(Seconds longer_than);
  std::optional<std::string> slow_peer();
  std::string key_of(const char* what, int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  Options options_;
  Seconds interval_;
  std::string host_;
  std::atomic<int64_t> step_ = 0, collectives_ = 0;
  int64_t beats_ = 0, beats_since_failure_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::string store_lost_;  // why the store no longer answers
  std::vector<Peer> peers_;
  std::thread thread_;
};

}  // namespace hotswap
