// The one thread that runs a model of texts. Requests that wait while it runs are run in one batch.
#pragma once

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "hotswap/serve/vectors/served_texts.h"

namespace hotswap::serve {

class ModelThread {
 public:
  // A request beyond that many waiting texts is refused.
  ModelThread(const ServedTexts& model, size_t max_waiting);
  ~ModelThread() { stop(); }
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  // [texts, dimensions] float32, as the model makes them. ApiError 429 where too many wait, 503 where it ends.
  Tensor vectors(std::vector<std::vector<int64_t>> ids, const EncodeArguments& arguments);
  RerankScores scores(const std::string& query, const std::vector<std::string>& documents);
  size_t waiting() const;  // texts
  void stop();             // what waits ends with an error

 private:
  struct Job {
    std::vector<std::vector<int64_t>> ids;
    EncodeArguments arguments;
    std::string query;
    std::vector<std::string> documents;
    std::promise<Tensor> vectors = {};
    std::promise<RerankScores> scores = {};
    bool ranks() const { return !documents.empty(); }
    size_t texts() const { return ranks() ? documents.size() : ids.size(); }
    void fail(const std::exception_ptr& error);
  };
  void add(std::shared_ptr<Job> job);
  void work();
  void run(const std::vector<std::shared_ptr<Job>>& jobs);
  void encode_together(const std::vector<std::shared_ptr<Job>>& jobs);

  const ServedTexts& model_;
  const size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  size_t waiting_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace hotswap::serve
