// Weights that become NF4 while a model is loaded, as bitsandbytes makes them: blocks of 64 columns with a scale each,
// the nearest of 16 levels for each element. What they stand for is computed as for a checkpoint that was saved so
// (layers/weight.h); nothing trains them, and adapters train beside them.
//
//   AutoModelForCausalLM::from_pretrained("model", {.quantization_config = {.load_in_4bit = true}});
#pragma once

#include <memory>
#include <set>
#include <string>

#include "hotswap/layers/weight.h"
#include "hotswap/models/formats/bits_and_bytes_config.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {

// Error for settings that are not implemented.
void check(const BitsAndBytesConfig& config);

inline constexpr int64_t kFourBitBlock = 64;

// weight: [out, in] of floating point, in a multiple of 64.
Weight four_bits_of(const Tensor& weight);

// Weights of these names are NF4 where load_into() keeps formats; those whose rows no block divides stay plain, and a
// warning counts them. dtype: what they are rounded to first.
std::unique_ptr<const Checkpoint> in_four_bits(std::unique_ptr<const Checkpoint> checkpoint,
                                               std::set<std::string> names, at::ScalarType dtype);

}  // namespace hotswap
