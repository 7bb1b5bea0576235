// The arithmetic that a training step is made of, and the rate of a device: what share of it a run uses (model FLOPs
// utilisation, MFU).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"

namespace hotswap {

// Of each element of a weight a token costs 2 operations forward and 2 for the gradient of what it reads; 2 more where
// it learns. Of experts those count that a token goes through; the output head counts, the embedding does not. Causal
// attention of rows of `length` tokens: 6 * heads * head_dim * length a token and layer, less in a sliding window.
// Norms, gates and recurrences are left out, and so is what is computed again.
class TrainingWork {
 public:
  explicit TrainingWork(CausalLM& model);
  double flops(int64_t rows, int64_t length) const;  // of a forward and its backward

 private:
  struct Attention {
    double width;    // heads * head_dim, the mean of keys and values
    int64_t window;  // 0: all
  };
  double products_ = 0;  // operations a token
  std::vector<Attention> attentions_;
};

// Operations a second of dense bfloat16 products, as the maker states them, of the GPU of that name; none for one that
// is not known, of which there is no MFU.
std::optional<double> peak_flops(const std::string& gpu);
// The name of the GPUs of this machine; empty where there is none, or several of different names.
std::string gpu_name();
// Of a model in 16 bits on a GPU that is known.
std::optional<double> peak_flops_for(const CausalLM& model);

// The peak of memory: on a CPU of the process (base/memory.h), on a GPU of torch's allocator.
int64_t peak_device_memory(at::Device device);
bool reset_peak_device_memory(at::Device device);

}  // namespace hotswap
