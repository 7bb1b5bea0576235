// Whether the steps of a model can be captured in a CUDA graph, as far as that is known before it is tried.
#pragma once

#include <optional>
#include <string>

#include "hotswap/models/causal_lm.h"

namespace hotswap {

// Why not, and what to do about it; none: nothing is known that is in the way.
std::optional<std::string> why_not_capturable(CausalLM& model);

}  // namespace hotswap
