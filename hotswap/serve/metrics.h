// What /metrics shows, in Prometheus' text format. Names are vLLM's after a prefix of our own, so that dashboards and
// routers made for them work.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hotswap/engine/scheduler.h"

namespace hotswap::serve {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  void print(const std::string& name, const std::string& labels, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // between each bound and the one before, and above the last
  double sum_ = 0;
};

// What holds at this moment.
struct Gauges {
  int64_t running = 0, waiting = 0;
  int64_t kv_pages = 0, kv_pages_in_use = 0;  // a page may be a whole sequence's
  double kv_usage = 0;                        // of the tokens that there is room for, 0 to 1
  int64_t page_size = 0;
  SchedulerCounts counts = {};
};

class Metrics {
 public:
  void prompt_started(int64_t tokens, double queued_s);
  void first_token(double since_arrival_s);
  void next_token(double since_last_s);
  void step(int64_t tokens);
  void invalid_answer();               // a finished one that its schema does not allow
  void unparsed_calls(int64_t count);  // texts that began as a call of a tool and are none
  void finished(const std::string& reason, int64_t tokens, double since_arrival_s);
  std::string text(const std::string& prefix, const std::string& model, const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0, invalid_answers_ = 0, unparsed_calls_ = 0;
  std::map<std::string, int64_t> finished_;  // by reason
  Histogram first_token_s_{{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 60}};
  Histogram between_tokens_s_{{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 5}};
  Histogram end_to_end_s_{{0.05, 0.1, 0.3, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300}};
  Histogram queued_s_{{0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 1, 2.5, 5, 10, 30, 60}};
  Histogram prompt_sizes_{{1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768}};
  Histogram generated_sizes_{{1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768}};
  Histogram step_sizes_{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}};
};

}  // namespace hotswap::serve
