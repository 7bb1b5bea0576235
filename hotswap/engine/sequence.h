// A sequence: a prompt and what is generated after it, with its own length, sampling and ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/engine/row_sampler.h"
#include "hotswap/engine/sampler.h"

namespace hotswap {

// kFailed: its sampler or its constraint threw an error; kEos also where a constraint lets nothing more come.
enum class Finish { kNot, kLength, kEos, kStopString, kLeft, kFailed };

// When a sequence ends: with an eos, with `ends_with` of its newest token, or after max_new_tokens.
struct StopRules {
  int64_t max_new_tokens = 20;
  std::vector<int64_t> eos = {};
  std::function<bool(int64_t token)> ends_with = nullptr;  // called once with every new token; empty: never
};

struct Sequence {
  std::vector<int64_t> tokens;       // the prompt, then the new ones
  std::shared_ptr<Sampler> sampler;  // sequences that share one are sampled in one call
  // Instead of `sampler`, with settings of this sequence's own. Its logits are copied to the host where it has a
  // constraint or reports log-probabilities.
  std::shared_ptr<const RowSampler> row_sampler = nullptr;
  std::shared_ptr<TokenConstraint> constraint = nullptr;  // beside a row_sampler
  StopRules stop = {};
  // All tokens are run again once the sequence is this long, because its keys then need other frequencies; 0: never.
  int64_t restart_length = 0;
  std::string cache_salt = {};  // it takes kept keys of sequences of the same salt and adapter only
  int64_t adapter = -1;         // see CausalLM::add_row_adapter

  // Kept by the scheduler.
  int64_t prompt_length = 0;
  int64_t cached_tokens = 0;  // of its prompt that did not run: their keys and values were kept
  Finish finish = Finish::kNot;
  int64_t new_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_length; }
};

}  // namespace hotswap
