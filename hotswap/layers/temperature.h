// Queries that are scaled by their place, as layers without rotary embedding do that see long sequences.
#pragma once

namespace hotswap {

// A query at place p, from 0, is multiplied by 1 + scale * log(1 + floor((p + 1) / floor)).
struct Temperature {
  double floor = 0, scale = 0;  // floor 0: off
};

}  // namespace hotswap
