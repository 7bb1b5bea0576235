// What the writers of quantised models share.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/quantize/quantize.h"

namespace hotswap::quantizing {

// A model to be written, and how far that is.
struct Source {
  CausalLM& model;
  TensorMap tensors;              // those of a checkpoint: a tied head is not among them
  std::set<std::string> linears;  // names of weights of Linear, the output head's apart
  std::function<void(const std::string& tensor)> advance;
};

// A tensor of the model as float32, contiguous. Error where an element is not finite.
at::Tensor finite_floats(const std::string& name, const at::Tensor& tensor);

// Each writes to `to`, which is not there yet, and returns the type of each tensor in the order of source.tensors.
using Types = std::vector<std::string>;  // "" where the tensor stays as it is
Types write_gguf(const Source& source, const std::string& format, const std::filesystem::path& to);
Types write_folder(const Source& source, const std::string& format, const std::filesystem::path& to);

// Error where the model that the GGUF file describes is another one.
void check_description(const std::filesystem::path& gguf, CausalLM& model);

// llama.cpp's choice of a type for a tensor.
struct MixFacts {
  int64_t layers = 0;
  bool has_head = false;            // a tensor output.weight
  bool shares_values_of_8 = false;  // as of Llama 2 and 3 70B: eight heads of queries use one of values
};
std::string gguf_type_of(const std::string& format, const std::string& tensor, const std::vector<int64_t>& shape,
                         const MixFacts& facts);

}  // namespace hotswap::quantizing
