#include "hotswap/cli/bench/load.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "hotswap/base/error.h"
#include "hotswap/cli/bench/timing.h"

namespace hotswap {
namespace {

using EventJson = nlohmann::json;
using Time = Clock::time_point;
constexpr int kTimeout = 600;  // s

double milliseconds(Time from, Time to) { return std::chrono::duration<double, std::milli>(to - from).count(); }

struct Answer {
  Time begin, end;
  std::vector<Time> events;  // that carried text
  int64_t tokens = 0;        // as the server counts them
  std::string failure;
};

// The body of a stream of events, which comes in pieces.
class Events {
 public:
  explicit Events(Answer& answer) : answer_(answer) {}
  bool push(const char* data, size_t size) {
    held_.append(data, size);
    size_t from = 0;
    for (size_t end; (end = held_.find("\n\n", from)) != std::string::npos; from = end + 2) {
      event(std::string_view(held_).substr(from, end - from));
    }
    held_.erase(0, from);
    return true;
  }
  // What came is no stream of events, as a refusal is not.
  const std::string& rest() const { return held_; }

 private:
  void event(std::string_view text) {
    constexpr std::string_view kData = "data: ";
    if (!text.starts_with(kData) || text.starts_with("data: [DONE]")) return;
    const EventJson json = EventJson::parse(text.substr(kData.size()), nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() || json.contains("error")) {
      answer_.failure = std::string(text);
    } else if (json.contains("usage") && json["usage"].is_object()) {
      answer_.tokens = json["usage"].value("completion_tokens", int64_t{0});
    } else if (json.contains("choices") && !json["choices"].empty()) {
      answer_.events.push_back(Clock::now());
    }
  }
  Answer& answer_;
  std::string held_;
};

class Load {
 public:
  explicit Load(ServerLoad options) : options_(std::move(options)) {
    if (options_.requests == 0) options_.requests = 3 * options_.streams;
    if (options_.warm_up < 0) options_.warm_up = options_.streams;
    if (options_.model.empty()) options_.model = first_model();
  }

  ServerLoadResult run() {
    send(options_.warm_up, 0);
    return result_of(send(options_.requests, options_.warm_up));
  }

 private:
  httplib::Client client() const {
    httplib::Client client(options_.url);
    client.set_connection_timeout(kTimeout);
    client.set_read_timeout(kTimeout);
    client.set_keep_alive(true);
    client.set_tcp_nodelay(true);
    if (!options_.api_key.empty()) client.set_bearer_token_auth(options_.api_key);
    return client;
  }

  std::string first_model() const {
    auto here = client();
    const auto answer = here.Get("/v1/models");
    const EventJson json = answer ? EventJson::parse(answer->body, nullptr, false) : EventJson();
    if (answer && answer->status == 200 && !json.is_discarded() && json.contains("data") && !json["data"].empty()) {
      return json["data"][0].value("id", "");
    }
    throw Error({.kind = ErrorKind::kUnavailable,
                 .wanted = "a server that lists its models at " + options_.url + "/v1/models",
                 .got = answer ? cat("status ", answer->status) : httplib::to_string(answer.error()),
                 .next = "start one with `hotswap serve MODEL`, and give its address as --url"});
  }

  std::string body_of(int64_t request) const {
    std::mt19937_64 random(options_.seed + (options_.shared_prompt ? 0 : static_cast<uint64_t>(request)));
    std::vector<int64_t> prompt(options_.prompt_tokens);
    for (int64_t& id : prompt) id = std::uniform_int_distribution<int64_t>(0, options_.vocab - 1)(random);
    EventJson body{{"model", options_.model},
                   {"prompt", prompt},
                   {"max_tokens", options_.new_tokens},
                   {"ignore_eos", true},
                   {"temperature", options_.temperature},
                   {"stream", true},
                   {"stream_options", {{"include_usage", true}}}};
    if (options_.temperature > 0) body["seed"] = request;
    if (options_.top_k) body["top_k"] = *options_.top_k;
    if (options_.top_p) body["top_p"] = *options_.top_p;
    return body.dump();
  }

  Answer send_one(httplib::Client& client, int64_t number) const {
    Answer answer;
    Events events(answer);
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body_of(number);
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      return events.push(data, size);
    };
    answer.begin = Clock::now();
    httplib::Result result = client.send(request);
    // A server may close the connection after an answer, which only the next request finds out.
    if (!result && answer.events.empty() && events.rest().empty()) result = client.send(request);
    answer.end = Clock::now();
    if (!result) {
      answer.failure = httplib::to_string(result.error());
    } else if (result->status != 200) {
      answer.failure = cat("status ", result->status, " ", events.rest());
    } else if (answer.failure.empty() && answer.tokens != options_.new_tokens) {
      answer.failure = cat("expected ", options_.new_tokens, " tokens; got ", answer.tokens);
    }
    return answer;
  }

  // Requests `first` to `first + count`, and their answers in that order.
  std::vector<Answer> send(int64_t count, int64_t first) const {
    std::vector<Answer> answers(count);
    return options_.rate ? send_at_random_times(std::move(answers), first) : send_in_streams(std::move(answers), first);
  }

  std::vector<Answer> send_in_streams(std::vector<Answer> answers, int64_t first) const {
    std::atomic<size_t> next = 0;
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < options_.streams; ++i) {
      threads.emplace_back([&] {
        auto here = client();
        for (size_t at; (at = next++) < answers.size();) answers[at] = send_one(here, first + static_cast<int64_t>(at));
      });
    }
    for (auto& thread : threads) thread.join();
    return answers;
  }

  std::vector<Answer> send_at_random_times(std::vector<Answer> answers, int64_t first) const {
    std::mt19937_64 random(options_.seed);
    std::exponential_distribution<double> gap(*options_.rate);
    std::vector<std::thread> threads;
    Time when = Clock::now();
    for (size_t i = 0; i < answers.size(); ++i) {
      std::this_thread::sleep_until(when);
      threads.emplace_back([&, i] {
        auto here = client();
        answers[i] = send_one(here, first + static_cast<int64_t>(i));
      });
      when += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random)));
    }
    for (auto& thread : threads) thread.join();
    return answers;
  }

  static Percentiles percentiles(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) { return values[static_cast<size_t>(share * double(values.size() - 1) + 0.5)]; };
    return {.p50 = at(0.5), .p90 = at(0.9), .p99 = at(0.99)};
  }

  static ServerLoadResult result_of(const std::vector<Answer>& answers) {
    ServerLoadResult result{.requests = static_cast<int64_t>(answers.size())};
    std::vector<double> first, between, whole;
    Time begin = Time::max(), end = Time::min();
    for (const Answer& a : answers) {
      begin = std::min(begin, a.begin);
      end = std::max(end, a.end);
      if (!a.failure.empty()) {
        if (result.failed++ == 0) result.first_failure = a.failure;
        continue;
      }
      result.new_tokens += a.tokens;
      whole.push_back(milliseconds(a.begin, a.end));
      if (!a.events.empty()) first.push_back(milliseconds(a.begin, a.events.front()));
      for (size_t i = 1; i < a.events.size(); ++i) between.push_back(milliseconds(a.events[i - 1], a.events[i]));
    }
    result.seconds = milliseconds(begin, end) / 1000;
    result.first_token = percentiles(std::move(first));
    result.between_events = percentiles(std::move(between));
    result.whole = percentiles(std::move(whole));
    return result;
  }

  ServerLoad options_;
};

}  // namespace

ServerLoadResult measure_load(const ServerLoad& options) { return Load(options).run(); }

}  // namespace hotswap
