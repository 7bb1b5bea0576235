// transformers' BitsAndBytesConfig, as far as it is implemented: weights become 4 bits while a model is loaded.
#pragma once

#include <string>

namespace hotswap {

// Products are computed in the model's dtype, which transformers has a bnb_4bit_compute_dtype for.
struct BitsAndBytesConfig {
  bool load_in_4bit = false;                // of projections; embedding, output head and stacked experts stay plain
  std::string bnb_4bit_quant_type = "nf4";  // transformers' default, fp4, is not written here
  bool bnb_4bit_use_double_quant = false;   // true is an Error: read from checkpoints, not written
};

}  // namespace hotswap
