// For tests: modes by their first letters.
#pragma once

#include "hotswap/kernelize/mode.h"

namespace hotswap::test_support {

inline const Mode I = Mode::INFERENCE, T = Mode::TRAINING, C = Mode::TORCH_COMPILE, F = Mode::FALLBACK;

}  // namespace hotswap::test_support
