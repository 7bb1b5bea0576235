#include "hotswap/serve/engine_loop.h"

#include <c10/core/DeviceGuard.h>

#include <future>

#include "hotswap/base/log.h"
#include "hotswap/engine/exact_steps.h"
#include "hotswap/serve/refusals.h"

namespace hotswap::serve {
namespace {

constexpr int kMaxFailures = 3;  // steps that fail one after another before the engine counts as broken

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

const char* reason_of(Finish finish) { return finish == Finish::kLength ? "length" : "stop"; }

SchedulerOptions scheduler_options(const EngineOptions& o, const ForwardGroups& groups) {
  SchedulerOptions out{
      .max_sequences = o.rows, .chunk = o.chunk, .groups = groups, .prefix_tokens = o.prefix_tokens, .exact = o.exact};
  if (groups.whole_steps) out.max_tokens = o.max_model_len + 1;  // room for all; a step writes one beyond an idle row's
  if (o.page_size == 0) return out;
  out.page_size = o.page_size;
  out.max_tokens = o.max_model_len;
  out.pages = (o.kv_tokens + o.page_size - 1) / o.page_size;
  return out;
}

void require_pieces(const CausalLM& model, const EngineOptions& options) {
  if (model.device().is_cpu() || options.page_size == 0) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "no pages with --exact (output that is independent of other requests in the batch)",
               .got = cat("pages of ", options.page_size, " tokens"),
               .next = "leave --page-size out, or --exact"});
}

// `why`: what makes it exact, for the operator.
ForwardGroups groups_of(CausalLM& model, const EngineOptions& options, std::string& why) {
  if (!options.exact) return {};
  if (model.device().is_cpu()) {
    const ForwardGroups groups{.decode_rows = max_exact_decode_rows(model, options.rows), .single_prompts = true};
    why = cat(groups.decode_rows, " in a forward");
    return groups;
  }
  require_pieces(model, options);
  const WholeSteps found = probe_whole_steps(model, options.rows);
  if (!found.why_not.empty()) {
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = "a model whose output can be independent of other requests in the batch (--exact) on this device",
         .got = found.why_not,
         .next = "serve without --exact, or on the CPU"});
  }
  char times[80];
  std::snprintf(times, sizeof(times), "%.3f ms, of one row otherwise %.3f ms", found.ms, found.single_ms);
  why = cat("each step of ", options.rows, " rows, ", times);
  return {.single_prompts = true, .whole_steps = true};
}

}  // namespace

EngineLoop::EngineLoop(CausalLM& model, const EngineOptions& options, Metrics& metrics)
    : model_(model),
      options_(options),
      metrics_(metrics),
      groups_(groups_of(model, options, why_exact_)),
      scheduler_(model, scheduler_options(options, groups_)) {
  argmax_ = std::make_shared<Sampler>(GenerationConfig(), model.device(),
                                      [&model](const Tensor& scores) { return model.largest(scores); });
  publish();
  thread_ = std::thread([this] { loop(); });
}

EngineLoop::~EngineLoop() { stop(); }

void EngineLoop::submit(const std::vector<std::shared_ptr<Job>>& jobs) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || !healthy_) throw server_ends();
    // What finds a free row does not wait.
    const auto present = static_cast<int64_t>(queue_.size()) + gauges_.waiting + gauges_.running;
    if (present + static_cast<int64_t>(jobs.size()) > options_.rows + options_.max_queue) {
      throw ApiError(429, {cat("at most ", options_.max_queue, " waiting sequences"), "more", "send it later"});
    }
    for (const auto& job : jobs) queue_.push_back({.job = job, .arrived = Clock::now()});
  }
  changed_.notify_one();
}

void EngineLoop::run(const std::function<void(CausalLM&)>& work) {
  std::packaged_task<void()> task([&] { work(model_); });
  auto done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || !healthy_) throw server_ends();
    works_.emplace_back([&task] { task(); });
  }
  changed_.notify_one();
  done.get();
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Gauges EngineLoop::gauges() const {
  const std::lock_guard lock(mutex_);
  Gauges now = gauges_;
  now.waiting += static_cast<int64_t>(queue_.size());
  return now;
}

bool EngineLoop::idle() const {
  const Gauges now = gauges();
  return now.running == 0 && now.waiting == 0;
}

void EngineLoop::loop() {
  const c10::DeviceGuard current(model_.device());
  while (take_work()) {
    leave_cancelled();
    if (!scheduler_.idle()) step();
    publish();
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;  // nothing more is queued
  }
  take_work();
  fail_all(server_ends());
  publish();
}

// Takes what came since the last step, and waits where nothing runs. False where the thread must end.
bool EngineLoop::take_work() {
  std::deque<Running> fresh;
  std::vector<std::function<void()>> works;
  bool goes_on;
  {
    std::unique_lock lock(mutex_);
    if (scheduler_.idle()) {
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty() || !works_.empty(); });
    }
    gauges_.waiting += static_cast<int64_t>(queue_.size());
    fresh.swap(queue_);
    works.swap(works_);
    goes_on = !stopping_ && healthy_;
  }
  for (const auto& work : works) work();
  for (Running& one : fresh) join(std::move(one));
  return goes_on;
}

void EngineLoop::join(Running fresh) {
  const Job& job = *fresh.job;
  if (job.cancelled) return;
  try {
    Sequence sequence{.tokens = job.prompt, .sampler = nullptr, .constraint = job.constraint, .stop = job.stop};
    if (job.sampler->settings().is_argmax() && !job.constraint) {
      sequence.sampler = argmax_;
    } else {
      sequence.row_sampler = job.sampler;
    }
    sequence.cache_salt = job.cache_salt;
    sequence.adapter = job.adapter;
    sequence.restart_length = restart_length(model_, static_cast<int64_t>(job.prompt.size()));
    running_.emplace(scheduler_.join(std::move(sequence)), std::move(fresh));
  } catch (const std::exception& error) {
    job.channel->push({.choice = job.choice, .error = std::make_shared<ApiError>(api_error(error))});
  }
}

void EngineLoop::leave_cancelled() {
  std::vector<int64_t> gone;
  for (const auto& [id, one] : running_) {
    if (one.job->cancelled) gone.push_back(id);
  }
  for (const int64_t id : gone) {
    scheduler_.leave(id);
    end(id, running_.at(id).job->stopped ? "stop" : "abort");
  }
}

void EngineLoop::step() {
  try {
    const Clock::time_point begin = Clock::now();
    const std::vector<NewToken> tokens = scheduler_.step();
    ++steps_;
    metrics_.step(static_cast<int64_t>(tokens.size()));
    const Clock::time_point now = Clock::now();
    for (auto& [id, one] : running_) {
      if (one.started || !scheduler_.admitted(id)) continue;
      one.started = true;
      metrics_.prompt_started(static_cast<int64_t>(one.job->prompt.size()), seconds(begin - one.arrived));
    }
    for (const NewToken& token : tokens) deliver(token, now);
    failures_ = 0;
  } catch (const std::exception& error) {
    log_line(LogLevel::kError, cat("a step failed: ", error.what()));
    fail_all(ApiError(500, {"a step that runs", error.what(), "send the request again; the server's log has more"}));
    if (++failures_ >= kMaxFailures) healthy_ = false;
  }
}

void EngineLoop::deliver(const NewToken& token, Clock::time_point now) {
  if (token.finish == Finish::kFailed) return fail(token.sequence, ApiError(500, token.error));
  Running& one = running_.at(token.sequence);
  int64_t cached = 0;
  if (one.tokens++ == 0) {
    cached = scheduler_.sequence(token.sequence).cached_tokens;
    metrics_.first_token(seconds(now - one.arrived));
  } else {
    metrics_.next_token(seconds(now - one.last));
  }
  one.last = now;
  one.job->channel->push({.choice = one.job->choice,
                          .id = token.id,
                          .finish = token.finish,
                          .logprobs = token.logprobs,
                          .cached_tokens = cached});
  if (token.finish != Finish::kNot) end(token.sequence, reason_of(token.finish));
}

void EngineLoop::end(int64_t id, const std::string& reason) {
  const auto found = running_.find(id);
  metrics_.finished(reason, found->second.tokens, seconds(Clock::now() - found->second.arrived));
  running_.erase(found);
  scheduler_.take(id);
}

void EngineLoop::fail(int64_t id, const ApiError& error) {
  const Job& job = *running_.at(id).job;
  job.channel->push({.choice = job.choice, .error = std::make_shared<ApiError>(error)});
  scheduler_.leave(id);
  end(id, "error");
}

void EngineLoop::fail_all(const ApiError& error) {
  while (!running_.empty()) fail(running_.begin()->first, error);
}

void EngineLoop::publish() {
  Gauges now{.running = scheduler_.running(), .waiting = scheduler_.waiting(), .page_size = options_.page_size};
  const KvUsage use = scheduler_.pool().usage();
  now.kv_pages = use.pages;
  now.kv_pages_in_use = use.pages_in_use;
  const int64_t room = options_.page_size > 0 ? use.pages * options_.page_size : options_.rows * options_.max_model_len;
  now.kv_usage = static_cast<double>(use.tokens) / static_cast<double>(room);
  now.counts = scheduler_.counts();
  const std::lock_guard lock(mutex_);
  gauges_ = now;
}

}  // namespace hotswap::serve
