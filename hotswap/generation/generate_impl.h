// What generate()'s two ways of running steps share: checked arguments in one struct, and the ends of rows.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "hotswap/engine/sampler.h"
#include "hotswap/engine/stop_strings.h"
#include "hotswap/generation/generate.h"

namespace hotswap::generation {

using Clock = std::chrono::steady_clock;

constexpr int64_t kReserved = 4096;  // tokens that a growing cache has room for at once

struct Call {
  CausalLM& model;
  const GenerateArguments& arguments;
  GenerationConfig config;  // max_new_tokens and min_new_tokens are set, and count new tokens
  Tensor ids;               // [batch, time] on the model's device
  Tensor mask;              // [batch, time] bool, false where a row is padded on the left; undefined: none is
  Clock::time_point start;

  int64_t batch() const { return ids.size(0); }
  double ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }
};

// Whether rows of one length run in memory of a fixed size.
bool is_static(const CausalLM& model, const GenerationConfig& config);
// Whether steps are worth a CUDA graph, where the settings do not rule it out.
bool captures(const CausalLM& model, const GenerationConfig& config);
// Each row without its padding.
std::vector<std::vector<int64_t>> prompts_of(const Tensor& ids, const Tensor& mask);
// Null where no text ends a row.
std::unique_ptr<StopStrings> stop_strings(const Call& call);
// The token of a row after its end. Error where rows can end before others and none is set.
int64_t padding_token(const Call& call, const StopStrings* stops);
std::shared_ptr<Sampler> make_sampler(const Call& call);
// As transformers warns. Frequencies of type dynamic follow the length.
void warn_beyond_positions(const CausalLM& model, int64_t length);
// Prompts and new tokens. all: [steps, batch]
Tensor with_new_tokens(const Tensor& ids, std::vector<int64_t>& all);

// Rows as sequences of their own lengths: where steps are not captured.
GenerateResult generate_sequences(const Call& call);

// Of each prompt the most probable texts as a whole: num_beams.
GenerateResult generate_beams(const Call& call);

// Whether tokens are guessed, by the prompt or by an assistant.
bool guesses(const Call& call);
GenerateResult generate_guessed(const Call& call);

}  // namespace hotswap::generation
