// What may come next: tokens that a model then verifies, several in one step. A wrong guess costs time, never the text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hotswap/models/generation_config.h"

namespace hotswap {
class Sampler;
}

namespace hotswap::generation {

struct Call;

class Guesser {
 public:
  virtual ~Guesser() = default;
  // At most `limit` tokens that may follow `tokens`, the prompt included; none where there is no guess.
  virtual std::vector<int64_t> guess(const std::vector<int64_t>& tokens, int64_t limit) = 0;
  // Of the last guess: how many of its tokens were verified, and how many of those were right.
  virtual void judge(int64_t /*verified*/, int64_t /*right*/) {}
};

// What followed the last tokens where they stood in the text before: transformers' prompt lookup. The longest run of
// last tokens that is found counts, and its first position.
class PromptLookup : public Guesser {
 public:
  // Error on a number below 1.
  explicit PromptLookup(const GenerationConfig& config);
  std::vector<int64_t> guess(const std::vector<int64_t>& tokens, int64_t limit) override;

 private:
  int64_t count_, ngram_;
  std::vector<int64_t> eos_;
};

// An error where the settings, the batch or the models do not fit.
std::unique_ptr<Guesser> make_guesser(const Call& call, Sampler& sampler);

}  // namespace hotswap::generation
