// Frequencies of rotary position embeddings, every scaling that Llama and Qwen configs use, computed operation by
// operation as transformers' modeling_rope_utils.py does: they then agree bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace hotswap {

using at::Tensor;

struct RopeParameters {
  std::string type = "default";  // default, linear, dynamic, llama3, yarn, longrope
  int64_t dim = 0;               // of a head; even
  double theta = 10000;
  int64_t max_position_embeddings = 0;
  double factor = 1;                                        // all but default
  int64_t original_max_position_embeddings = 0;             // llama3, yarn, longrope
  std::optional<double> attention_factor = std::nullopt;    // yarn, longrope
  double beta_fast = 32, beta_slow = 1;                     // yarn
  double mscale = 0, mscale_all_dim = 0;                    // yarn; 0: not given
  bool truncate = true;                                     // yarn
  double low_freq_factor = 1, high_freq_factor = 4;         // llama3
  std::vector<double> short_factor = {}, long_factor = {};  // longrope, dim / 2 each
};

// Every value of `type` that rope_frequencies knows.
const std::vector<std::string>& rope_types();

struct RopeFrequencies {
  Tensor inverse;            // [dim / 2] float32
  double attention_scaling;  // cos and sin are multiplied by it
};

// How much yarn raises the scores of a context that was stretched by `factor`; DeepSeek's own scale has its square.
double yarn_mscale(double factor, double mscale);

// `length`: the sequence that must be reached, which dynamic and longrope depend on; none at load time.
RopeFrequencies rope_frequencies(const RopeParameters& rope, std::optional<int64_t> length = {});

// Type dynamic's, of lengths on a device: a scalar, or [batch, 1], int64. -> [dim / 2] or [batch, dim / 2]
Tensor dynamic_inverse(const RopeParameters& rope, const Tensor& length);

}  // namespace hotswap
