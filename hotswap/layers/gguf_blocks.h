// The registry of ggml's types, and for each quantised one a function from bytes, as a GGUF file holds them, to
// float32. Every product there is exact; where a block has a minimum, subtracting it (adding it) is the one rounding.
#pragma once

#include <span>

#include "hotswap/layers/gguf_dequant.h"

namespace hotswap {

constexpr int64_t kGgufChunk = 256;  // weights decoded at once: whole blocks of every type

std::span<const GgufType> gguf_types();

}  // namespace hotswap
