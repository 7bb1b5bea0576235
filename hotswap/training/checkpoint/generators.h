// rng_state.pth of a checkpoint: the states of the random generators. For sources of this room.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace hotswap {

// The states of torch's generators of the CPU and, where a model is on one, of a GPU, as bytes.
std::string generator_states(at::Device device);

// Those states, of this process or of another rank. Python's and numpy's, which nothing here draws from and
// transformers reads, are those after its set_seed(seed).
void save_generators(const std::filesystem::path& file, const std::string& states, int64_t seed);

// Torch's. One that the file lacks is left as it is.
void load_generators(const std::filesystem::path& file, at::Device device);

}  // namespace hotswap
