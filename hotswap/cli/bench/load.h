// A client that loads an OpenAI-compatible server with requests for completions, and what it measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hotswap {

struct ServerLoad {
  std::string url, api_key, model;  // model: empty, the first one of /v1/models
  int64_t streams = 64;             // closed loop: each sends its next request when the one before has been answered
  std::optional<double> rate;       // open loop instead: requests/s, at random times (a Poisson process)
  int64_t requests = 0;             // measured ones; 0: three for each stream
  int64_t warm_up = -1;             // requests before them; -1: one for each stream
  int64_t prompt_tokens = 64, new_tokens = 512;
  int64_t vocab = 1000;        // prompts hold random ids below it
  bool shared_prompt = false;  // all prompts are the same one
  uint64_t seed = 0;
  double temperature = 0;  // above 0: sampled, with top_k and top_p where they are set
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
};

struct Percentiles {  // of milliseconds
  double p50 = 0, p90 = 0, p99 = 0;
};

struct ServerLoadResult {
  int64_t requests = 0, failed = 0, new_tokens = 0;
  double seconds = 0;  // from the first request's start to the last one's end
  Percentiles first_token, between_events, whole;
  std::string first_failure;
};

// Error where no server answers. A request fails that ends with an error or with another number of tokens.
ServerLoadResult measure_load(const ServerLoad& options);

}  // namespace hotswap
