// From hidden states of tokens to one vector a text: sentence-transformers' Pooling, all of its modes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

using at::Tensor;

struct Pooling {
  // cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken; several are put side by side.
  std::vector<std::string> modes = {"mean"};
  bool include_prompt = true;  // false: a prompt's tokens count only in attention

  // hidden: [tokens, dim] of texts one after the other, of these lengths; prompt: tokens at the beginning of each that
  // are its prompt's -> [texts, modes * dim] in hidden's dtype, summed in float32 at least
  Tensor forward(const Tensor& hidden, const std::vector<int64_t>& lengths, int64_t prompt) const;
  static Pooling read(const Json& config);  // of the folder 1_Pooling; old and new keys
};

}  // namespace hotswap
