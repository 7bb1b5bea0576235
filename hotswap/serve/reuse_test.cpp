// Prompts that begin alike, and a pool that is too small for what runs: answers are those of an empty server.
#include <thread>

#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::OutJson;

class Reuse : public test_support::Served {
 protected:
  static int64_t cached(const OutJson& answer) { return answer["usage"]["prompt_tokens_details"]["cached_tokens"]; }
  static OutJson body(const std::string& prompt, int64_t count = 6) {
    return {{"prompt", prompt}, {"temperature", 0}, {"max_tokens", count}, {"ignore_eos", true}, {"logprobs", 1}};
  }
  SchedulerCounts counts() const { return server->engine().gauges().counts; }
};

TEST_F(Reuse, ABeginningThatWasSeenIsCounted) {
  start({.engine = {.prefix_tokens = 1024, .chunk = 32}});
  const std::string prompt(100, 'a');
  const OutJson first = post("/v1/completions", body(prompt)), second = post("/v1/completions", body(prompt));
  EXPECT_EQ(cached(first), 0);
  EXPECT_EQ(cached(second), 96);
  EXPECT_EQ(first["choices"], second["choices"]) << "text and logprobs";
  EXPECT_EQ(cached(post("/v1/completions", body(std::string(70, 'a') + "b"))), 64);
  OutJson twice = body(prompt);
  twice["prompt"] = {prompt, std::string(40, 'a')};
  twice["n"] = 2;
  EXPECT_EQ(cached(post("/v1/completions", twice)), 96 + 32) << "each prompt once";
  OutJson streamed = body(prompt);
  streamed.update(OutJson{{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(cached(events("/v1/completions", streamed).back()), 96);
  expect_nothing_left();
  EXPECT_EQ(counts().prefix_queries, 100 + 100 + 71 + 2 * 140 + 100);
  EXPECT_EQ(counts().prefix_hits, 0 + 96 + 64 + 2 * 128 + 96);
  EXPECT_NE(client().Get("/metrics")->body.find("hotswap:prefix_cache_hits_total{model_name=\"tiny\"} 512"),
            std::string::npos);
}

TEST_F(Reuse, OfOneKeyAndSaltOnly) {
  start({.api_keys = {"first", "second"}, .engine = {.prefix_tokens = 1024, .chunk = 32}});
  const auto cached_for = [&](const std::string& key, const char* salt) {
    OutJson request = body(std::string(100, 'a'));
    if (salt != nullptr) request["cache_salt"] = salt;
    auto http = client();
    const auto result = http.Post("/v1/completions", httplib::Headers{{"Authorization", "Bearer " + key}},
                                  request.dump(), "application/json");
    EXPECT_EQ(result->status, 200) << result->body;
    return cached(OutJson::parse(result->body));
  };
  EXPECT_EQ(cached_for("first", nullptr), 0);
  EXPECT_EQ(cached_for("first", nullptr), 96);
  EXPECT_EQ(cached_for("second", nullptr), 0);
  EXPECT_EQ(cached_for("first", "x"), 0);
  EXPECT_EQ(cached_for("first", "x"), 96);
  EXPECT_EQ(cached_for("second", "x"), 0);
}

TEST_F(Reuse, SequencesThatHadToWaitAnswerAsIfTheyHadNot) {
  constexpr int kRequests = 6;
  const auto request = [](int i) { return body(std::string(20 + 7 * i, static_cast<char>('a' + i)), 90); };
  std::vector<OutJson> single, company(kRequests);
  start({.engine = {.rows = 4, .page_size = 16, .kv_tokens = 256, .prefix_tokens = 1024, .chunk = 32}});
  for (int i = 0; i < kRequests; ++i) single.push_back(post("/v1/completions", request(i))["choices"]);
  EXPECT_EQ(counts().preemptions, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRequests; ++i) {
    threads.emplace_back([&, i] { company[i] = post("/v1/completions", request(i))["choices"]; });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(company[i], single[i]) << i;
  expect_nothing_left();
  EXPECT_GT(counts().preemptions, 0);
}

TEST_F(Reuse, ResponsesAreTheChatsThatTheyStandFor) {
  const OutJson whole = chat({{"temperature", 0}, {"max_tokens", 9}, {"ignore_eos", true}});
  OutJson request = {{"input", "Hello"}, {"temperature", 0}, {"max_output_tokens", 9}, {"ignore_eos", true}};
  const OutJson answer = post("/v1/responses", request);
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(answer["status"], "incomplete");
  EXPECT_EQ(answer["usage"]["input_tokens"], whole["usage"]["prompt_tokens"]);
  request["stream"] = true;
  const auto all = [&] {
    auto http = client();
    return http.Post("/v1/responses", request.dump(), "application/json")->body;
  }();
  EXPECT_TRUE(all.starts_with("event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,"))
      << all;
  EXPECT_NE(all.find("event: response.incomplete\n"), std::string::npos);
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
  EXPECT_EQ(post("/v1/responses", {{"input", "a"}, {"conversation", "c"}}, 400)["error"]["param"], "conversation");
  EXPECT_EQ(post("/v1/responses", {{"input", {{{"type", "message"}}}}}, 400)["error"]["param"], "input");
  EXPECT_EQ(post("/v1/responses", {{"instructions", "a"}}, 400)["error"]["param"], "input");
  EXPECT_EQ(post("/v1/responses", {{"input", "a"}, {"text", {{"format", {{"type", 1}}}}}}, 400)["error"]["param"],
            "text.format");
}

}  // namespace
}  // namespace hotswap
