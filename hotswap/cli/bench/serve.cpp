#include "hotswap/cli/bench/serve.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "hotswap/base/error.h"
#include "hotswap/cli/bench/load.h"
#include "hotswap/cli/flags/value_checks.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

OutJson percentiles_json(const Percentiles& p) { return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}}; }

void bench_serve_verb(const ServerLoad& options) {
  const ServerLoadResult r = measure_load(options);
  const OutJson json{{"value", static_cast<double>(r.new_tokens) / r.seconds},
                     {"unit", "tokens/s"},
                     {"requests", r.requests},
                     {"failed", r.failed},
                     {"requests_per_second", static_cast<double>(r.requests - r.failed) / r.seconds},
                     {"time_to_first_token_ms", percentiles_json(r.first_token)},
                     {"between_events_ms", percentiles_json(r.between_events)},
                     {"request_ms", percentiles_json(r.whole)}};
  std::printf("%s\n", json.dump().c_str());
  if (r.failed == 0) return;
  throw Error({.kind = ErrorKind::kUnavailable,
               .wanted = cat("answers of ", options.new_tokens, " tokens to ", r.requests, " requests"),
               .got = cat(r.failed, " that failed, the first with: ", r.first_failure),
               .next = "read the server's log; fewer --streams, or a larger --queue of the server"});
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto* verb = bench.add_subcommand(
      "serve", "Load a server with requests for completions: tokens/s and percentiles of times, as one JSON line");
  auto options = std::make_shared<ServerLoad>();
  options->url = "http://127.0.0.1:8000";
  verb->add_option("--url", options->url, "The server's address, as `hotswap serve` prints it")->capture_default_str();
  verb->add_option("--api-key", options->api_key, "A key of the server");
  verb->add_option("--model", options->model, "Which of its models; default: the first one of /v1/models");
  verb->add_option("--streams", options->streams,
                   "Closed loop: requests at the same time, a next one after each answer")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  verb->add_option("--rate", options->rate, "Open loop instead: requests/s, at random times (a Poisson process)")
      ->check(above_zero());
  verb->add_option("--requests", options->requests, "Measured requests; default: three for each stream")
      ->check(above_zero());
  verb->add_option("--warm-up", options->warm_up, "Requests before them; default: one for each stream")
      ->check(zero_or_more());
  verb->add_option("--prompt-tokens", options->prompt_tokens, "Tokens of a prompt")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--new-tokens", options->new_tokens, "Tokens of an answer, which no end token shortens")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--vocab", options->vocab, "Prompts hold random ids below it")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_flag("--shared-prompt", options->shared_prompt, "All prompts are the same one");
  verb->add_option("--seed", options->seed, "Of ids and times")->capture_default_str();
  verb->add_option("--temperature", options->temperature, "0: the most probable token; above: the server samples")
      ->check(zero_or_more())
      ->capture_default_str();
  verb->add_option("--top-k", options->top_k, "Of the requests; default: the server's")->check(above_zero());
  verb->add_option("--top-p", options->top_p, "Of the requests; default: the server's")->check(CLI::Range(0.0, 1.0));
  verb->callback([options] { bench_serve_verb(*options); });
}

}  // namespace hotswap
