// SparseMixer's routing, of PhiMoE: two experts a token, one after the other. Each counts by its share among those
// whose logits are near the best one's. In training they are drawn by these shares, and a share's gradient is an
// estimate of that of the choice (https://arxiv.org/abs/2409.12136).
#pragma once

#include "hotswap/layers/experts.h"

namespace hotswap {

// logits: [tokens, experts]. Near is what is below the best by at most twice `nearness` of its own size, or of the best
// where that is larger.
Routing sparse_mixer(const Tensor& logits, double nearness, bool training);

}  // namespace hotswap
