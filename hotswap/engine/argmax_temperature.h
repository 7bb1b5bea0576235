// Where sampling turns into argmax.
#pragma once

namespace hotswap {

// A temperature below it is argmax: logits divided by it could overflow, and infinity less infinity is NaN.
inline constexpr double kArgmaxTemperature = 1e-5;

}  // namespace hotswap
