#include "hotswap/serve/vectors/model_thread.h"

#include "hotswap/serve/refusals.h"

namespace hotswap::serve {

void ModelThread::Job::fail(const std::exception_ptr& error) {
  if (ranks()) {
    scores.set_exception(error);
  } else {
    vectors.set_exception(error);
  }
}

ModelThread::ModelThread(const ServedTexts& model, size_t max_waiting)
    : model_(model), max_waiting_(max_waiting), thread_([this] { work(); }) {}

void ModelThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (const auto& job : queue_) job->fail(std::make_exception_ptr(server_ends()));
    queue_.clear();
    waiting_ = 0;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t ModelThread::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

void ModelThread::add(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (ends_) throw server_ends();
  if (waiting_ > 0 && waiting_ + job->texts() > max_waiting_) {
    throw ApiError(429,
                   {cat("at most ", max_waiting_, " waiting texts"), cat(waiting_ + job->texts()), "send it later"});
  }
  waiting_ += job->texts();
  queue_.push_back(std::move(job));
  changed_.notify_one();
}

Tensor ModelThread::vectors(std::vector<std::vector<int64_t>> ids, const EncodeArguments& arguments) {
  const auto job =
      std::make_shared<Job>(Job{.ids = std::move(ids), .arguments = arguments, .query = {}, .documents = {}});
  auto made = job->vectors.get_future();
  add(job);
  return made.get();
}

RerankScores ModelThread::scores(const std::string& query, const std::vector<std::string>& documents) {
  const auto job = std::make_shared<Job>(Job{.ids = {}, .arguments = {}, .query = query, .documents = documents});
  auto made = job->scores.get_future();
  add(job);
  return made.get();
}

void ModelThread::work() {
  while (true) {
    std::vector<std::shared_ptr<Job>> jobs;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (ends_) return;
      jobs.assign(queue_.begin(), queue_.end());
      queue_.clear();
      waiting_ = 0;
    }
    run(jobs);
  }
}

void ModelThread::run(const std::vector<std::shared_ptr<Job>>& jobs) {
  std::vector<std::shared_ptr<Job>> encodes;
  for (const auto& job : jobs) {
    if (!job->ranks()) {
      encodes.push_back(job);
      continue;
    }
    try {
      job->scores.set_value(model_.reranker->scores(job->query, job->documents));
    } catch (...) {
      job->fail(std::current_exception());
    }
  }
  if (!encodes.empty()) encode_together(encodes);
}

// Texts of one prompt at once. Where they fail in one batch, each request fails or succeeds by itself.
void ModelThread::encode_together(const std::vector<std::shared_ptr<Job>>& jobs) {
  std::map<std::string, std::vector<std::shared_ptr<Job>>> by_prompt;
  for (const auto& job : jobs) by_prompt[model_.encoder->prompt_of(job->arguments)].push_back(job);
  for (const auto& [prompt, group] : by_prompt) {
    std::vector<std::vector<int64_t>> all;
    for (const auto& job : group) all.insert(all.end(), job->ids.begin(), job->ids.end());
    try {
      const Tensor rows = model_.encoder->encode_ids(all, {.prompt = prompt});
      int64_t begin = 0;
      for (const auto& job : group) {
        const auto count = static_cast<int64_t>(job->ids.size());
        job->vectors.set_value(rows.narrow(0, begin, count));
        begin += count;
      }
    } catch (...) {
      if (group.size() == 1) {
        group.front()->fail(std::current_exception());
      } else {
        for (const auto& job : group) encode_together({job});
      }
    }
  }
}

}  // namespace hotswap::serve
