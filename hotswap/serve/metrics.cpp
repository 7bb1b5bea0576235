#include "hotswap/serve/metrics.h"

#include "hotswap/base/error.h"

namespace hotswap::serve {

void Histogram::observe(double value) {
  size_t i = 0;
  while (i < bounds_.size() && value > bounds_[i]) ++i;
  ++counts_[i];
  sum_ += value;
}

void Histogram::print(const std::string& name, const std::string& labels, std::string& out) const {
  out += cat("# TYPE ", name, " histogram\n");
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? cat(bounds_[i]) : "+Inf";
    out += cat(name, "_bucket{", labels, ",le=\"", bound, "\"} ", total, "\n");
  }
  out += cat(name, "_sum{", labels, "} ", sum_, "\n", name, "_count{", labels, "} ", total, "\n");
}

void Metrics::prompt_started(int64_t tokens, double queued_s) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
  prompt_sizes_.observe(static_cast<double>(tokens));
  queued_s_.observe(queued_s);
}

void Metrics::first_token(double since_arrival_s) {
  const std::lock_guard lock(mutex_);
  ++generated_tokens_;
  first_token_s_.observe(since_arrival_s);
}

void Metrics::next_token(double since_last_s) {
  const std::lock_guard lock(mutex_);
  ++generated_tokens_;
  between_tokens_s_.observe(since_last_s);
}

void Metrics::step(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  step_sizes_.observe(static_cast<double>(tokens));
}

void Metrics::invalid_answer() {
  const std::lock_guard lock(mutex_);
  ++invalid_answers_;
}

void Metrics::unparsed_calls(int64_t count) {
  const std::lock_guard lock(mutex_);
  unparsed_calls_ += count;
}

void Metrics::finished(const std::string& reason, int64_t tokens, double since_arrival_s) {
  const std::lock_guard lock(mutex_);
  ++finished_[reason];
  generated_sizes_.observe(static_cast<double>(tokens));
  end_to_end_s_.observe(since_arrival_s);
}

namespace {

// As Prometheus' text format has the value of a label.
std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string Metrics::text(const std::string& prefix, const std::string& model, const Gauges& g) const {
  const std::lock_guard lock(mutex_);
  const std::string labels = cat("model_name=\"", escaped(model), "\"");
  std::string out;
  const auto value = [&](const char* type, const char* name, auto number, const std::string& more = "") {
    out += cat("# TYPE ", prefix, ":", name, " ", type, "\n");
    out += cat(prefix, ":", name, "{", labels, more, "} ", number, "\n");
  };
  value("gauge", "num_requests_running", g.running);
  value("gauge", "num_requests_waiting", g.waiting);
  value("gauge", "kv_cache_usage_perc", g.kv_usage);
  value("gauge", "kv_pages_in_use", g.kv_pages_in_use);
  value("counter", "prompt_tokens_total", prompt_tokens_);
  value("counter", "generation_tokens_total", generated_tokens_);
  value("counter", "structured_output_invalid_total", invalid_answers_);
  value("counter", "tool_calls_unparsed_total", unparsed_calls_);
  value("counter", "num_preemptions_total", g.counts.preemptions);
  value("counter", "prefix_cache_queries_total", g.counts.prefix_queries);
  value("counter", "prefix_cache_hits_total", g.counts.prefix_hits);
  out += cat("# TYPE ", prefix, ":request_success_total counter\n");
  for (const auto& [reason, count] : finished_) {
    out += cat(prefix, ":request_success_total{", labels, ",finished_reason=\"", reason, "\"} ", count, "\n");
  }
  value("gauge", "cache_config_info", 1, cat(",block_size=\"", g.page_size, "\",num_gpu_blocks=\"", g.kv_pages, "\""));
  for (const auto& [name, histogram] : {std::pair{"time_to_first_token_seconds", &first_token_s_},
                                        {"inter_token_latency_seconds", &between_tokens_s_},
                                        {"e2e_request_latency_seconds", &end_to_end_s_},
                                        {"request_queue_time_seconds", &queued_s_},
                                        {"request_prompt_tokens", &prompt_sizes_},
                                        {"request_generation_tokens", &generated_sizes_},
                                        {"iteration_tokens_total", &step_sizes_}}) {
    histogram->print(prefix + ":" + name, labels, out);
  }
  return out;
}

}  // namespace hotswap::serve
