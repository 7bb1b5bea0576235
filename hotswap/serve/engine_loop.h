// The one thread that runs the model. Requests come to it by a queue, and their tokens leave by channels; no other
// thread touches the model or the scheduler. A request that fails ends no other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hotswap/engine/scheduler.h"
#include "hotswap/serve/metrics.h"
#include "hotswap/serve/token_channel.h"

namespace hotswap::serve {

using Clock = std::chrono::steady_clock;

struct EngineOptions {
  int64_t rows = 16;          // sequences that run at the same time
  int64_t max_queue = 1024;   // sequences that wait; further ones are refused
  int64_t max_model_len = 0;  // tokens of one sequence
  int64_t page_size = 0;      // see KvPoolOptions
  int64_t kv_tokens = 0;      // with a page_size: that the pages hold in total; 0: max_model_len of each row
  int64_t prefix_tokens = 0;  // whose keys and values are kept for prompts that begin alike
  int64_t chunk = 512;        // as SchedulerOptions'
  bool exact = true;          // a row's bits do not depend on its company
};

// A sequence that a request has handed over. Its thread may cancel it at any time.
struct Job {
  std::vector<int64_t> prompt;
  std::shared_ptr<const RowSampler> sampler;
  std::shared_ptr<TokenConstraint> constraint = {};
  StopRules stop = {};
  std::string cache_salt = {};  // these two: see Sequence
  int64_t adapter = -1;
  std::shared_ptr<TokenChannel> channel = {};
  size_t choice = 0;
  std::atomic<bool> stopped = false;  // a stop text ended it: what is cancelled then is not aborted
  std::atomic<bool> cancelled = false;
};

class EngineLoop {
 public:
  EngineLoop(CausalLM& model, const EngineOptions& options, Metrics& metrics);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // All of them or none. ApiError 429 where the queue is full, 503 where the engine has ended.
  void submit(const std::vector<std::shared_ptr<Job>>& jobs);
  // Runs `work` on the engine's thread between two steps and waits for it; throws what it throws.
  void run(const std::function<void(CausalLM&)>& work);
  void stop();  // ends what still runs with an error, then the thread

  bool healthy() const { return healthy_; }
  // What keeps texts from depending on their company, and its price; "" where nothing does.
  const std::string& why_exact() const { return why_exact_; }
  Gauges gauges() const;
  int64_t steps() const { return steps_; }
  Metrics& metrics() { return metrics_; }
  bool idle() const;

 private:
  struct Running {
    std::shared_ptr<Job> job;
    Clock::time_point arrived, last = {};
    int64_t tokens = 0;
    bool started = false;  // its prompt has begun to run
  };
  void loop();
  bool take_work();
  void join(Running fresh);
  void leave_cancelled();
  void step();
  void deliver(const NewToken& token, Clock::time_point now);
  void end(int64_t id, const std::string& reason);
  void fail(int64_t id, const ApiError& error);
  void fail_all(const ApiError& error);
  void publish();

  CausalLM& model_;
  const EngineOptions options_;
  Metrics& metrics_;
  std::string why_exact_;
  const ForwardGroups groups_;
  Scheduler scheduler_;
  std::shared_ptr<Sampler> argmax_;
  std::map<int64_t, Running> running_;  // by the scheduler's ids, also those that it lets wait
  int failures_ = 0;                    // of steps, one after another

  mutable std::mutex mutex_;  // of the four below
  std::condition_variable changed_;
  std::deque<Running> queue_;
  std::vector<std::function<void()>> works_;
  bool stopping_ = false;
  Gauges gauges_;
  std::atomic<bool> healthy_ = true;
  std::atomic<int64_t> steps_ = 0;
  std::thread thread_;
};

}  // namespace hotswap::serve
